/* Regression tests: models that were once compiled incorrectly, as text. The seed chooses one. */
#include "gen_parts.h"

static const char *const kept[] = {
    /* Movements that differ only in which part is read twice, and one that is like the first. */
    "model \"alike\" {\n  symbol $0 \"n\"\n  %0 = input f32[$0,3,6] \"x\"\n  %1 = tanh %0\n"
    "  %2 = slice %0 axis=2 start=0 shape=[3]\n  %3 = slice %0 axis=2 start=3 shape=[3]\n"
    "  %4 = concat %3 %2 %3 axis=2\n  %5 = slice %1 axis=2 start=0 shape=[3]\n"
    "  %6 = slice %1 axis=2 start=3 shape=[3]\n  %7 = concat %6 %5 %5 axis=2\n  %8 = sigmoid %0\n"
    "  %9 = slice %8 axis=2 start=0 shape=[3]\n  %10 = slice %8 axis=2 start=3 shape=[3]\n"
    "  %11 = concat %10 %9 %10 axis=2\n  output %4 \"a\"\n  output %7 \"b\"\n  output %11 \"c\"\n}\n",
    /* A linear layer reads rows with gaps between them, because they were written into a concat. */
    "model \"placed\" {\n  %0 = input f32[3,2,5] \"x\"\n  %1 = param f32[5,5] \"w\"\n"
    "  %2 = slice %0 axis=1 shape=[1]\n  %3 = reshape %2 shape=[3,5]\n  %4 = tanh %3\n"
    "  %5 = linear %4 %1\n  %6 = tanh %5\n  %7 = concat %4 %6 axis=1\n  output %7 \"y\"\n}\n",
    /* A part of a parameter, reshaped: it is packed once. */
    "model \"part\" {\n  %0 = input f32[2,4] \"x\"\n  %1 = param f32[2,4,4] \"w\"\n"
    "  %2 = slice %1 start=1 shape=[1]\n  %3 = reshape %2 shape=[4,4]\n  %4 = linear %0 %3\n"
    "  output %4 \"y\"\n}\n",
    /* The same for parts with gaps between them: they are copied once. */
    "model \"apart\" {\n  %0 = input f32[2,4] \"x\"\n  %1 = param f32[3,2,4] \"h\"\n"
    "  %2 = param f32[4,4] \"w\"\n  %3 = slice %1 axis=1 start=1 shape=[1]\n"
    "  %4 = reshape %3 shape=[3,4]\n  %5 = linear %4 %2\n  %6 = slice %5 shape=[1]\n"
    "  %7 = add %0 %6\n  output %7 \"y\"\n}\n",
    /* A blocked tensor; reshapes before and after it change the batch. */
    "model \"volume\" {\n  %0 = input f32[2,3,2,4,5] \"x\"\n  %1 = param f32[4,3,3,3] \"w\"\n"
    "  %2 = permute %0 axes=[0,2,1,3,4]\n  %3 = reshape %2 shape=[4,3,4,5]\n"
    "  %4 = conv %3 %1 pad=[1,1,1,1]\n  %5 = reshape %4 shape=[2,2,4,4,5]\n"
    "  %6 = permute %5 axes=[0,2,1,3,4]\n  output %6 \"y\"\n}\n",
    /* A scalar has no memory that a copy could read. */
    "model \"number\" {\n  %0 = input f32[2,3] \"x\"\n  %1 = scalar value=2.5\n"
    "  %2 = reshape %1 shape=[1,1]\n  %3 = div %0 %2\n  output %2 \"y\"\n  output %3 \"z\"\n}\n",
    /* Large parameters are permuted by loops, not by a table. */
    "model \"large\" {\n  %0 = input f32[2,300] \"x\"\n  %1 = param f32[300,2,100] \"w\"\n"
    "  %2 = permute %1 axes=[1,2,0]\n  %3 = reshape %2 shape=[200,300]\n  %4 = linear %0 %3\n"
    "  output %4 \"y\"\n}\n",
    /* Sums over the batch, and positions in it: the batch is not divided. */
    "model \"positions\" {\n  symbol $0 \"n\"\n  %0 = input f32[$0,64,9] \"x\"\n"
    "  %1 = exp %0\n  %2 = cumsum %1\n  %3 = arange shape=[$0]\n  %4 = reshape %3 shape=[$0,1,1]\n"
    "  %5 = mul %2 %4\n  %6 = tanh %0\n  %7 = add %6 %4\n  output %5 \"y\"\n  output %7 \"z\"\n}\n",
    /* Two stages of strips read a sum that is part of a value without memory. */
    "model \"strips\" {\n  symbol $0 \"n\"\n  %0 = input f32[$0,37] \"x\"\n"
    "  %1 = input f32[$0,37] \"z\"\n  %2 = sum %0 axes=[1] keepdim=true\n  %3 = relu %2\n"
    "  %4 = neg %3\n  %5 = reduce_max %0 axes=[1] keepdim=true\n  %6 = sub %0 %5\n"
    "  %7 = add %1 %3\n  output %4 \"a\"\n  output %6 \"b\"\n  output %7 \"c\"\n}\n",
    /* A tensor without elements, whose strides are 0. */
    "model \"nothing\" {\n  %0 = input f32[16,0] \"x\"\n  %1 = input f32[16,1] \"z\"\n"
    "  %2 = add %0 %1\n  output %2 \"y\"\n}\n",
    /* Tensors without elements in results with one: nothing of them is read. */
    "model \"empty part\" {\n  symbol $0 \"n\"\n  %0 = input f32[0,$0,7] \"x\"\n"
    "  %1 = input f32[1,$0,7] \"z\"\n  %2 = place %0 shape=[1]\n  %3 = add %2 %1\n"
    "  %4 = input f32[$0,1,0,9] \"image\"\n  %5 = pad %4 pad=[0,0,1,0] value=3.0\n  %6 = tanh %5\n"
    "  output %3 \"y\"\n  output %6 \"t\"\n}\n",
};

void gen_kept(struct gen *g, struct random *r) {
    const struct gen_range range = {.low = -1, .high = 1};
    struct sol_model *parsed;
    gen_start(g, r, "kept");
    if (sol_model_parse(kept[random_int(r, 0, (int)(sizeof kept / sizeof *kept) - 1)], &parsed))
        return;
    sol_model_free(g->model);
    g->model = parsed;
    for (int i = 0; i < GEN_LEAVES; i++) g->input[i] = g->param[i] = range;
    g->n_outputs = 1;
}

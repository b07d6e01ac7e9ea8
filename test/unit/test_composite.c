/*
 * src/pass/decompose*.c: composite layers and the simple layers that replace them compute the same.
 *
 * A model of one composite runs on device/ref, before and after the pass. There it has the reference of the composite, and then
 * those of the simple layers.
 */
#include "check.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"
#include "one_layer.h"
#include "pass/pass.h"

#include <math.h>

#define MAX_INPUTS 5

static struct arena arena;
static const int64_t symbols[SIZE_SYMBOLS] = {2, 3, 1, 1};

/* `offset` is added to all values of the first input. */
struct row {
    const char *inputs, *layer;
    double offset;
};

#define X "f32[$0,6,7,5]"
static const struct row rows[] = {
    {X " f32[6] f32[6] f32[6] f32[6]", "batch_norm eps=0.5", 0},
    {X " f32[6,4,3,2] f32[4]", "conv_transpose", 0},
    {X " f32[6,4,2,2] f32[4]", "conv_transpose stride=[2,2]", 0},
    {X " f32[6,4,4,4]", "conv_transpose stride=[2,2] pad=[1,1,1,1]", 0},
    {X " f32[6,4,3,3] f32[4]", "conv_transpose stride=[2,3] pad=[1,0,1,2] output_pad=[1,2]", 0},
    {X " f32[6,2,3,3] f32[6]", "conv_transpose stride=[3,2] groups=3 output_pad=[5,0]", 0},
    {X " f32[6,1,3,2] f32[6]", "conv_transpose groups=6 dilation=[2,3] pad=[3,2,0,1]", 0},
    {X " f32[6,4,3,2]", "conv_transpose stride=[2,2] dilation=[3,2] pad=[5,1,4,0]", 0},
    {X " f32[6,4,1,2]", "conv_transpose stride=[3,4] pad=[4,0,2,3]", 0},
    {X, "softmax axis=1", 0},
    {X, "softmax axis=-1", 100},
    {"f32[$0,0]", "softmax axis=1", 0},
    {X, "log_softmax axis=2", 0},
    {X, "log_softmax axis=0", 1000},
    {"f32[$0,0]", "log_softmax axis=-1", 0},
    {X " f32[5] f32[5]", "layer_norm axes=[3]", 0},
    {X " f32[7,5]", "layer_norm axes=[2,3] eps=0.25", 0},
    {X " f32[6,1,1] f32[6,1,1]", "layer_norm axes=[0,2,3]", 100},
    {X, "layer_norm", 0},
    {"f32[2,0]", "layer_norm axes=[1]", 0},
    {X " f32[5]", "rms_norm axes=[-1]", 0},
    {X, "rms_norm axes=[1,2] eps=0.25", 100},
    {X " f32[6] f32[6]", "group_norm groups=6", 100},
    {X " f32[6] f32[6]", "group_norm groups=3", 100},
    {X " f32[6]", "group_norm eps=0.25", 0},
    {"f32[$0,6]", "group_norm groups=2", 0},
    {"f32[$0,6]", "group_norm groups=6", 0},
    {"f32[2,4,1,3,1,2,1,2] f32[4] f32[4]", "group_norm groups=2", 0},
    {X, "logsumexp axes=[1,3]", 0},
    {X, "logsumexp axes=[2] keepdim=true", 1000},
    {"i64[]", "random shape=[$0,6,7,5] stream=3", 5e12},
    {"i64[]", "random shape=[3,70,$0,70]", 0},
    {"i64[]", "random shape=[]", 0},
    {"i64[]", "random shape=[5000]", 0},
    {X, "norm", 0},
    {X, "norm p=1.0 axes=[1] keepdim=true", 0},
    {X, "norm p=0.0 axes=[1,2]", 0},
    {X, "norm p=3.0 axes=[1,2]", 0},
    {X, "argmax axis=1", 0},
    {X, "argmin axis=-1 keepdim=true", 0},
    {X, "norm p=inf axes=[3]", 0},
    {X, "norm p=-inf axes=[3]", 0},
    {"f32[3,0]", "norm axes=[1]", 0},
    {X, "variance axes=[0,2]", 100},
    {X, "variance axes=[0,2,3]", 100},
    {"f32[2,6,7,5]", "variance axes=[0,2,3] correction=1.0 keepdim=true", 100},
    {"f32[1,6,7,5]", "variance axes=[0,2,3] correction=1.0", 100},
    {"f32[2,6,1,1]", "variance axes=[0,2,3] correction=2.0", 100},
    {"f32[2,6,0]", "variance axes=[0,2] correction=1.0", 0},
    {X, "variance axes=[1,2] correction=1.0 keepdim=true", 100},
    {"f32[$0,1]", "variance axes=[1] correction=1.0", 0},
    {"f32[$0,1]", "variance axes=[1] correction=2.0", 0},
    {"f32[$0,2,4,8] f32[$0,2,5,8] f32[$0,2,5,3]", "attention scale=0.5", 0},
    {"f32[$0,2,4,8] f32[$0,2,5,8] f32[$0,2,5,3] f32[4,5]", "attention softcap=1.5", 0},
    {"f32[$0,2,4,8] f32[5,8] f32[1,5,3] f32[2,1,5]", "attention causal=true", 0},
    {"f32[4,8] f32[5,8] f32[5,3] f32[1,5]", "attention", 0},
    {"f32[$0,4,8] f32[1,5,8] f32[5,3]", "attention scale=0.25 causal=true", 0},
    {"f32[$0,6,4,8] f32[$0,2,5,8] f32[$0,2,5,3]", "attention scale=0.5 causal=true", 0},
    {"f32[$0,6,4,8] f32[$0,2,5,8] f32[$0,2,5,3] f32[6,4,5]", "attention", 0},
    {"f32[$0,6,4,8] f32[$0,2,5,8] f32[$0,2,5,3] f32[$0,1,4,5]", "attention", 0},
    {"f32[6,4,8] f32[1,5,8] f32[1,5,3] f32[5]", "attention", 0},
    {"f32[6,4,8] f32[6,5,8] f32[6,5,3] bool[4,5]", "attention scale=0.5", 0},
    {"f64[$0,6,4,8] f64[$0,2,5,8] f64[$0,2,5,3] bool[6,1,5]", "attention causal=true", 0},
    {"f64[$0,7] f64[7]", "layer_norm axes=[1]", 1000},
    {"f64[$0,7]", "logsumexp axes=[1]", -1000},
};

static int64_t count(const struct tensor *t) {
    struct size n = ir_elements(t);
    return size_eval(&n, symbols);
}

/* Values from -2 to 2. Masks hide some scores; their first row hides all. */
static void *fill(const struct layer *l, int input, double offset) {
    const struct tensor *t = l->in[input];
    int64_t n = count(t), row = t->rank ? size_eval(&t->dim[t->rank - 1], symbols) : 0;
    double *data = ARENA_ARRAY(&arena, double, n + 1); /* room for any type */
    uint32_t state = 12345u + (uint32_t)input;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        double x = (double)(state >> 8) / (1 << 22) - 2 + (input ? 0 : offset);
        bool is_mask = l->kind == LAYER_attention && input == 3,
             hides = i < row || state >> 30 == 0;
        if (is_mask && hides) x = t->dtype == SOL_BOOL ? 0 : -INFINITY;
        if (l->kind == LAYER_batch_norm && input == 2) x = fabs(x);
        if (l->kind == LAYER_norm && i % 5 == 0) x = 0;
        ref_put_real(t->dtype, data, i, x);
    }
    return data;
}

static bool is_close(double is, double expected, double tolerance) {
    if (is != is || expected != expected) return is != is && expected != expected;
    return is == expected || fabs(is - expected) <= tolerance * (1 + fabs(expected));
}

static bool compare(enum sol_dtype type, const void *is, const void *expected, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double a = ref_get_real(type, is, i), b = ref_get_real(type, expected, i);
        if (is_close(a, b, type == SOL_F64 ? 1e-12 : 2e-5)) continue;
        fprintf(stderr, "    at %lld: %.9g, expected %.9g\n", (long long)i, a, b);
        return false;
    }
    return true;
}

static const struct pass *find_decompose(void) {
    const struct pass *p = passes;
    while (strcmp(p->name, "decompose") != 0) p++;
    return p;
}

static enum layer_kind test_row(const struct row *row) {
    struct model *m;
    const void *in[MAX_INPUTS];
    if (ir_parse(write_one_layer(&arena, row->inputs, row->layer), &arena, &m))
        fprintf(stderr, "    %s\n", sol_error());
    REQUIRE(m);
    const struct layer *l = m->layers.at[m->layers.n - 1];
    enum layer_kind kind = l->kind;
    for (int i = 0; i < l->n_in; i++) in[i] = fill(l, i, row->offset);
    CHECK(!ir_add_output(m, l->out[0], "y", FORWARD));
    int64_t n = count(l->out[0]);
    enum sol_dtype type = l->out[0]->dtype;
    void *out[2];
    for (int i = 0; i < 2; i++) out[i] = ARENA_ARRAY(&arena, double, n + 1);
    CHECK(!ref_run(m, symbols, in, NULL, (void *[]){out[0]}));
    CHECK(!pass_run(find_decompose(), m));
    CHECK(!ref_run(m, symbols, in, NULL, (void *[]){out[1]}));
    for (int i = 0; i < m->layers.n; i++) CHECK(m->layers.at[i]->kind != kind);
    if (!CHECK(compare(type, out[1], out[0], n)))
        fprintf(stderr, "    %s on %s\n", row->layer, row->inputs);
    return kind;
}

/* Every layer without a point expression is a composite, except sources, gathers, their inverses, resamples, recurrent layers and calls of host functions. */
static void test_all(void) {
    bool seen[N_LAYER_KINDS] = {[LAYER_input] = true,    [LAYER_param] = true,
                                [LAYER_gather] = true,   [LAYER_scatter_sum] = true,
                                [LAYER_resample] = true, [LAYER_host] = true};
    for (int i = 0; i < COUNT(rows); i++) seen[test_row(&rows[i])] = true;
    for (int i = 0; i < N_LAYER_KINDS; i++) {
        bool is_composite = layer_infos[i].define == layer_infos[LAYER_softmax].define;
        if (layer_infos[i].traits & RECURRENT) continue;
        if (is_composite && !CHECK(seen[i]))
            fprintf(stderr, "    no row for %s\n", layer_infos[i].name);
    }
}

int main(void) {
    jmp_buf boundary;
    arena_init(&arena);
    arena.boundary = &boundary;
    if (setjmp(boundary)) return 1;
    test_all();
    arena_fini(&arena);
    return check_done();
}

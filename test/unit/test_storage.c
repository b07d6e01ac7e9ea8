/*
 * Storage of tensors: memory of their own, an alias, or a place in a concat. Each case is a model and the storage of
 * each tensor that a layer makes:
 *   %3=own            memory of its own
 *   %3=alias %0+64    a piece of %0's memory that begins 64 elements after its start
 *   %3=placed %5+64   written into %5's memory, 64 elements after its start
 * ", gaps" follows if there may be gaps between samples, and ", filled" for a concat that costs nothing. Tensors after
 * those of the model are copies that were inserted.
 */
#include "check.h"
#include "pass/pass.h"
#include "plan/plan.h"

static const struct test_case {
    const char *name, *text, *storage;
} cases[] = {
    {"a relu and a sigmoid are written into their concat",
     "%0 = input f32[$0,4,8] \"x\"\n%1 = relu %0\n%2 = sigmoid %0\n%3 = concat %1 %2 axis=1\n"
     "%4 = relu %3\noutput %4 \"y\"\n",
     "%1=placed %3+0, gaps; %2=placed %3+32, gaps; %3=own, filled; %4=own"},
    {"a growing chain: the largest concat owns the memory",
     "%0 = input f32[$0,4] \"x\"\n%1 = relu %0\n%2 = sigmoid %0\n%3 = concat %1 %2 axis=1\n"
     "%4 = tanh %3\n%5 = concat %1 %2 %4 axis=1\noutput %5 \"y\"\n",
     "%1=placed %5+0, gaps; %2=placed %5+4, gaps; %3=placed %5+0, gaps, filled; "
     "%4=placed %5+8, gaps; %5=own, filled"},
    {"a concat in a concat",
     "%0 = input f32[$0,4] \"x\"\n%1 = relu %0\n%2 = tanh %0\n%3 = concat %1 %2 axis=1\n"
     "%4 = sigmoid %0\n%5 = concat %4 %3 axis=1\noutput %5 \"y\"\n",
     "%1=placed %5+4, gaps; %2=placed %5+8, gaps; %3=placed %5+4, gaps, filled; "
     "%4=placed %5+0, gaps; %5=own, filled"},
    {"the caller's tensors, and one that is there twice, are copied",
     "%0 = input f32[$0,4] \"x\"\n%1 = relu %0\n%2 = concat %0 %1 %1 axis=1\noutput %2 \"y\"\n",
     "%1=placed %2+4, gaps; %2=own, filled; %3=placed %2+0, gaps; %4=placed %2+8, gaps"},
    {"a concat of columns, or of batches, is computed",
     "%0 = input f32[$0,4,8] \"x\"\n%1 = relu %0\n%2 = concat %1 %1 axis=2\noutput %2 \"y\"\n",
     "%1=own; %2=own"},
    {"a slice of channels is a piece, one of every second is not",
     "%0 = input f32[$0,8,3] \"x\"\n%1 = relu %0\n%2 = slice %1 axis=1 start=2 step=1 shape=[4]\n"
     "%3 = slice %1 axis=1 start=1 step=2 shape=[4]\n%4 = add %2 %3\noutput %4 \"y\"\n",
     "%1=own; %2=alias %1+6, gaps; %3=own; %4=own"},
    {"a slice of a slice, reshaped sample by sample",
     "%0 = input f32[$0,8,3] \"x\"\n%1 = slice %0 axis=1 start=2 step=1 shape=[4]\n"
     "%2 = slice %1 axis=1 start=1 step=1 shape=[2]\n%3 = reshape %2 shape=[$0,6]\n"
     "%4 = relu %3\noutput %4 \"y\"\n",
     "%1=alias %0+6, gaps; %2=alias %0+9, gaps; %3=alias %0+9, gaps; %4=own"},
    {"a reshape that changes the batch needs samples without gaps",
     "%0 = input f32[$0,8,3] \"x\"\n%1 = slice %0 axis=1 start=2 step=1 shape=[4]\n"
     "%2 = reshape %1 shape=[2*$0,6]\n%3 = reshape %0 shape=[2*$0,12]\n"
     "%4 = relu %2\n%5 = relu %3\noutput %4 \"y\"\noutput %5 \"z\"\n",
     "%1=alias %0+6, gaps; %2=own; %3=alias %0+0; %4=own; %5=own"},
    {"an alias is copied into a concat, not written there",
     "%0 = input f32[$0,8] \"x\"\n%1 = slice %0 axis=1 start=2 step=1 shape=[4]\n%2 = relu %0\n"
     "%3 = concat %1 %2 axis=1\noutput %3 \"y\"\n",
     "%1=alias %0+2, gaps; %2=placed %3+4, gaps; %3=own, filled; %4=placed %3+0, gaps"},
    {"a linear layer reads rows without gaps",
     "%0 = input f32[$0,8] \"x\"\n%1 = param f32[5,4] \"w\"\n"
     "%2 = slice %0 axis=1 start=2 step=1 shape=[4]\n%3 = linear %2 %1\noutput %3 \"y\"\n",
     "%2=alias %0+2, gaps; %3=own; %4=own"},
    {"outputs are memory of the caller: a slice is moved there",
     "%0 = input f32[$0,8] \"x\"\n%1 = slice %0 axis=1 start=2 step=1 shape=[4]\noutput %1 \"y\"\n",
     "%1=own"},
};

static bool takes_none(const struct layer *conv, int lanes) {
    (void)conv, (void)lanes;
    return false;
}

static void add_decision(struct text *text, const struct tensor *t, const struct storage *s) {
    static const char *const kinds[] = {"undecided", "own", "alias", "placed"};
    char offset[SIZE_TEXT];
    size_format(offset, s->offset);
    text_add(text, "%s%%%d=%s", text->size ? "; " : "", t->id, kinds[s->kind]);
    if (s->kind != STORAGE_OWN) text_add(text, " %%%d+%s", s->root->id, offset);
    text_add(text, "%s%s", s->has_batch_stride ? ", gaps" : "", s->is_filled ? ", filled" : "");
}

/* The storage of all tensors in the order of their ids, which is the order of the text. */
static const char *describe(struct arena *arena, const struct plan *plan) {
    struct text text;
    text_init(&text, arena);
    for (int id = 0; id < plan->model->n_tensors; id++)
        for (int i = 0; i < plan->model->layers.n; i++) {
            const struct layer *l = plan->model->layers.at[i];
            if (l->out[0]->id == id && l->n_in) add_decision(&text, l->out[0], &plan->storage[id]);
        }
    return text.at;
}

static void run_case(const struct test_case *test) {
    struct arena arena;
    arena_init(&arena);
    struct plan plan = {.arena = &arena, .caps = {.block = 4}, .supports_anchor = takes_none};
    char *text = arena_printf(&arena, "model \"t\" {\nsymbol $0 \"n\"\n%s}\n", test->text);
    if (!CHECK(!ir_parse(text, &arena, &plan.model))) fprintf(stderr, "%s\n", sol_error());
    else {
        CHECK(!plan_layouts(&plan));
        pass_clean(plan.model);
        CHECK(!plan_storage(&plan));
        if (!CHECK_TEXT(describe(&arena, &plan), test->storage))
            fprintf(stderr, "    (%s)\n", test->name);
    }
    arena_fini(&arena);
}

int main(void) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_case(&cases[i]);
    return check_done();
}

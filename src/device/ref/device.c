/*
 * The device `ref`: runs the user's model without optimization, layer by layer, by ref_run. Slow, but obviously correct. And
 * sol_model_evaluate, which does so without a program.
 *
 *   user's model -> emit_model: one step -> run_model -> ref_run
 *
 * The step's pointers are all inputs, parameters and outputs in their order.
 */
#include "device/device.h"
#include "device/ref/ref.h"

static const char *say_unavailable(void) { return NULL; }

/* One task: ref_run runs on one thread. */
static int64_t count_tasks(const struct step *step, const int64_t *arg) {
    (void)step, (void)arg;
    return 1;
}

static void run_model(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                      int64_t begin, int64_t end) {
    (void)scratch, (void)begin, (void)end;
    const struct model *m = step->data;
    const void *const *in = (const void *const *)ptr;
    enum sol_status status = ref_run(m, arg, in, in + m->inputs.n, ptr + m->inputs.n + m->params.n);
    if (status) exec_fail(status);
}

static enum sol_status emit_model(struct build *b, const struct model *user_model) {
    struct model *m = ir_clone(b->keep, user_model);
    int n = m->inputs.n + m->params.n + m->outputs.n, at = 0;
    struct buffer_ref *ptr = ARENA_ARRAY(b->keep, struct buffer_ref, n + 1);
    for (int i = 0; i < m->inputs.n; i++)
        ptr[at++] = (struct buffer_ref){.kind = BUFFER_INPUT, .index = i};
    for (int i = 0; i < m->params.n; i++)
        ptr[at++] = (struct buffer_ref){.kind = BUFFER_PARAM, .index = i};
    for (int i = 0; i < m->outputs.n; i++)
        ptr[at++] = (struct buffer_ref){.kind = BUFFER_OUTPUT, .index = i};
    struct size arg[SIZE_SYMBOLS];
    for (int i = 0; i < SIZE_SYMBOLS; i++) arg[i] = size_symbol(i);
    struct step step = {.run = run_model,
                        .cluster = -1,
                        .n_tasks = count_tasks,
                        .data = m,
                        .n_ptr = n,
                        .ptr = ptr,
                        .n_arg = SIZE_SYMBOLS,
                        .arg = arg,
                        .flops = size_const(0),
                        .bytes = size_const(0),
                        .name = "model",
                        .module = "ref",
                        .layers = "all"};
    VEC_PUSH(b->keep, &b->steps[FORWARD], step);
    b->steps[FORWARD].at[0].arg = arena_copy(b->keep, arg, sizeof arg);
    return SOL_OK;
}

enum sol_status sol_model_evaluate(const struct sol_model *user, const void *const *inputs,
                                   const void *const *params, void *const *outputs) {
    static const int64_t none[SIZE_SYMBOLS];
    TRY(sol_model_check(user));
    const struct model *m = ir_user_model(user);
    if (m->n_symbols) return fail(SOL_EINVAL, "a model with open sizes");
    return ref_run(m, none, inputs, params, outputs);
}

const struct device device_ref = {
    .name = "ref",
    .what = "reference interpreter: one plain function per layer",
    .unavailable = say_unavailable,
    .emit_model = emit_model,
};

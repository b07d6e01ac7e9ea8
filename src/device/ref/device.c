/*
 * The device `ref`: runs the user's model without optimization, layer by layer, by ref_run. Slow, but obviously correct. And
 * sol_model_evaluate, which does so without a program.
 *
 *   user's model -> emit_model: one step per call -> run_model -> ref_run_phase
 *
 * The step's pointers are all inputs, parameters and outputs in their order. BACKWARD computes all layers again, so all inputs are
 * saved, and copies of the parameters that FORWARD updates.
 */
#include "device/device.h"
#include "device/ref/ref.h"

static const char *say_unavailable(void) { return NULL; }

/* One task: ref_run runs on one thread. */
static int64_t count_tasks(const struct step *step, const int64_t *arg) {
    (void)step, (void)arg;
    return 1;
}

struct ref_call {
    const struct model *model;
    enum phase phase; /* N_PHASES: the model has no backward part */
};

static void run_model(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                      int64_t begin, int64_t end) {
    (void)scratch, (void)begin, (void)end;
    const struct ref_call *call = step->data;
    const struct model *m = call->model;
    const void *const *in = (const void *const *)ptr;
    enum sol_status status =
        ref_run_phase(m, call->phase, arg, in, in + m->inputs.n, ptr + m->inputs.n + m->params.n);
    if (status) exec_fail(status);
}

static const struct step_kind step_model = {
    .name = "model", .run = run_model, .n_tasks = count_tasks};

/* The pointers of a call. `state`: by param, where BACKWARD finds the values that updated ones had before FORWARD. */
static void list_pointers(const struct model *m, enum phase phase, const struct buffer_ref *state,
                          struct buffer_ref *ptr) {
    for (int i = 0; i < m->inputs.n; i++)
        if (phase == BACKWARD || m->inputs.at[i]->phase != BACKWARD)
            ptr[i] = (struct buffer_ref){.kind = BUFFER_INPUT, .index = i};
    ptr += m->inputs.n;
    for (int i = 0; i < m->params.n; i++)
        ptr[i] = phase == BACKWARD && m->params.at[i]->is_updated
                     ? state[i]
                     : (struct buffer_ref){.kind = BUFFER_PARAM, .index = i};
    ptr += m->params.n;
    for (int i = 0; i < m->outputs.n; i++)
        if (m->output_phases.at[i] == phase)
            ptr[i] = (struct buffer_ref){.kind = BUFFER_OUTPUT, .index = i};
}

static enum sol_status emit_call(struct build *b, const struct model *m, enum phase phase,
                                 const struct buffer_ref *state) {
    const int n = m->inputs.n + m->params.n + m->outputs.n;
    struct ref_call call = {m, ir_has_backward(m) ? phase : N_PHASES};
    struct buffer_ref *ptr = ARENA_ARRAY(b->arena, struct buffer_ref, n + 1);
    struct size arg[SIZE_SYMBOLS];
    for (int i = 0; i < SIZE_SYMBOLS; i++) arg[i] = size_symbol(i);
    list_pointers(m, phase, state, ptr);
    return build_step(b, phase,
                      &(struct step){.kind = &step_model,
                                     .data = arena_copy(b->keep, &call, sizeof call),
                                     .n_ptr = n,
                                     .ptr = ptr,
                                     .n_arg = SIZE_SYMBOLS,
                                     .arg = arg,
                                     .flops = size_const(0),
                                     .bytes = size_const(0),
                                     .name = "model",
                                     .module = "ref",
                                     .layers = "all"});
}

/* A copy of the parameter, made before FORWARD updates it. */
static enum sol_status emit_state(struct build *b, const struct model *m, int i,
                                  struct buffer_ref *out) {
    struct size n = size_scale(ir_elements(m->params.at[i]), size_element(m->params.at[i]->dtype));
    *out = build_temporary(b, n, "state");
    struct buffer_ref ptr[] = {{.kind = BUFFER_PARAM, .index = i}, *out};
    return build_step(b, FORWARD,
                      &(struct step){.kind = &step_update,
                                     .n_ptr = COUNT(ptr),
                                     .ptr = ptr,
                                     .n_arg = 1,
                                     .arg = &n,
                                     .flops = size_const(0),
                                     .bytes = size_scale(n, 2),
                                     .name = "copy",
                                     .module = "copy",
                                     .layers = "state"});
}

static enum sol_status emit_model(struct build *b, const struct model *user_model) {
    static const struct cluster none = {.id = -1, .phase = FORWARD};
    struct model *m = ir_clone(b->keep, user_model);
    struct buffer_ref *state = ARENA_ARRAY(b->arena, struct buffer_ref, m->params.n + 1);
    b->cluster = &none;
    for (int i = 0; i < m->params.n; i++)
        if (ir_has_backward(m) && m->params.at[i]->is_updated) TRY(emit_state(b, m, i, &state[i]));
    TRY(emit_call(b, m, FORWARD, state));
    if (ir_has_backward(m)) TRY(emit_call(b, m, BACKWARD, state));
    b->cluster = NULL;
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

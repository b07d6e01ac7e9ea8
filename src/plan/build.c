/*
 * From clusters to steps: buffers for tensors, lifetimes of slots, and the finished program.
 *
 *   device->emit -> build_ref, build_step -> [this file] -> build_finish -> struct sol_program
 *
 * A root tensor lies in a buffer of the caller (input, parameter, output) or in a slot. At the end, the phases that use a slot
 * decide whose memory it is. One phase: its arena, as of a folded weight, which is needed only until it is packed. Several, and a
 * phase of prepack writes it: the packed parameters. FORWARD and BACKWARD: the saved values. A slot of an arena lives from the first
 * step that uses it to the last; a use of a view is a use of its root.
 */
#include "plan/build.h"

#include <string.h>

static int index_of(struct tensor *const *at, int n, const struct tensor *t) {
    for (int i = 0; i < n; i++)
        if (at[i] == t) return i;
    return -1;
}

void build_init(struct build *b) {
    b->where = ARENA_ARRAY(b->arena, struct buffer_ref, b->plan->model->n_tensors);
    text_init(&b->report, b->keep);
}

void build_begin(struct build *b, const struct cluster *cluster) {
    b->cluster = cluster;
    plan_report(b);
}

static struct buffer_ref add_slot(struct build *b, struct size size, bool is_packed,
                                  const char *name) {
    struct build_slot slot = {.size = size, .name = name, .is_packed = is_packed};
    for (int phase = 0; phase < N_PHASES; phase++) slot.first[phase] = -1;
    VEC_PUSH(b->arena, &b->slots, slot);
    return (struct buffer_ref){.kind = BUFFER_ARENA, .index = b->slots.n - 1};
}

/* The buffer of a root tensor; called once per root. */
static struct buffer_ref make_buffer(struct build *b, const struct tensor *root) {
    const struct model *m = b->plan->model;
    int output = index_of(m->outputs.at, m->outputs.n, root);
    if (root->producer->kind == LAYER_input)
        return (struct buffer_ref){.kind = BUFFER_INPUT,
                                   .index = index_of(m->inputs.at, m->inputs.n, root)};
    if (root->producer->kind == LAYER_param)
        return (struct buffer_ref){.kind = BUFFER_PARAM,
                                   .index = index_of(m->params.at, m->params.n, root)};
    if (output >= 0) return (struct buffer_ref){.kind = BUFFER_OUTPUT, .index = output};
    const struct cluster *maker = b->plan->maker[root->id];
    return add_slot(b, size_scale(layout_elements(root), size_element(root->dtype)),
                    maker && phase_is_prepack(maker->phase), "intermediate");
}

/* A view lies in its root's buffer, at an offset, and has its element type. */
struct buffer_ref build_ref(struct build *b, const struct tensor *t) {
    if (!t) return (struct buffer_ref){.kind = BUFFER_NONE};
    const struct storage *s = &b->plan->storage[t->id];
    struct buffer_ref *root = &b->where[s->root->id];
    if (root->kind == BUFFER_NONE) {
        *root = make_buffer(b, s->root);
        struct size stride =
            size_scale(b->plan->storage[s->root->id].stride[0], size_element(s->root->dtype));
        if (plan_is_batch_major(s->root))
            root->sample_stride = arena_copy(b->keep, &stride, sizeof stride);
    }
    struct buffer_ref ref = *root;
    ref.offset = size_scale(s->offset, size_element(t->dtype));
    return ref;
}

struct buffer_ref build_packed(struct build *b, int64_t size, const char *name) {
    return add_slot(b, size_const(size), true, arena_strdup(b->keep, name));
}

struct buffer_ref build_constant(struct build *b, const void *at, size_t size) {
    const struct constant constant = {arena_copy(b->keep, at, size), size};
    VEC_PUSH(b->keep, &b->constants, constant);
    return (struct buffer_ref){.kind = BUFFER_CONSTANT, .index = b->constants.n - 1};
}

struct buffer_ref build_temporary(struct build *b, struct size size, const char *name) {
    return add_slot(b, size, phase_is_prepack(b->cluster->phase), arena_strdup(b->keep, name));
}

static bool uses_call(const struct build *b, const struct step *step) {
    for (int i = 0; i < step->n_ptr; i++) {
        const struct buffer_ref *ref = &step->ptr[i];
        if (ref->kind == BUFFER_INPUT || ref->kind == BUFFER_OUTPUT) return true;
        if (ref->kind == BUFFER_ARENA && !b->slots.at[ref->index].is_packed) return true;
    }
    return false;
}

/* Does it read or write samples of the batch? Packing does not, also where it runs in each call. */
static bool has_samples(const struct step *step) {
    for (int i = 0; i < step->n_ptr; i++)
        if (step->ptr[i].sample_stride) return true;
    return false;
}

/* Extends the lifetimes of the slots that step `at` of the phase uses to this step. */
static void touch_slots(struct build *b, enum phase phase, const struct step *step, int at) {
    for (int i = 0; i < step->n_ptr; i++) {
        if (step->ptr[i].kind != BUFFER_ARENA) continue;
        struct build_slot *slot = &b->slots.at[step->ptr[i].index];
        if (slot->first[phase] < 0) slot->first[phase] = at;
        slot->last[phase] = at;
    }
}

enum sol_status build_step(struct build *b, enum phase phase, const struct step *step) {
    if (phase_is_prepack(phase) && uses_call(b, step))
        return fail(SOL_EBUG, "%s of %s runs once but uses memory of a call", step->name,
                    step->layers);
    struct step copy = *step;
    if (b->convert) TRY(b->convert(b, &copy));
    copy.ptr = arena_copy(b->keep, copy.ptr, sizeof *copy.ptr * (size_t)copy.n_ptr);
    copy.arg = arena_copy(b->keep, copy.arg, sizeof *copy.arg * (size_t)copy.n_arg);
    copy.name = arena_strdup(b->keep, step->name);
    copy.by_sample = b->cluster->by_sample && has_samples(step);
    copy.cluster = b->cluster->id;
    if (b->report.at && !phase_is_prepack(phase))
        copy.choice = arena_strdup(b->keep, b->report.at + b->cluster_begin);
    touch_slots(b, phase, step, b->steps[phase].n);
    VEC_PUSH(b->keep, &b->steps[phase], copy);
    return SOL_OK;
}

const char *build_kind_name(const struct model *m, const struct layer *l) {
    return l->kind == LAYER_host ? m->hosts.at[l->attr.host].name : layer_infos[l->kind].name;
}

const char *build_describe(struct build *b, const struct cluster *cluster) {
    struct text text;
    if (b->described == cluster) return b->description;
    text_init(&text, b->keep);
    for (int i = 0; i < cluster->layers.n; i++) {
        if (i) text_add(&text, "+");
        text_add_clean(&text, build_kind_name(b->plan->model, cluster->layers.at[i]));
    }
    const struct layer *last = cluster->layers.at[cluster->layers.n - 1];
    if (last->origin) {
        text_add(&text, " (");
        text_add_clean(&text, last->origin);
        text_add(&text, ")");
    }
    b->described = cluster;
    return b->description = text.at;
}

static struct size count_bytes(const struct tensor *t) {
    return size_scale(ir_elements(t), size_element(t->dtype));
}

/* A gather reads as much of its table as it writes. */
struct size build_bytes(const struct cluster *cluster) {
    struct size n = size_const(0);
    bool reads_part = cluster->layers.n && cluster->layers.at[0]->kind == LAYER_gather;
    for (int i = 0; i < cluster->inputs.n; i++)
        n = size_add(n, count_bytes(reads_part ? cluster->outputs.at[0] : cluster->inputs.at[i]));
    for (int i = 0; i < cluster->outputs.n; i++)
        n = size_add(n, count_bytes(cluster->outputs.at[i]));
    return n;
}

enum sol_status build_movement(struct build *b, const struct cluster *cluster, struct step step) {
    step.flops = size_const(0);
    step.bytes = build_bytes(cluster);
    step.layers = build_describe(b, cluster);
    step.module = step.name;
    return build_step(b, cluster->phase, &step);
}

/* ---- Module COPY ---- */

static enum sol_status make_movement(struct build *b, const struct cluster *cluster,
                                     struct movement *m) {
    struct copy_table *table = ARENA_NEW(b->keep, struct copy_table);
    *m = (struct movement){.cluster = cluster, .table = table};
    TRY(movement_table(b->arena, cluster->layers.at, cluster->layers.n, table, &m->batch,
                       &m->pixels));
    const int64_t n = (int64_t)table->n_outer * table->lanes,
                  numbers = copy_form_numbers(&table->form);
    if (table->form.number)
        table->form.number =
            arena_copy(b->keep, table->form.number, (size_t)numbers * sizeof(int32_t));
    else table->base = arena_copy(b->keep, table->base, (size_t)n * sizeof *table->base);
    return SOL_OK;
}

/* Blocks of a network repeat their movements, and making a table takes as long as many copies. */
static enum sol_status find_movement(struct build *b, const struct cluster *cluster,
                                     struct movement *m) {
    for (int i = 0; i < b->movements.n; i++) {
        *m = b->movements.at[i];
        if (movement_equal(m->cluster, cluster)) return SOL_OK;
    }
    TRY(make_movement(b, cluster, m));
    VEC_PUSH(b->arena, &b->movements, *m);
    return SOL_OK;
}

enum sol_status build_copy(struct build *b, const struct cluster *cluster) {
    const struct tensor *in = cluster->layers.at[0]->in[0],
                        *out = cluster->layers.at[cluster->layers.n - 1]->out[0];
    struct movement m;
    TRY(find_movement(b, cluster, &m));
    struct buffer_ref ptr[] = {build_ref(b, in), build_ref(b, out)};
    struct size arg[] = {m.batch, in->rank ? b->plan->storage[in->id].stride[0] : size_const(0),
                         out->rank ? b->plan->storage[out->id].stride[0] : size_const(0), m.pixels};
    const bool is_open = m.table->in_lanes > 0;
    return build_movement(b, cluster,
                          (struct step){.kind = &step_copy,
                                        .is_open = is_open,
                                        .data = m.table,
                                        .n_ptr = COUNT(ptr),
                                        .ptr = ptr,
                                        .n_arg = is_open ? COUNT(arg) : COPY_PIXELS,
                                        .arg = arg,
                                        .name = "copy"});
}

/* ---- Updates ---- */

static enum sol_status add_update(struct build *b, const struct update *u) {
    const struct cluster none = {.id = -1};
    struct size n = size_scale(ir_elements(u->param), size_element(u->param->dtype));
    struct buffer_ref ptr[] = {build_ref(b, u->value), build_ref(b, u->param)};
    struct text name;
    text_init(&name, b->keep);
    text_add(&name, "update of ");
    text_add_clean(&name, u->param->name);
    text_add(&b->report, "%s\n", name.at);
    b->cluster = &none;
    b->cluster_begin = b->report.size;
    return build_step(b, FORWARD,
                      &(struct step){.kind = &step_update,
                                     .n_ptr = COUNT(ptr),
                                     .ptr = ptr,
                                     .n_arg = 1,
                                     .arg = &n,
                                     .flops = size_const(0),
                                     .bytes = size_scale(n, 2),
                                     .name = "update",
                                     .module = "copy",
                                     .layers = name.at});
}

enum sol_status build_updates(struct build *b) {
    for (int i = 0; i < b->plan->model->updates.n; i++)
        TRY(add_update(b, &b->plan->model->updates.at[i]));
    b->cluster = NULL;
    return SOL_OK;
}

/* ---- Finishing ---- */

static struct sol_port make_port(struct build *b, const struct tensor *t, const char *name) {
    struct sol_port port = {.name = arena_strdup(b->keep, name ? name : ""),
                            .dtype = t->dtype,
                            .rank = t->rank,
                            .is_updated = t->is_updated};
    ir_show_dims(t, port.dim);
    return port;
}

static struct sol_port *make_ports(struct build *b, int n, struct tensor *const *at,
                                   const char *const *names) {
    struct sol_port *ports = ARENA_ARRAY(b->keep, struct sol_port, n + 1);
    for (int i = 0; i < n; i++) ports[i] = make_port(b, at[i], names ? names[i] : at[i]->name);
    return ports;
}

static struct size (*make_dims(struct build *b, int n, struct tensor *const *at))[SOL_MAX_RANK] {
    struct size(*dims)[SOL_MAX_RANK] = arena_alloc(b->keep, sizeof *dims * (size_t)(n + 1));
    for (int i = 0; i < n; i++) memcpy(dims[i], at[i]->dim, sizeof dims[i]);
    return dims;
}

/* Marks the ports of FORWARD that steps of BACKWARD use. */
static void find_saved_ports(struct sol_program *p) {
    const struct step_list *list = &p->phase[BACKWARD];
    for (int i = 0; i < list->n; i++)
        for (int k = 0; k < list->at[i].n_ptr; k++) {
            const struct buffer_ref *ref = &list->at[i].ptr[k];
            struct sol_port *port = ref->kind == BUFFER_INPUT    ? &p->input[ref->index]
                                    : ref->kind == BUFFER_OUTPUT ? &p->output[ref->index]
                                                                 : NULL;
            if (port) port->is_saved = !port->is_backward;
        }
}

static void finish_ports(struct build *b, const struct model *m) {
    struct sol_program *p = b->program;
    p->n_symbols = m->n_symbols;
    p->n_inputs = m->inputs.n;
    p->n_params = m->params.n;
    p->n_outputs = m->outputs.n;
    p->input = make_ports(b, m->inputs.n, m->inputs.at, NULL);
    p->param = make_ports(b, m->params.n, m->params.at, NULL);
    p->output = make_ports(b, m->outputs.n, m->outputs.at, m->output_names.at);
    p->input_dim = make_dims(b, m->inputs.n, m->inputs.at);
    p->output_dim = make_dims(b, m->outputs.n, m->outputs.at);
    for (int i = 0; i < m->inputs.n; i++)
        p->input[i].is_backward = m->inputs.at[i]->phase == BACKWARD;
    for (int i = 0; i < m->outputs.n; i++)
        p->output[i].is_backward = m->output_phases.at[i] == BACKWARD;
    find_saved_ports(p);
}

/* The program's slots: those of each phase's arena, packed and saved ones. */
enum { SLOTS_PACKED = N_PHASES, SLOTS_SAVED, N_SLOTS };
struct slots {
    VEC(struct slot) of[N_SLOTS];
};

/* The only phase that uses the slot; N_PHASES if several do, FORWARD if none does. */
static enum phase find_user(const struct build_slot *slot) {
    int n = 0;
    enum phase user = FORWARD;
    for (enum phase phase = 0; phase < N_PHASES; phase++)
        if (slot->first[phase] >= 0) n++, user = phase;
    return n > 1 ? N_PHASES : user;
}

static void settle_slot(struct build *b, struct build_slot *slot, struct slots *to) {
    const enum phase user = find_user(slot);
    struct slot settled = {.size = slot->size, .first = -1, .name = slot->name};
    int list = slot->is_packed ? SLOTS_PACKED : SLOTS_SAVED;
    slot->at.kind = slot->is_packed ? BUFFER_PACKED : BUFFER_SAVED;
    if (user < N_PHASES) {
        list = (int)user;
        slot->at.kind = BUFFER_ARENA;
        settled.first = slot->first[user], settled.last = slot->last[user];
    }
    slot->at.index = to->of[list].n;
    VEC_PUSH(b->keep, &to->of[list], settled);
}

static void settle_pointers(struct build *b, enum phase phase) {
    for (int i = 0; i < b->steps[phase].n; i++) {
        struct step *step = &b->steps[phase].at[i];
        for (int p = 0; p < step->n_ptr; p++) {
            struct buffer_ref *ref = &step->ptr[p];
            if (ref->kind != BUFFER_ARENA) continue;
            const struct buffer_ref at = b->slots.at[ref->index].at;
            ref->kind = at.kind, ref->index = at.index;
        }
    }
}

/* Decides where each slot lies, and fills in the program's lists of steps and slots. */
static void settle(struct build *b) {
    struct sol_program *p = b->program;
    struct slots slots = {0};
    for (int i = 0; i < b->slots.n; i++) settle_slot(b, &b->slots.at[i], &slots);
    for (enum phase phase = 0; phase < N_PHASES; phase++) {
        settle_pointers(b, phase);
        p->phase[phase] = (struct step_list){b->steps[phase].n, b->steps[phase].at,
                                             slots.of[phase].n, slots.of[phase].at};
    }
    p->n_packed = slots.of[SLOTS_PACKED].n, p->packed = slots.of[SLOTS_PACKED].at;
    p->n_saved = slots.of[SLOTS_SAVED].n, p->saved = slots.of[SLOTS_SAVED].at;
    p->n_constants = b->constants.n, p->constant = b->constants.at;
}

/* Derived symbols are those of the optimized model, which has the user's and may have more. */
static void finish_formulas(struct build *b, const struct model *user_model) {
    struct formulas *f = &b->program->formulas;
    const struct model *m = b->plan->model ? b->plan->model : user_model;
    const struct size_table *quotients = &m->quotients;
    f->n_quotients = quotients->n;
    f->quotient = arena_copy(b->keep, quotients->at, sizeof *quotients->at * (size_t)quotients->n);
    f->condition = ir_conditions(b->keep, user_model, &f->n_conditions);
}

/* The program's ports are those of the user's model: in the optimized one, passes may have removed unused parameters. */
enum sol_status build_finish(struct build *b, const struct model *user_model) {
    struct sol_program *p = b->program;
    settle(b);
    TRY(build_hosts(b, user_model));
    finish_ports(b, user_model);
    finish_formulas(b, user_model);
    p->name = arena_strdup(b->keep, user_model->name);
    p->is_timed = env_has(ENV_SOL_DEBUG, "time");
    p->report = b->report.at ? b->report.at : "";
    return SOL_OK;
}

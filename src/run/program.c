/*
 * Programs: allocation, reference counts, and the functions of the run API that describe a program.
 */
#include "run/program.h"

#include "run/bind.h"
#include "run/pool.h"
#include "run/request.h"

#include <sol/sol.h>
#include <string.h>

/* Bytes of the host's memory that name what a far device has saved. */
#define SAVED_NAME 64

/* References are held by the caller of sol_compile and by each struct sol_weights of the program. */
struct sol_program *program_new(void) {
    struct sol_program *program = mem_alloc(sizeof *program, 64);
    if (!program) return NULL;
    atomic_init(&program->n_refs, 1);
    arena_init(&program->arena);
    lock_init(&program->lock);
    return program;
}

void sol_program_retain(struct sol_program *program) { atomic_fetch_add(&program->n_refs, 1); }

void sol_program_release(struct sol_program *program) {
    if (!program || atomic_fetch_sub(&program->n_refs, 1) > 1) return;
    for (struct binding *b = program->bindings, *next; b; b = next) {
        next = b->next;
        binding_free(b);
    }
    if (program->runner) program->runner->release(program);
    if (program->code) program->release_code(program->code);
    if (program->hosts) program->release_hosts(program->hosts);
    lock_fini(&program->lock);
    arena_fini(&program->arena);
    mem_free(program);
}

int sol_program_n_inputs(const struct sol_program *program) { return program->n_inputs; }
int sol_program_n_params(const struct sol_program *program) { return program->n_params; }
int sol_program_n_outputs(const struct sol_program *program) { return program->n_outputs; }
int sol_program_n_symbols(const struct sol_program *program) { return program->n_symbols; }

static const struct sol_port *find_port(const struct sol_port *port, int n, int i) {
    return i >= 0 && i < n ? &port[i] : NULL;
}
const struct sol_port *sol_program_input(const struct sol_program *program, int i) {
    return find_port(program->input, program->n_inputs, i);
}
const struct sol_port *sol_program_param(const struct sol_program *program, int i) {
    return find_port(program->param, program->n_params, i);
}
const struct sol_port *sol_program_output(const struct sol_program *program, int i) {
    return find_port(program->output, program->n_outputs, i);
}

/* A negative dim means that a symbol is negative: other calls that would make one do not fulfil a condition. */
enum sol_status sol_program_output_shape(const struct sol_program *program, int i,
                                         const int64_t *symbols, int64_t dim[SOL_MAX_RANK]) {
    if (i < 0 || i >= program->n_outputs) return fail(SOL_EINVAL, "program has no output %d", i);
    int64_t all[SIZE_SYMBOLS];
    formulas_derive(&program->formulas, symbols, program->n_symbols, all);
    TRY(formulas_check(&program->formulas, all));
    for (int d = 0; d < program->output[i].rank; d++) {
        dim[d] = size_eval(&program->output_dim[i][d], all);
        if (dim[d] < 0)
            return fail(SOL_EINVAL, "output %s: dim %d would be %lld", program->output[i].name, d,
                        (long long)dim[d]);
    }
    return SOL_OK;
}

size_t program_port_size(const struct sol_program *p, bool is_output, int i,
                         const int64_t *symbols) {
    const struct sol_port *port = is_output ? &p->output[i] : &p->input[i];
    const struct size *dim = is_output ? p->output_dim[i] : p->input_dim[i];
    size_t size = (size_t)size_element(port->dtype);
    for (int d = 0; d < port->rank; d++) size *= (size_t)size_eval(&dim[d], symbols);
    return size;
}

enum sol_status program_place_saved(const struct sol_program *program, const int64_t *symbols,
                                    int64_t *offset, int64_t *out) {
    *out = 0;
    for (int i = 0; i < program->n_saved; i++) {
        const int64_t size = size_eval(&program->saved[i].size, symbols);
        if (size < 0 || size > INT64_MAX / 4 || *out > INT64_MAX / 4)
            return fail(SOL_EINVAL,
                        "the values that a backward call needs would take too many bytes");
        if (offset) offset[i] = *out;
        *out += round_up(size, 64);
    }
    return SOL_OK;
}

/* The bytes of all saved values, wherever they are. */
static enum sol_status measure_saved(const struct sol_program *program, const int64_t *symbols,
                                     size_t *out) {
    int64_t all[SIZE_SYMBOLS];
    TRY(request_check_symbols(program, symbols));
    formulas_derive(&program->formulas, symbols, program->n_symbols, all);
    TRY(formulas_check(&program->formulas, all));
    int64_t size;
    TRY(program_place_saved(program, all, NULL, &size));
    *out = (size_t)size;
    return SOL_OK;
}

/* On a far device, the caller's memory is only a name: far_saved.c. */
enum sol_status sol_program_saved_size(const struct sol_program *program, const int64_t *symbols,
                                       size_t *out) {
    TRY(measure_saved(program, symbols, out));
    if (program->runner && *out) *out = SAVED_NAME;
    return SOL_OK;
}

void sol_program_saved_free(const struct sol_program *program, void *saved) {
    if (program->runner && saved) program->runner->free_saved(program, saved);
}

void sol_program_transfers(const struct sol_program *program, struct sol_transfers *out) {
    *out = (struct sol_transfers){0};
    if (program->runner) program->runner->count(program, out);
}

/* Includes bytes that are shared with other programs. */
size_t sol_program_weights_size(const struct sol_program *program) {
    return weights_place(program, NULL);
}

/* The most bytes that are alive at one step: a lower bound of any placement. Takes steps x slots operations, which is cheap
 * enough for a function that only reports call. */
static size_t count_live(const struct step_list *list, const struct binding *binding) {
    int64_t max = 0;
    for (int at = 0; at < list->n; at++) max = max_i64(max, binding_live(binding, list, at));
    return (size_t)max;
}

/* Uses a temporary binding, so that the cache keeps the bindings of calls. */
static enum sol_status measure_call(const struct sol_program *program, enum phase phase,
                                    const int64_t *symbols, size_t *arena, size_t *live,
                                    size_t *scratch) {
    struct binding *binding;
    TRY(binding_new(program, phase, symbols, &binding));
    *arena = binding->arena_size;
    *live = count_live(&program->phase[phase], binding);
    *scratch = binding->scratch_size * (size_t)pool_threads();
    binding_free(binding);
    return SOL_OK;
}

enum sol_status sol_program_memory(const struct sol_program *program, const int64_t *symbols,
                                   struct sol_memory *out) {
    struct sol_memory m = {.weights = sol_program_weights_size(program),
                           .constants = sizeof *program + arena_size(&program->arena)};
    TRY(measure_call(program, FORWARD, symbols, &m.arena, &m.live, &m.scratch));
    if (program->phase[BACKWARD].n) {
        TRY(measure_saved(program, symbols, &m.saved));
        TRY(measure_call(program, BACKWARD, symbols, &m.backward_arena, &m.backward_live,
                         &m.backward_scratch));
    }
    *out = m;
    return SOL_OK;
}

/* 0 with a message if the binding cannot be made. */
size_t sol_program_arena_size(const struct sol_program *program, const int64_t *symbols) {
    struct sol_memory memory;
    if (sol_program_memory(program, symbols, &memory)) return 0;
    return memory.arena + memory.scratch + memory.backward_arena + memory.backward_scratch;
}

int sol_program_n_compiled(const struct sol_program *program) { return program->n_compiled; }
double sol_program_compiler_seconds(const struct sol_program *program) {
    return program->compiler_s;
}
const char *sol_program_report(const struct sol_program *program) {
    return program->report ? program->report : "";
}
/* Devices with `emit_model` have no clusters: their graph is empty. */
char *sol_program_dot(const struct sol_program *program) {
    return strdup(program->dot ? program->dot : "digraph model {}\n");
}

void sol_set_threads(int n) { pool_set_threads(n); }
int sol_threads(void) { return pool_threads(); }

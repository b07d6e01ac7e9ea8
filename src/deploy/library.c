/*
 * The functions that the interface of a deployed library calls: opening its weights, contexts, calls.
 *
 * The weights are opened once per process; all contexts share them, and they stay until the process ends. So a context is cheap.
 * Calls with different contexts, or with the same one, may overlap.
 */
#include "deploy/library.h"

#include "deploy/weights_hash.h"
#include "run/far.h"
#include "run/pool.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct library_context {
    const struct sol_weights *weights;
};

/* Protects `mapped`, `shared` and `is_expanded` while they are set, once per process; a fork waits for it. */
static struct lock lock = LOCK_INITIALIZER;
static const char *mapped; /* the weights of the file, after it was checked */
static struct sol_weights *shared;
static bool is_expanded;                        /* the program has its steps */
static _Atomic(struct library_context *) first; /* the default context of `predict` */

/* Clears the message after success, since functions may have set one on the way. */
static enum sol_status done(enum sol_status status) {
    return status ? status : fail(SOL_OK, "%s", "");
}

/* ---- The file of weights ---- */

/* The path of the file: in the folder of the library, or of the program that it is linked into. */
static void find_file(char *out, size_t size) {
    Dl_info info = {0};
    const char *from = dladdr(&this_library, &info) && info.dli_fname ? info.dli_fname : "";
    const char *end = strrchr(from, '/');
    int folder = end ? (int)(end - from) + 1 : 0;
    (void)snprintf(out, size, "%.*s%s", folder, from, this_library.file);
}

/* Checks that the file is complete, undamaged and of this network; otherwise results would be wrong without an error. */
static enum sol_status check_content(const char *path, const char *at, size_t size) {
    const struct library_file *head = (const void *)at, *expect = &this_library.expect;
    struct weights_hash hash = {0};
    size_t zeros = sizeof *head;
    while (zeros < LIBRARY_FILE_HEAD && !at[zeros]) zeros++;
    if (memcmp(head->magic, LIBRARY_MAGIC, sizeof head->magic))
        return fail(SOL_EINVAL, "%s holds no weights of a library", path);
    if (head->hash != expect->hash || head->size != expect->size)
        return fail(SOL_EINVAL, "%s holds the weights of another network", path);
    if (size - LIBRARY_FILE_HEAD != expect->size)
        return fail(SOL_EINVAL, "%s holds %zu bytes of weights, not %llu: it is damaged", path,
                    size - LIBRARY_FILE_HEAD, (unsigned long long)expect->size);
    weights_hash_add(&hash, at + LIBRARY_FILE_HEAD, size - LIBRARY_FILE_HEAD);
    if (weights_hash_end(&hash) != expect->hash || zeros < LIBRARY_FILE_HEAD)
        return fail(SOL_EINVAL, "%s is damaged: its weights are not those of this library", path);
    return SOL_OK;
}

static enum sol_status map_open(int fd, const char *path, const char **out) {
    struct stat file;
    if (fstat(fd, &file) || !S_ISREG(file.st_mode))
        return fail(SOL_EINVAL, "%s holds no weights: it is no regular file", path);
    if (file.st_size < LIBRARY_FILE_HEAD)
        return fail(SOL_EINVAL, "%s holds no weights of a library", path);
    const size_t size = (size_t)file.st_size;
    char *at = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED) return fail(SOL_ENOMEM, "cannot map %s", path);
    enum sol_status status = check_content(path, at, size);
    if (status) munmap(at, size);
    else *out = at + LIBRARY_FILE_HEAD;
    return status;
}

/* O_NONBLOCK: a pipe is refused instead of waiting for a writer. */
static enum sol_status map_file(const char *path, const char **out) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return fail(SOL_EINVAL, "cannot open %s, which holds the weights: %s", path,
                    strerror(errno));
    enum sol_status status = map_open(fd, path, out);
    close(fd);
    return status;
}

static enum sol_status find_weights(const char *path, const char **out) {
    char beside[4096];
    *out = this_library.weights;
    if (*out) return SOL_OK;
    if (!path) find_file(beside, sizeof beside);
    if (!mapped) TRY(map_file(path ? path : beside, &mapped));
    *out = mapped;
    return SOL_OK;
}

/* ---- The steps ---- */

/* *ptr and *arg point to the entries of this step, and are advanced to those of the next one. */
static bool expand_step(struct step *to, const struct library_step *from,
                        const struct library_ref **ptr, const uint32_t **arg) {
    to->ptr = mem_alloc(sizeof *to->ptr * (from->n_ptr + 1u), 16);
    to->arg = mem_alloc(sizeof *to->arg * (from->n_arg + 1u), 16);
    if (!to->ptr || !to->arg) return false;
    to->name = to->layers = "a step";
    to->kind = from->kind, to->data = from->data;
    to->by_sample = from->by_sample, to->is_open = from->is_open;
    to->n_ptr = (int)from->n_ptr, to->n_arg = (int)from->n_arg;
    to->scratch_size = from->scratch_size, to->bytes = this_library.size[from->bytes];
    for (uint32_t i = 0; i < from->n_ptr; i++, ++*ptr) {
        const uint32_t stride = (*ptr)->sample_stride;
        to->ptr[i] = (struct buffer_ref){(enum buffer_kind)(*ptr)->kind, (*ptr)->index,
                                         this_library.size[(*ptr)->offset],
                                         stride ? &this_library.size[stride] : NULL};
    }
    for (uint32_t i = 0; i < from->n_arg; i++) to->arg[i] = this_library.size[*(*arg)++];
    return true;
}

static struct slot *expand_slots(const struct library_slot *from, int n) {
    struct slot *to = mem_alloc(sizeof *to * (size_t)(n + 1), 16);
    for (int i = 0; to && i < n; i++)
        to[i] =
            (struct slot){this_library.size[from[i].size], from[i].first, from[i].last, "a buffer"};
    return to;
}

/* When memory is out, the memory that was allocated so far is not freed, which is little. Opening again begins from the start. */
static enum sol_status expand_list(struct step_list *to, const struct library_list *from) {
    const struct library_ref *ptr = from->ptr;
    const uint32_t *arg = from->arg;
    *to = (struct step_list){from->n_steps, NULL, from->n_slots, NULL};
    to->at = mem_alloc(sizeof *to->at * (size_t)(from->n_steps + 1), 16);
    to->slot = expand_slots(from->slot, from->n_slots);
    bool ok = to->at && to->slot;
    for (int i = 0; ok && i < from->n_steps; i++)
        ok = expand_step(&to->at[i], &from->step[i], &ptr, &arg);
    return ok ? SOL_OK : fail(SOL_ENOMEM, "no memory for a network of %d steps", from->n_steps);
}

static enum sol_status expand_program(void) {
    struct sol_program *program = this_library.program;
    if (is_expanded) return SOL_OK; /* an earlier opening failed later */
    program->n_packed = this_library.n_packed;
    program->packed = expand_slots(this_library.packed, this_library.n_packed);
    if (!program->packed) return fail(SOL_ENOMEM, "no memory for a network");
    TRY(expand_list(&program->phase[PREPACK], &this_library.prepack));
    TRY(expand_list(&program->phase[FORWARD], &this_library.steps));
    is_expanded = true;
    return SOL_OK;
}

/* ---- Opening ---- */

/* Makes weights of packed parameters, which the host uses in place: nothing is computed or copied. A far device copies them. */
static enum sol_status place_packed(const void *const *param, const char *packed, size_t *offset,
                                    char **slot, struct sol_weights *out) {
    const struct sol_program *program = this_library.program;
    weights_place(program, offset);
    for (int i = 0; i < program->n_packed; i++) slot[i] = (char *)(uintptr_t)packed + offset[i];
    *out = (struct sol_weights){1,
                                program,
                                (const void **)(uintptr_t)param,
                                {.n = program->n_packed, .offset = offset, .slot = slot}};
    return program->runner ? program->runner->adopt(out) : SOL_OK;
}

static enum sol_status adopt_packed(const void *const *param, const char *packed) {
    const size_t n = (size_t)this_library.program->n_packed;
    struct sol_weights *w = mem_alloc(sizeof *w, 64);
    size_t *offset = mem_alloc(sizeof *offset * (n + 1), 16);
    char **slot = mem_alloc(sizeof *slot * (n + 1), 16);
    enum sol_status status = w && offset && slot ? place_packed(param, packed, offset, slot, w)
                                                 : fail(SOL_ENOMEM, "no memory for weights");
    if (!status) {
        shared = w;
        return SOL_OK;
    }
    mem_free(w);
    mem_free(offset);
    mem_free(slot);
    return status;
}

/* Called once per process, under the lock: checks the processor, finds the weights, expands the steps, and packs the parameters
 * unless the library has packed ones. */
static enum sol_status open_weights(const char *path) {
    const struct sol_program *program = this_library.program;
    const char *weights, *refusal = this_library.refuse();
    if (refusal) return fail(SOL_EUNSUPPORTED, "this library needs a processor with %s", refusal);
    TRY(find_weights(path, &weights));
    TRY(expand_program());
    /* adopt_packed keeps this list; sol_weights_new copies it. */
    const void **param = mem_alloc(sizeof *param * (size_t)(program->n_params + 1), 16);
    if (!param) return fail(SOL_ENOMEM, "no memory for %d parameters", program->n_params);
    for (int i = 0; i < program->n_params; i++)
        param[i] = weights + (this_library.param[i] < 0 ? 0 : this_library.param[i]);
    enum sol_status status = this_library.is_packed ? adopt_packed(param, weights)
                                                    : sol_weights_new(program, param, &shared);
    if (status || !this_library.is_packed) mem_free(param);
    return status;
}

enum sol_status library_open(const char *path, struct library_context **out) {
    if (!out) return fail(SOL_EINVAL, "the pointer to the new context is NULL");
    struct library_context *context = NULL;
    *out = NULL;
    lock_acquire(&lock);
    enum sol_status status = shared ? SOL_OK : open_weights(path);
    if (!status && !(context = mem_alloc(sizeof *context, 16)))
        status = fail(SOL_ENOMEM, "no memory for a context");
    if (context) context->weights = shared;
    lock_release(&lock);
    *out = context;
    return done(status);
}

void library_close(struct library_context *context) {
    mem_free(context);
    (void)done(SOL_OK);
}

/* ---- Calls ---- */

enum sol_status library_run(struct library_context *context, const int64_t *symbols,
                            const void *const *inputs, void *const *outputs) {
    if (!context) return fail(SOL_EINVAL, "no context");
    if (!inputs || !outputs) return fail(SOL_EINVAL, "the list of inputs or outputs is NULL");
    return done(sol_program_run(this_library.program, context->weights,
                                symbols ? symbols : this_library.symbols, inputs, outputs));
}

static int input_shape(const struct sol_port *port, int i, const int64_t *symbols, int64_t *dim) {
    for (int d = 0; d < port->rank; d++) {
        dim[d] = port->dim[d] < 0 ? symbols[-1 - port->dim[d]] : port->dim[d];
        if (dim[d] < 0)
            return (void)fail(SOL_EINVAL, "input %d: dim %d would be %lld", i, d,
                              (long long)dim[d]),
                   -1;
    }
    return port->rank;
}

int library_shape(bool is_output, int i, const int64_t *symbols, int64_t *dim) {
    const struct sol_program *p = this_library.program;
    const struct sol_port *port = is_output ? sol_program_output(p, i) : sol_program_input(p, i);
    if (!symbols) symbols = this_library.symbols;
    if (!port)
        return (void)fail(SOL_EINVAL, "there is no %s %d", is_output ? "output" : "input", i), -1;
    (void)done(SOL_OK);
    if (!is_output) return input_shape(port, i, symbols, dim);
    return sol_program_output_shape(p, i, symbols, dim) ? -1 : port->rank;
}

/* Allocates with malloc, since the caller frees it; never 0 bytes. */
static void *new_output(int i) {
    int64_t dim[SOL_MAX_RANK];
    int rank = library_shape(true, i, NULL, dim);
    size_t size = (size_t)size_element(this_library.program->output[i].dtype);
    for (int d = 0; d < rank; d++) size *= (size_t)dim[d];
    void *memory = malloc(size + 1);
    if (!memory) (void)fail(SOL_ENOMEM, "no memory for output %d of %zu bytes", i, size);
    return memory;
}

/* The default context. Two threads may open one at the same time; then one is kept, and the other is closed. */
static struct library_context *open_first(void) {
    struct library_context *context = atomic_load(&first), *none = NULL;
    if (context || library_open(NULL, &context)) return context;
    if (atomic_compare_exchange_strong(&first, &none, context)) return context;
    library_close(context);
    return none;
}

/* Of far devices there may be several. The library uses one, as its weights are there. */
static enum sol_status choose_device(int number) {
    struct far_program *far = this_library.program->far;
    lock_acquire(&lock);
    if (far && !shared) far->number = number;
    const int used = far ? far->number : 0;
    lock_release(&lock);
    if (number == used) return SOL_OK;
    return far ? fail(SOL_EINVAL, "the library uses device %d already, not %d", used, number)
               : fail(SOL_EINVAL, "there is no device %d: the only one is 0", number);
}

void library_init(int device) {
    if (!choose_device(device) && open_first()) (void)done(SOL_OK);
}

int library_seed(void) {
    (void)done(SOL_OK);
    return 0;
}

/* Outputs that are allocated here are freed when the call fails. */
static void predict(struct library_context *context, const void *const *inputs,
                    void **const *outputs) {
    const int n = this_library.program->n_outputs;
    void *result[LIBRARY_MAX_OUTPUTS];
    bool is_new[LIBRARY_MAX_OUTPUTS];
    enum sol_status status = SOL_OK;
    int made = 0;
    for (; made < n && !status; made++) {
        is_new[made] = !*outputs[made];
        result[made] = is_new[made] ? new_output(made) : *outputs[made];
        if (!result[made]) status = SOL_ENOMEM;
    }
    if (!status) status = library_run(context, NULL, inputs, result);
    for (int i = 0; i < made; i++) {
        if (!status) *outputs[i] = result[i];
        else if (is_new[i]) free(result[i]);
    }
}

void library_predict(struct library_context *context, const void *const *inputs,
                     void **const *outputs) {
    if (!context) context = open_first();
    if (!context) return; /* open_first has set the message */
    for (int i = 0; i < this_library.program->n_outputs; i++)
        if (!outputs[i]) {
            (void)fail(SOL_EINVAL, "the pointer to output %d is NULL", i);
            return;
        }
    predict(context, inputs, outputs);
}

void library_set_threads(int n) {
    sol_set_threads(n);
    (void)done(SOL_OK);
}

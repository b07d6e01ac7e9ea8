/*
 * A compiled program: steps over buffers, with every size a formula of the symbols.
 *
 *   compile.c fills it -> bind.c evaluates it for one vector of symbol values -> exec.c runs it
 *
 * Self-contained: all of it lives in the program's own arena; of the compiler it needs no data, and of its functions only the
 * interpreter of generated kernels (struct kernel). Immutable
 * once compiled, but for the cache of bindings, which has a lock.
 *
 * There are two lists of steps. `prepack` reads only parameters and writes the packed parameters
 * (folded, reordered, transformed); it runs once per version of the parameters. `steps` runs at
 * every call.
 */
#ifndef SOL_PROGRAM_H
#define SOL_PROGRAM_H

#include "base/lock.h"
#include "base/size.h"
#include "run/packs.h"

#include <stdatomic.h>

/* Whose memory a step's pointer refers to. Steps never hold host pointers. */
enum buffer_kind {
    BUFFER_NONE,
    BUFFER_INPUT,
    BUFFER_PARAM,
    BUFFER_OUTPUT,
    BUFFER_ARENA,
    BUFFER_PACKED
};

/* NONE is a NULL pointer. */
struct buffer_ref {
    enum buffer_kind kind;
    int index;             /* port number, or slot number for ARENA and STATE */
    struct size offset;    /* bytes */
    int64_t sample_stride; /* bytes from one sample to the next; 0: all samples share it */
};

/* Memory for one intermediate. ARENA slots live from step `first` to step `last` and share bytes when their lives do not
 * touch. A slot that `prepack` writes and `steps` reads is PACKED: it lives as long as the
 * weights. */
struct slot {
    struct size size; /* bytes */
    int first, last;
    const char *name;
};

/* One kernel call over tasks [0, n_tasks). */
struct step {
    void (*run)(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                int64_t begin, int64_t end);
    int64_t (*n_tasks)(const struct step *step, const int64_t *arg);
    const void
        *data; /* the module's own constants: a dnn_plan, a kernel's entry, a copy's tables */
    int n_ptr, n_arg;
    struct buffer_ref *ptr;
    struct size *arg;
    size_t scratch_size; /* bytes per thread */
    bool by_sample;      /* with symbol 0 = n it computes the n samples from its pointers on */
    struct size flops, bytes;
    const char *name, *module, *layers;
    int cluster;                /* its number in the report; -1: the device has no clusters */
    const char *implementation; /* the candidate that was chosen; NULL: there was no choice */
    int n_candidates;
    const struct sol_candidate *candidate;
    const char *choice; /* the report's lines on it; NULL: none */
};

struct step_list {
    int n;
    struct step *at;
    int n_slots;
    struct slot *slot; /* ARENA slots of this list */
};

/* Steps [begin, end), which run on one micro-batch after the other: micro_batch.h. Undivided if
 * that is the whole batch. */
struct section {
    int begin, end;
    int64_t micro_batch; /* images */
};

/* What depends on the number of samples; by step. */
struct bound {
    int64_t **arg;
    int64_t *n_tasks;
};

/* A program's formulas evaluated for one vector of symbol values. */
struct binding {
    struct arena arena; /* in which all of it lies */
    int64_t symbol[SIZE_SYMBOLS];
    struct binding *next;
    int n_sections;
    struct section *section;
    struct bound full,
        rest; /* for a section's micro-batch, and for the last one if it is smaller */
    int64_t **
        ptr_offset; /* per step and pointer: bytes from its buffer's start; ARENA: from the arena's start */
    int64_t **ptr_sample_stride; /* and to the next image: 0 for what holds one micro-batch only */
    size_t arena_size, scratch_size; /* scratch per thread */
    int n_ptr;                       /* most pointers of a step */
    struct workspace *idle;          /* that no call uses at present */
    int n_users;                     /* calls in flight */
};

struct sol_program {
    atomic_int n_refs;
    struct arena arena;
    const char *name;
    int n_symbols, n_inputs, n_params, n_outputs;
    struct sol_port *input, *param, *output;
    struct size (*output_dim)[SOL_MAX_RANK];
    struct step_list prepack, steps;
    int n_packed;
    struct slot *packed;
    void *code; /* that was loaded for it, released with it by `release_code`; NULL: none */
    void (*release_code)(void *code);
    const char *report, *dot, *target; /* target: device and instruction set */
    int n_compiled;
    double compiler_s; /* processor time of the C compiler */
    bool is_timed;     /* SOL_DEBUG=time when it was compiled */

    struct lock lock;         /* guards bindings and their idle workspaces */
    struct binding *bindings; /* most recently used first, at most PROGRAM_BINDINGS */
};
#define PROGRAM_BINDINGS 8

struct sol_weights {
    atomic_int n_refs;
    const struct sol_program *program; /* retained */
    const void **param;                /* caller's pointers, for weights that are used in place */
    struct packs packed;               /* by slot; nobody changes its memory any more */
};

/* weights.c: the offsets of struct packs. Each slot begins at a cache line. Returns the last of them. */
size_t weights_place(const struct sol_program *program, size_t *offset);

/* program.c: an empty program with its arena; NULL when memory is out. */
struct sol_program *program_new(void);

/* memory.c: places slots so that those alive together do not overlap; offset[i] in bytes, multiples of 64. Returns the bytes needed. */
size_t memory_place(int n, const int64_t *size, const int *first, const int *last, size_t *offset);

/* exec.c: runs the `prepack` steps, which write the packed parameters. */
enum sol_status exec_prepack(const struct sol_weights *weights);
enum sol_status exec_check_pointers(const char *what, int n, const void *const *pointer,
                                    const struct sol_port *port);
/* A task may fail, on any thread, after it has called fail(). The steps behind it are left out, and the call
 * returns `status` with the message. */
void exec_fail(enum sol_status status);
/* For callers that run tasks without a program: the status that exec_fail has set on this thread
 * since the last call. */
enum sol_status exec_take_failure(void);

/* kernel.c: a generated kernel. `text`, its C, is kept for programs that become libraries. */
struct kernel {
    void (*compiled)(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin,
                     int64_t end); /* NULL: interpreted */
    void (*interpret)(const void *code, void *const *ptr, const int64_t *arg, char *scratch,
                      int64_t begin, int64_t end);
    const void *code;
    const char *symbol, *text; /* without headers; NULL where it is not kept */
};
void kernel_call(const struct kernel *kernel, void *const *ptr, const int64_t *arg, char *scratch,
                 int64_t begin, int64_t end);
/* The step of a kernel: data = struct kernel; the last argument is the number of tasks, which the kernel does not read. */
void kernel_run(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                int64_t begin, int64_t end);
int64_t kernel_n_tasks(const struct step *step, const int64_t *arg);

/* copy.c: the step of module copy. data = struct copy_table; ptr = {in, out}; arg = {batch, in stride, out stride} in elements. */
struct copy_table {
    int n_outer, n_pixels, lanes; /* out[(o * n_pixels + p) * lanes + l] */
    int64_t pixel_stride; /* = in[base[o * lanes + l] + p * pixel_stride], or 0 where base < 0 */
    const int32_t *base;
};
void copy_run(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
              int64_t begin, int64_t end);
int64_t copy_n_tasks(const struct step *step, const int64_t *arg);

/* gather.c: the step of a gather. ptr = {table, indices, out}; strides and sizes in elements. The table's dims are
 * [outer.., rows, inner..]; it may lie apart along its first one, whose step is STRIDE; behind that, PLANES of rows
 * follow each other. */
enum {
    GATHER_OUTER,
    GATHER_PLANES,
    GATHER_STRIDE,
    GATHER_ROWS,
    GATHER_ROW_STRIDE,
    GATHER_INNER,
    GATHER_INDICES,
    GATHER_INDEX_SIZE, /* bytes: 8 or 4 */
    GATHER_N_ARGS
};
void gather_run(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                int64_t begin, int64_t end);
int64_t gather_n_tasks(const struct step *step, const int64_t *arg);

#endif

/*
 * A compiled program: steps over buffers, in which every size is a formula of the symbols.
 *
 *   compile.c fills it -> bind.c evaluates it for one vector of symbol values -> exec.c runs it
 *
 * Each phase (phase.h) has a list of steps. PREPACK reads only parameters and writes the packed parameters (folded, reordered,
 * transformed); FORWARD is a call. What FORWARD writes and BACKWARD reads is saved in memory of the caller, which lives between
 * the two calls.
 *
 * Invariant: a program is self-contained. All its data is in its own arena; of the compiler it uses only the interpreter
 * of generated kernels (struct kernel). It is immutable once compiled, except for the cache of bindings, which has a lock.
 */
#ifndef SOL_PROGRAM_H
#define SOL_PROGRAM_H

#include "base/lock.h"
#include "base/size.h"
#include "run/copy_form.h"
#include "run/packs.h"
#include "run/phase.h"
#include "run/step_numbers.h"

#include <stdatomic.h>

/* The memory that a step's pointer refers to. Steps hold (buffer, offset), never addresses. */
enum buffer_kind {
    BUFFER_NONE,
    BUFFER_INPUT,
    BUFFER_PARAM,
    BUFFER_OUTPUT,
    BUFFER_ARENA,
    BUFFER_PACKED,
    BUFFER_SAVED,
    BUFFER_CONSTANT, /* constants of the program, by number */
    BUFFER_ERROR     /* the error words of the call: enum error_word */
};

/* Constants that kernels read, such as a table of positions. */
struct constant {
    const void *at;
    size_t size; /* bytes */
};

/* A pointer of a step. NONE stands for NULL. */
struct buffer_ref {
    enum buffer_kind kind;
    int index;          /* port number, or slot number for ARENA, PACKED and SAVED */
    struct size offset; /* bytes */
    /* bytes from one sample to the next; NULL: 0, all samples share it */
    const struct size *sample_stride;
};

/* Memory of one intermediate value. ARENA slots live from step `first` to step `last` of a phase, both included; slots with
 * disjoint lifetimes share bytes. A slot that a phase of prepack writes and another phase reads is PACKED: it lives as long as
 * struct sol_weights. One that FORWARD writes and BACKWARD reads is SAVED; it holds the whole batch. */
struct slot {
    struct size size; /* bytes */
    int first, last;
    const char *name;
};

struct step;

/* What the steps of a kind do on the host. A kind is one table, and is compared by its address. */
struct step_kind {
    const char *name;
    /* Computes tasks [begin, end). */
    void (*run)(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                int64_t begin, int64_t end);
    int64_t (*n_tasks)(const struct step *step, const int64_t *arg);
    /* Makes the step for one binding's arguments, in that binding's arena: its decisions, such as tile sizes, may differ from
     * those for the sizes that the compiler expected. Only of steps that are open. */
    enum sol_status (*adapt)(const struct step *step, const int64_t *arg, struct arena *arena,
                             const struct step **out);
    bool on_caller;   /* all tasks on the thread of the call */
    bool after_guard; /* never in a speculative run: host nodes */
};

/* One kernel call over tasks [0, n_tasks). */
struct step {
    const struct step_kind *kind;
    const void *data; /* constants of the kind: a struct dnn_plan, kernel or copy_table */
    int n_ptr, n_arg;
    struct buffer_ref *ptr;
    struct size *arg;
    size_t scratch_size; /* bytes per thread */
    bool by_sample;      /* if symbol 0 is n, it computes the n samples at its pointers */
    bool is_open;        /* it is adapted to each binding */
    uint64_t texts;      /* bit i: argument i is the address of a text, for ERROR_WHAT */
    struct size flops, bytes;
    const char *name, *module, *layers;
    int cluster;                /* its number in the report; -1: the device has no clusters */
    const char *implementation; /* the candidate that was chosen; NULL: there was no choice */
    int n_candidates;
    const struct sol_candidate *candidate;
    const char *choice; /* the report's lines about it; NULL: none */
};

struct step_list {
    int n;
    struct step *at;
    int n_slots;
    struct slot *slot; /* ARENA slots of this list */
};

/* Steps [begin, end), which run together on one micro-batch after the other: micro_batch.h. */
struct section {
    int begin, end;
    int64_t micro_batch; /* samples; the whole batch if the section is undivided */
};

/* Values that depend on the number of samples; by step. */
struct bound {
    int64_t **arg;
    int64_t *n_tasks;
};

/* What must hold at a call, as the compiler could not know it: value >= min. If not, the message is `what` with the dims of
 * `shape`: "conv (net.py:7): a window of [7,7] does not fit into input [1,3,5,5]". */
struct condition {
    struct size value;
    int64_t min;
    const char *what;
    int rank;
    struct size shape[SOL_MAX_RANK];
};

/* What follows from the values of a program's free symbols. */
struct formulas {
    int n_quotients, n_conditions;
    const struct size_quotient *quotient; /* the derived symbols */
    const struct condition *condition;
};

/* bind.c: fills in the values of all symbols from those of the n free ones. */
void formulas_derive(const struct formulas *formulas, const int64_t *free, int n,
                     int64_t symbols[SIZE_SYMBOLS]);
/* EINVAL if a condition does not hold for these values of all symbols. */
enum sol_status formulas_check(const struct formulas *formulas, const int64_t *symbols);

/* A program's formulas evaluated for one vector of symbol values. */
struct binding {
    struct arena arena; /* contains the whole binding, this struct too */
    const struct formulas *formulas;
    int64_t symbol[SIZE_SYMBOLS]; /* all symbols, derived ones too */
    enum phase phase;
    struct binding *next;
    int n_sections;
    struct section *section;
    /* for a section's micro-batch, and for the last one if it is smaller */
    struct bound full, rest;
    const struct step **step; /* the list's steps, or adapted ones */
    /* by step and pointer: bytes from the buffer's start; ARENA and SAVED: from the start of all slots */
    int64_t **ptr_offset;
    int64_t **ptr_sample_stride; /* bytes to the next sample; 0 if the slot holds one micro-batch */
    size_t arena_size, scratch_size; /* scratch per thread */
    int n_ptr;                       /* the largest number of pointers of a step */
    struct workspace *idle;          /* list of workspaces that no call uses */
    int n_users;                     /* calls in flight */
};

/* How programs of far devices run (far.c); those of the host run by exec.c. A table, so that deployed libraries for the host do not
 * contain it. */
struct request;
struct runner {
    enum sol_status (*run)(const struct request *request, double *seconds);
    enum sol_status (*alloc)(struct sol_weights *weights); /* memory of packed parameters */
    enum sol_status (*pack)(const struct sol_weights *weights, enum phase phase);
    /* Instead of both: `packed` is in the host's memory, one slot behind the other as weights_place says. */
    enum sol_status (*adopt)(struct sol_weights *weights);
    void (*free)(struct sol_weights *weights);
    void (*release)(const struct sol_program *program);
    void (*free_saved)(const struct sol_program *program, const void *saved);
    void (*count)(const struct sol_program *program, struct sol_transfers *out);
};

struct sol_program {
    atomic_int n_refs;
    struct arena arena;
    const char *name;
    int n_symbols, n_inputs, n_params, n_outputs;
    struct sol_port *input, *param, *output;
    struct size (*input_dim)[SOL_MAX_RANK], (*output_dim)[SOL_MAX_RANK];
    struct formulas formulas;
    struct step_list phase[N_PHASES];
    int64_t portion_cache; /* of the device, for which bindings divide the batch: micro_batch.h */
    int n_packed, n_saved, n_constants;
    struct slot *packed, *saved;
    struct constant *constant;
    const struct runner *runner; /* NULL: the host */
    struct far_program *far;     /* far.h; NULL: the host */
    void *code; /* loaded machine code, which the program releases by `release_code`; NULL: none */
    void (*release_code)(void *code); /* set if `code` is */
    void *
        hosts; /* functions of the frontend, which the program releases by `release_hosts`; NULL: none */
    void (*release_hosts)(void *hosts); /* set if `hosts` is */
    const char *report, *dot, *target;  /* target: device and instruction set */
    int n_compiled;
    double compiler_s; /* processor time of the C compiler */
    bool is_timed;     /* SOL_DEBUG had "time" at compile time: calls print times */

    struct lock lock;         /* guards bindings and their idle workspaces */
    struct binding *bindings; /* most recently used first, at most PROGRAM_BINDINGS */
};
#define PROGRAM_BINDINGS 8

struct sol_weights {
    atomic_int n_refs;
    const struct sol_program *program; /* retained */
    const void **param; /* the caller's pointers, for parameters that are used in place */
    struct packs
        packed; /* by slot; immutable between the phases of prepack and sol_weights_update */
    struct far_weights *far; /* far.h; NULL: `packed` is in the host's memory */
    /* Has PREPACK_BACKWARD run? The state of lock_begin with the program's lock. */
    int has_backward;
};

/* weights.c: runs PREPACK_BACKWARD unless it has run for this version of the parameters. */
enum sol_status weights_pack_backward(struct sol_weights *weights);

/* weights.c: fills in the offsets of struct packs (NULL: only counts). Slots are aligned to 64 bytes. Returns the bytes of all. */
size_t weights_place(const struct sol_program *program, size_t *offset);

/* program.c: an empty program with an arena and one reference; NULL: out of memory. */
struct sol_program *program_new(void);

/* memory.c: places n slots, each alive from step first[i] to last[i], so that slots alive at the same step do not overlap.
 * offset[i]: in bytes, a multiple of 64. Returns the bytes of all. */
size_t memory_place(int n, const int64_t *size, const int *first, const int *last, size_t *offset);

/* program.c: bytes of an input or output for these values of all symbols. */
size_t program_port_size(const struct sol_program *program, bool is_output, int i,
                         const int64_t *symbols);
/* program.c: fills in the offsets of the saved slots for these values of all symbols of a call (NULL: only counts). Slots are
 * aligned to 64 bytes. *out: the bytes of all. EINVAL if they are too many. */
enum sol_status program_place_saved(const struct sol_program *program, const int64_t *symbols,
                                    int64_t *offset, int64_t *out);

/* exec.c: runs PREPACK or PREPACK_BACKWARD, which write the packed parameters. */
enum sol_status exec_prepack(const struct sol_weights *weights, enum phase phase);
/* Fails with the message of these words, unless the status is SOL_OK. */
enum sol_status exec_check_words(const int64_t words[ERROR_WORDS]);
/* Called by a task, on any thread, to fail the call; call fail() first. The remaining steps do not run, and the call
 * returns `status` with the message. */
void exec_fail(enum sol_status status);
/* For callers that run tasks without a program: returns and clears the status that exec_fail has set on this thread. */
enum sol_status exec_take_failure(void);

/* kernel.c: a generated kernel. `text` is kept for programs that are deployed as libraries. */
struct kernel {
    /* NULL: interpreted */
    void (*compiled)(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin,
                     int64_t end);
    /* NULL: it is always compiled, as the kernels of steps on far devices are */
    void (*interpret)(const void *code, void *const *ptr, const int64_t *arg, char *scratch,
                      int64_t begin, int64_t end);
    const void *code;
    const struct far_kernel *far; /* its code on a far device */
    const char *symbol, *text;    /* the function's name, and its C text without headers or NULL */
};
void kernel_call(const struct kernel *kernel, void *const *ptr, const int64_t *arg, char *scratch,
                 int64_t begin, int64_t end);
/* The step of a generated kernel: data = struct kernel. The last argument is the number of tasks. */
extern const struct step_kind step_kernel;

/* copy.c: the step of module COPY. data = struct copy_table; ptr = {in, out}; arg: COPY_N.. */
struct copy_table {
    int element; /* bytes: 1, 2, 4 or 8 */
    struct copy_form
        form; /* if form.number is set, the copy is this form, and the following is not used */
    int n_outer, n_pixels, lanes; /* out[(o * n_pixels + p) * lanes + l] */
    int64_t pixel_stride; /* = in[base[o * lanes + l] + p * pixel_stride], or 0 where base < 0 */
    const int32_t *base;
    /* Of a table for open pixels: the number of channels in a block of the input; else 0. `base` then has stored channels
     * instead of positions; the step is adapted, which makes a table with positions for the number of pixels in arg[COPY_PIXELS]. */
    int in_lanes;
};
extern const struct step_kind step_copy;

/* copy.c: the step that writes a parameter: ptr = {new value, parameter}; arg = {bytes}. */
extern const struct step_kind step_update;

/* The steps of module GATHER, in gather.c and resample.c, and their messages, behind the layer's name. */
extern const struct step_kind step_gather, step_scatter, step_resample;
#define ROW_NUMBER_MESSAGE "number %lld, but there are %lld rows"
#define ROW_OUTSIDE_MESSAGE "an index is outside of its dim"
#define TAP_NUMBER_MESSAGE "number %lld, but there are %lld elements"

#endif

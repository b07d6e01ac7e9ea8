/*
 * What a deployed library consists of: a program in constant memory, its weights, and the functions behind its interface.
 *
 * This header and library.c are compiled into each library, with src/run and the kernels that it needs; `network.c` beside
 * them is generated (native.c) and defines `this_library`.
 */
#ifndef SOL_LIBRARY_H
#define SOL_LIBRARY_H

#include "run/program.h"

/* In front of the weights in a file of their own. */
#define LIBRARY_MAGIC "SOLW002"
#define LIBRARY_FILE_HEAD 4096
struct library_file {
    char magic[8];
    uint64_t hash; /* of the weights: deploy/weights_hash.h */
    uint64_t size; /* of them, in bytes, behind LIBRARY_FILE_HEAD */
};

/*
 * The steps of a program in few bytes, from which the runtime's are made when the library is opened. Sizes are numbers in one
 * table of all that differ.
 */
enum library_call { LIBRARY_KERNEL, LIBRARY_COPY, LIBRARY_DNN, LIBRARY_PACK, LIBRARY_GATHER };
struct library_step {
    const void *data;
    uint32_t n_ptr, n_arg, scratch_size, bytes;
    uint8_t call, by_sample;
};
struct library_ref {
    uint32_t offset;
    uint16_t index;
    uint8_t kind;
    int64_t sample_stride;
};
struct library_slot {
    uint32_t size;
    int first, last;
};
struct library_list {
    int n_steps, n_slots;
    const struct library_step *step;
    const struct library_slot *slot;
    const struct library_ref *ptr; /* of all steps, one behind the other */
    const uint32_t *arg;
};

struct library {
    struct sol_program *program; /* without its steps */
    const struct size *size;
    struct library_list steps, prepack;
    int n_packed;
    const struct library_slot *packed;
    const int64_t *symbols;      /* that `predict` is for */
    const char *weights;         /* NULL: in a file */
    const char *file;            /* its name */
    struct library_file expect;  /* what the file must be */
    bool is_packed;              /* the packed parameters are the weights' first bytes */
    const int64_t *param;        /* where each parameter is in the weights; -1: nobody reads it */
    const char *(*refuse)(void); /* why this processor cannot run it; NULL: it can */
};
extern const struct library this_library;

#define LIBRARY_MAX_OUTPUTS 64
struct library_context;

/* Each of these leaves its message in sol_error(), "" when it did not fail. */
enum sol_status library_open(const char *weights_file, struct library_context **out);
void library_close(struct library_context *context);
enum sol_status library_run(struct library_context *context, const int64_t *symbols,
                            const void *const *inputs, void *const *outputs);
/* Port i's dims for these symbols (NULL: the default ones); returns the rank, -1: there is no such port, or it cannot be so large. */
int library_shape(bool is_output, int i, const int64_t *symbols, int64_t *dim);
/* The simple form. `context` NULL: one that is opened by the first call. An output that is NULL is malloc'ed. */
void library_predict(struct library_context *context, const void *const *inputs,
                     void **const *outputs);
/* The device must be 0: there is no other. */
void library_init(int device);
int library_seed(void); /* 0 */
void library_set_threads(int n);

#endif

/*
 * A deployed library: a program in constant memory, its weights, and the functions that its interface calls.
 *
 * This header and library.c are compiled into each library, with src/run and the kernels that it needs; `network.c` beside
 * them is generated (native.c) and defines `this_library`.
 */
#ifndef SOL_LIBRARY_H
#define SOL_LIBRARY_H

#include "run/program.h"

/* The head of a weights file; the weights follow at offset LIBRARY_FILE_HEAD. */
#define LIBRARY_MAGIC "SOLW002"
#define LIBRARY_FILE_HEAD 4096
struct library_file {
    char magic[8];
    uint64_t hash; /* of the weights: deploy/weights_hash.h */
    uint64_t size; /* of the weights, in bytes, without the head */
};

/*
 * The steps of a program in a compact form. Opening the library makes the runtime's steps from them. `bytes`, `offset`, `sample_stride`, `size` and
 * `arg` are indices into `size` of struct library, the table of all different sizes; `scratch_size` is in bytes.
 */
struct library_step {
    const struct step_kind *kind;
    const void *data;
    uint32_t n_ptr, n_arg, scratch_size, bytes;
    uint8_t by_sample, is_open;
};
struct library_ref {
    uint32_t offset;
    uint16_t index;
    uint8_t kind;
    uint32_t sample_stride;
};
struct library_slot {
    uint32_t size;
    int first, last;
};
struct library_list {
    int n_steps, n_slots;
    const struct library_step *step;
    const struct library_slot *slot;
    const struct library_ref *ptr; /* pointers of all steps, one step after the other */
    const uint32_t *arg;           /* arguments likewise, as sizes */
};

struct library {
    struct sol_program *program; /* without its steps */
    const struct size *size;
    struct library_list steps, prepack;
    int n_packed;
    const struct library_slot *packed;
    const int64_t *symbols;      /* sizes for which the simple function is */
    const char *weights;         /* NULL: they are in a file */
    const char *file;            /* name of that file */
    struct library_file expect;  /* the head that the file must have */
    bool is_packed;              /* the weights begin with the packed parameters */
    const int64_t *param;        /* offset of each parameter in the weights; -1: no step reads it */
    const char *(*refuse)(void); /* the reason why this processor cannot run it; NULL: it can */
};
extern const struct library this_library;

#define LIBRARY_MAX_OUTPUTS 64
struct library_context;

/* Each of these sets the message of sol_error(), which is "" after success. */
enum sol_status library_open(const char *weights_file, struct library_context **out);
void library_close(struct library_context *context);
enum sol_status library_run(struct library_context *context, const int64_t *symbols,
                            const void *const *inputs, void *const *outputs);
/* Writes the dims of port i for these symbols (NULL: the default ones) to `dim`. Returns the rank; -1: there is no such port, or
 * its size overflows. */
int library_shape(bool is_output, int i, const int64_t *symbols, int64_t *dim);
/* The simple interface. `context` NULL: a default one, which the first call opens. If *outputs[i] is NULL, it is set to malloc'ed
 * memory. */
void library_predict(struct library_context *context, const void *const *inputs,
                     void **const *outputs);
/* `device`: the number of the far device, before the library is open; on the host 0, the only one. */
void library_init(int device);
int library_seed(void); /* 0 */
void library_set_threads(int n);

#endif

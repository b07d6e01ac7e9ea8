/*
 * Deploying: from a model to the files of a library.
 *
 *   deploy.c   checks, compiles the program, packs, chooses the way
 *     folder.c    where it works, and nothing of that stays behind
 *     replace.c   finished files in place of those of an earlier deployment
 *     native.c    x86, arm64: program.c prints the program for the runtime, tool.c compiles both
 *     portable.c  c: C99 that calls the kernels one after the other
 *   header.c   the header that users include, and the functions behind it
 *   sources.c  the text of the runtime and the kernels
 */
#ifndef SOL_DEPLOY_PARTS_H
#define SOL_DEPLOY_PARTS_H

#include "deploy/library.h"
#include "dnn/dnn.h"

#include <sol/deploy.h>
#include <stdio.h>

#define DEPLOY_PATH 4096
#define DEPLOY_NAME 300 /* of a file, with the library's name in it */

/* How files begin, @ being the library's name: by that they are known again. */
#define DEPLOY_HEADER_HEAD "/*\n * @: a trained network."
#define DEPLOY_SOURCE_HEAD "/* @: see "
#define DEPLOY_MATH_HEAD "/*\n * What generated kernels call,"

struct deployment {
    struct arena *arena;
    const struct sol_library *library;
    const char *lib, *func;    /* names */
    const struct dnn_isa *isa; /* NULL: portable C */
    struct sol_program *program;
    struct sol_weights *weights; /* NULL unless packed */
    struct binding *binding;     /* of portable C */
    const void *const *params;
    const int64_t *symbols;
    VEC(struct size) sizes;  /* all that differ */
    const char *place;       /* where users get them */
    VEC(const char *) made;  /* folders made for that, outermost first */
    const char *work;        /* a folder in it that is gone in the end */
    int lock;                /* the file that says somebody works there; -1: none */
    const char *folder;      /* where files are made: that folder, or one in it */
    VEC(const char *) files; /* names in `work` that users shall get */
    int n_done, n_total;     /* progress */

    /* The weights that the library gets. */
    bool is_packed;
    int64_t *param; /* offset of each; -1: nobody reads it */
    int64_t weights_size;
};

/* ---- folder.c ---- */

/* Makes the place for the result, if need be, and the folder to work in. */
enum sol_status deploy_begin(struct deployment *d);
/* Removes that again, also when it was never begun; after a failure also the place, if it was made. */
void deploy_end(struct deployment *d, bool has_failed);
const char *deploy_path(struct deployment *d, const char *name); /* in the folder */
/* Writes a file in the folder; folders in between are made. */
enum sol_status deploy_write(struct deployment *d, const char *name, const void *data, size_t size);
enum sol_status deploy_write_text(struct deployment *d, const char *name, const struct text *text);
/* fclose: a full disk may show only now. */
enum sol_status deploy_close(FILE *file, const char *path);

/* ---- replace.c ---- */

/* Puts `files` in their place, instead of all that was deployed there under this name. When it fails nothing has changed. */
enum sol_status deploy_replace(struct deployment *d);

/* ---- deploy.c ---- */

/* Writes the weights, behind `head` bytes of zeros or of a file's head. */
enum sol_status deploy_write_weights(struct deployment *d, const char *name, bool with_head,
                                     struct library_file *expect);
int64_t deploy_param_size(const struct deployment *d, int param); /* bytes */
int64_t deploy_packed_size(const struct deployment *d, int slot); /* with its gap */
/* A port's dims for the sizes that the simple interface is for. */
void deploy_shape(const struct deployment *d, bool is_output, int i, int64_t dim[SOL_MAX_RANK]);
void deploy_progress(struct deployment *d, const char *what);

/* ---- native.c, portable.c ---- */
enum sol_status deploy_native(struct deployment *d);
enum sol_status deploy_portable(struct deployment *d);
/* Bytes that a call of the portable library works in. */
size_t deploy_portable_memory(const struct deployment *d);
/* Are the weights in a file of their own? Portable C has large ones there, too. */
bool deploy_has_file(const struct deployment *d);

/* ---- program.c: a program as C ---- */
void deploy_print_program(struct deployment *d, struct text *text);
void deploy_print_kernels(struct deployment *d, struct text *text);
/* A string literal, whatever it holds. */
void deploy_print_string(struct text *text, const char *string);
void deploy_print_int(struct text *text, int64_t value);
void deploy_print_ints(struct text *text, int64_t n, const int64_t *value);
/* Calls `visit` for every generated kernel of calls, and of packing unless the library is packed; equal ones once. */
void deploy_visit_kernels(struct deployment *d,
                          void (*visit)(struct text *text, const struct kernel *kernel),
                          struct text *text);
/* The steps that the library has: those of calls, and those of packing, unless it is packed. */
int deploy_n_lists(const struct deployment *d);
const struct step_list *deploy_list(const struct deployment *d, int i);

/* ---- header.c ---- */
/* `pattern` with the library's name for each @, the function's for each $. */
void deploy_print_named(struct deployment *d, struct text *text, const char *pattern);
enum sol_status deploy_header(struct deployment *d);
/* "void *ctx, const float *input0, float **output0", and in the function's body `inputs` and `outputs`, lists of them. With names
 * they are "input0_image" and the like. */
void deploy_print_arguments(struct deployment *d, struct text *text, bool with_names);
void deploy_print_lists(struct deployment *d, struct text *text);
/* The functions that the header declares, in terms of deploy/library.h. */
void deploy_print_interface(struct deployment *d, struct text *text);

/* ---- tool.c ---- */
struct deploy_tool {
    const char *compiler; /* words */
    const char *objcopy, *ar;
};
enum sol_status deploy_find_tool(struct deployment *d, struct deploy_tool *out);
/* Runs `command`, words separated by spaces, then `words`, ended by NULL, which may contain spaces. */
enum sol_status deploy_run(struct deployment *d, const char *command, const char *const *words);

/* ---- sources.c ---- */
struct deploy_source {
    const char *name; /* "src/run/exec.c" */
    const char *text;
    const char *part; /* own kernels, "winograd", for what only they need; "": the runtime */
    bool is_kernel;   /* compiled for the instruction set */
};
extern const struct deploy_source deploy_sources[]; /* ended by name == NULL */
extern const char *const deploy_portable_math, *const deploy_portable_library;
extern const char *const deploy_weights_hash;

#endif

/*
 * Deploying: from a model to the files of a library.
 *
 *   deploy.c   checks the arguments, compiles and packs the program, then calls native.c or portable.c
 *     folder.c    the temporary folder, which is removed at the end
 *     replace.c   moves the finished files to their place and removes those of an earlier deployment
 *     custom.c    custom layers, in native libraries
 *     native.c    targets x86 and arm64: program.c prints the program for the runtime, tool.c compiles both. Also far devices,
 *                 for which far_program.c prints what they need
 *     portable.c  target c: C99 that calls the kernels one after the other
 *   header.c   the header that users include, and the functions that it declares
 *   sources.c  the source text of the runtime and the kernels
 */
#ifndef SOL_DEPLOY_PARTS_H
#define SOL_DEPLOY_PARTS_H

#include "deploy/library.h"
#include "device/device.h"
#include "dnn/dnn.h"

#include <sol/deploy.h>
#include <stdio.h>

#define DEPLOY_PATH 4096
#define DEPLOY_NAME 300 /* of a file, with the library's name in it */

/* How generated files begin, with the library's name for @. A later deployment recognizes its own files by it. */
#define DEPLOY_HEADER_HEAD "/*\n * @: a trained network."
#define DEPLOY_SOURCE_HEAD "/* @: see "
#define DEPLOY_MATH_HEAD "/*\n * What generated kernels call,"

struct deployment {
    struct arena *arena;
    const struct sol_library *library;
    const char *lib, *func;    /* names */
    const struct dnn_isa *isa; /* NULL: portable C */
    const struct device *far;  /* on which the library runs the network; NULL: on the host */
    struct sol_program *program;
    struct sol_weights *weights; /* NULL unless packed */
    struct binding *binding;     /* of portable C */
    const void *const *params;
    const int64_t *symbols;
    VEC(const struct sol_custom *) customs; /* code of custom layers, in the order of first use */
    VEC(struct size) sizes;                 /* all different sizes of the program */
    VEC(int) texts;                         /* those of them that are addresses of texts */
    const char *place;                      /* the folder of the result */
    VEC(const char *) made;  /* folders that were created for `place`, outermost first */
    const char *work;        /* a temporary folder in `place`, removed at the end */
    int lock;                /* descriptor of the file that locks `work`; -1: none */
    const char *folder;      /* where files are written: `work`, or a folder in it */
    VEC(const char *) files; /* names of files in `work` that belong to the result */
    int n_done, n_total;     /* progress */

    /* The weights of the library. */
    bool is_packed;
    int64_t *param; /* offset of each parameter; -1: no step reads it */
    int64_t weights_size;
};

/* ---- folder.c ---- */

/* Creates the folder `place`, if it does not exist, and `work` in it. */
enum sol_status deploy_begin(struct deployment *d);
/* Removes `work`; after a failure also `place`, if deploy_begin created it. May be called without deploy_begin. */
void deploy_end(struct deployment *d, bool has_failed);
const char *deploy_path(struct deployment *d, const char *name); /* path of a file in `folder` */
/* Writes a file in `folder`. `name` may contain folders, which are created. */
enum sol_status deploy_write(struct deployment *d, const char *name, const void *data, size_t size);
enum sol_status deploy_write_text(struct deployment *d, const char *name, const struct text *text);
/* fclose with a check, since an error such as a full disk may be reported only there. */
enum sol_status deploy_close(FILE *file, const char *path);

/* ---- replace.c ---- */

/* Moves `files` to `place` and removes the other files of an earlier deployment with this name. A failure changes nothing there. */
enum sol_status deploy_replace(struct deployment *d);

/* ---- deploy.c ---- */

/* Writes the weights to a file. `with_head`: they follow a head of LIBRARY_FILE_HEAD bytes. `expect` gets the contents of the
 * head. */
enum sol_status deploy_write_weights(struct deployment *d, const char *name, bool with_head,
                                     struct library_file *expect);
int64_t deploy_param_size(const struct deployment *d, int param); /* bytes */
int64_t deploy_packed_size(const struct deployment *d, int slot); /* bytes, with padding */
/* Dims of a port for `symbols`, the sizes of the simple interface. */
void deploy_shape(const struct deployment *d, bool is_output, int i, int64_t dim[SOL_MAX_RANK]);
void deploy_progress(struct deployment *d, const char *what);

/* ---- native.c, portable.c ---- */
enum sol_status deploy_native(struct deployment *d);
/* Prints an array `symbol` with the content of the file `name` in `folder`, which the assembler includes. */
void deploy_print_included(struct deployment *d, struct text *text, const char *name,
                           const char *symbol);
enum sol_status deploy_portable(struct deployment *d);
/* Bytes of working memory of a call of the portable library. */
size_t deploy_portable_memory(const struct deployment *d);
/* Are the weights in a separate file? In portable C, large weights are, too. */
bool deploy_has_file(const struct deployment *d);

/* ---- custom.c: custom layers ---- */

struct model;
/* EUNSUPPORTED if the model has host nodes that the library cannot contain. */
enum sol_status deploy_check_hosts(const struct deployment *d, const struct model *m);
/* Finds the `customs` of the program. */
void deploy_find_customs(struct deployment *d);
/* The position in `customs` of the code of a step of module HOST. */
int deploy_custom_number(const struct deployment *d, const struct step *step);
/* Writes the text of `customs` number i to a file. */
enum sol_status deploy_write_custom(struct deployment *d, int i, const char *name);
/* Prints data_i, the struct host_step of step number i. */
void deploy_print_custom(struct deployment *d, struct text *text, const struct step *step, int i);

/* ---- far_program.c ---- */

/* Are there files of this far device that become part of libraries? */
bool deploy_has_files(const char *device);
/* Copies the packed parameters from the device, so that `weights` has them as those of the host. */
enum sol_status deploy_fetch_packed(struct deployment *d);
/* Prints what the program needs on its device, and writes the file "far". */
enum sol_status deploy_print_far(struct deployment *d, struct text *text);

/* ---- program.c: a program as C ---- */
enum sol_status deploy_print_program(struct deployment *d, struct text *text);
void deploy_print_kernels(struct deployment *d, struct text *text);
/* Prints a string literal; all bytes are escaped as needed. */
void deploy_print_string(struct text *text, const char *string);
void deploy_print_int(struct text *text, int64_t value);
void deploy_print_ints(struct text *text, int64_t n, const int64_t *value);
/* Calls `visit` for every generated kernel of the step lists of deploy_list; once for equal kernels. */
void deploy_visit_kernels(struct deployment *d,
                          void (*visit)(void *user, const struct kernel *kernel), void *user);
/* Do the kernels need dfp_types? */
void deploy_print_numbers(struct text *text, const char *name, int64_t n, const int32_t *number);
bool deploy_needs_types(struct deployment *d);
/* The step lists of the library: FORWARD, and PREPACK unless the library contains packed parameters. */
int deploy_n_lists(const struct deployment *d);
const struct step_list *deploy_list(const struct deployment *d, int i);
bool deploy_is_custom(const struct step *step);    /* of module HOST */
bool deploy_is_recurrent(const struct step *step); /* of a recurrent layer */

/* ---- header.c ---- */
/* Prints `pattern` with each @ replaced by the library's name and each $ by the function's name. */
void deploy_print_named(struct deployment *d, struct text *text, const char *pattern);
enum sol_status deploy_header(struct deployment *d);
/* deploy_print_arguments prints parameters, such as "void *ctx, const float *input0, float **output0"; `with_names`: "input0_image"
 * for an input named image. deploy_print_lists prints, for the function's body, the arrays `inputs` and `outputs` of them. */
void deploy_print_arguments(struct deployment *d, struct text *text, bool with_names);
void deploy_print_lists(struct deployment *d, struct text *text);
/* The functions that the header declares; they call those of deploy/library.h. */
void deploy_print_interface(struct deployment *d, struct text *text);

/* ---- tool.c ---- */
struct deploy_tool {
    const char *compiler; /* a command, perhaps with arguments, separated by spaces */
    const char *objcopy, *ar;
};
enum sol_status deploy_find_tool(struct deployment *d, struct deploy_tool *out);
/* Runs a process. Its arguments are the words of `command`, which are separated by spaces, then `words`, which may contain
 * spaces; the last entry of `words` is NULL. */
enum sol_status deploy_run(struct deployment *d, const char *command, const char *const *words);

/* ---- sources.c ---- */
struct deploy_source {
    const char *name; /* "src/run/exec.c" */
    const char *text;
    /* "winograd": only these kernels need the file; "recurrent", "attention": such layers; "far devices": all of them; "ve": this
     * one; "": the runtime does */
    const char *part;
    bool is_kernel; /* compile it with the flags of the instruction set */
};
extern const struct deploy_source deploy_sources[]; /* ended by name == NULL */
extern const char *const deploy_portable_math, *const deploy_portable_library;
extern const char *const deploy_recurrent; /* the text of dnn/recurrent_plain.h */
extern const char *const deploy_weights_hash;

#endif

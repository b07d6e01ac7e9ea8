/*
 * SOL, compile API: builds a model and compiles it into a program; run.h runs the program.
 *
 *   sol_model_new, sol_model_layer, ... -> sol_compile -> struct sol_program -> run.h
 *
 *     struct sol_model *m = sol_model_new("tiny");
 *     int64_t n = sol_model_symbol(m, "batch");                          // a size known only at the call
 *     sol_tensor x = sol_model_input(m, "x", SOL_F32, 4, (int64_t[]){n, 3, 32, 32});
 *     sol_tensor w = sol_model_param(m, "w", SOL_F32, 4, (int64_t[]){16, 3, 3, 3});
 *     sol_tensor y = sol_model_layer(m, "conv", 2, (sol_tensor[]){x, w}, "pad=[1,1,1,1]", "net.py:7");
 *     y = sol_model_layer(m, "relu", 1, &y, "", "net.py:8");
 *     sol_model_output(m, "y", y);
 *     struct sol_program *p;
 *     if (sol_compile(m, NULL, &p)) puts(sol_error());
 *
 * Errors of the builder are sticky: after the first error each builder call returns a poisoned tensor,
 * and sol_model_check() or sol_compile() reports that first error, with the layer and its origin.
 *
 * Dims are always outermost first, as in NumPy. All layers and their attributes: docs/ir.md.
 */
#ifndef SOL_H
#define SOL_H

#include <sol/custom.h>
#include <sol/run.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sol_model;
typedef int32_t sol_tensor; /* index of a tensor in its model; < 0: poisoned by an error */

/* ---- Models --------------------------------------------------------------------------------- */

/* An empty model, which the caller frees. NULL: out of memory. `name` is copied, as are all strings below. */
SOL_API struct sol_model *sol_model_new(const char *name);
SOL_API void sol_model_free(struct sol_model *model);

/* Adds a symbol: a size that each call supplies. Returns a negative number that stands for it in `dim`. */
SOL_API int64_t sol_model_symbol(struct sol_model *model, const char *name);
/* The same for a size that is always a multiple of a number >= 1; a call with another value is refused. A U-Net whose image
 * is halved four times and enlarged again needs to know that its height is a multiple of 16. */
SOL_API int64_t sol_model_symbol_multiple(struct sol_model *model, const char *name,
                                          int64_t multiple);
/* The same for a size that is also at least `least` >= 0. */
SOL_API int64_t sol_model_symbol_limited(struct sol_model *model, const char *name, int64_t least,
                                         int64_t multiple);

/* Adds an input. dim[i] is a size, or what sol_model_symbol returned. */
SOL_API sol_tensor sol_model_input(struct sol_model *model, const char *name, enum sol_dtype dtype,
                                   int rank, const int64_t *dim);
/* Adds a parameter. Its values stay with the caller, who passes them to sol_weights_new. */
SOL_API sol_tensor sol_model_param(struct sol_model *model, const char *name, enum sol_dtype dtype,
                                   int rank, const int64_t *dim);
/* Adds a constant of rank 0 and type f32. The layer "scalar" with the attribute dtype makes other types. */
SOL_API sol_tensor sol_model_scalar(struct sol_model *model, double value);

/* Adds a layer of kind `kind` and returns its output. `attributes` is text: "stride=[2,2] groups=4".
 * `origin` (may be NULL) is the line of the user's program that error messages name. */
SOL_API sol_tensor sol_model_layer(struct sol_model *model, const char *kind, int n_in,
                                   const sol_tensor *in, const char *attributes,
                                   const char *origin);
SOL_API void sol_model_output(struct sol_model *model, const char *name, sol_tensor tensor);
/* State: after all layers of a call, the values of `tensor` are written into the caller's memory of `param`, which has the same
 * shape and element type and is updated once at most. Layers read the values from before the call. A call that fails writes
 * nothing. Add all layers that read `param` in any order: what they compute is never prepacked. */
SOL_API void sol_model_update(struct sol_model *model, sol_tensor param, sol_tensor tensor);

/*
 * Gradients, for training: the model gets a backward part, which runs in a second call (run.h, sol_program_forward).
 *
 *     sol_tensor dy = sol_model_backward_input(m, "grad y", y), grad;
 *     sol_model_gradients(m, 1, &y, &dy, 1, &w, &grad);
 *     sol_model_backward_output(m, "grad w", grad);
 */
/* Adds an input of the backward call with the element type and shape of `like`: the gradient of that output. */
SOL_API sol_tensor sol_model_backward_input(struct sol_model *model, const char *name,
                                            sol_tensor like);
/* Adds the layers that compute the gradients of sum(y[0] * dy[0]) + sum(y[1] * dy[1]) + .. with respect to x[0] .. x[n_x - 1], which are
 * inputs, parameters or other tensors; all are floats. Writes them to dx: tensors of x's type and shape, or SOL_NO_TENSOR where no y
 * depends on x. EUNSUPPORTED, with the layer's name and origin: a layer between them has no gradient. */
#define SOL_NO_TENSOR ((sol_tensor)-2)
SOL_API void sol_model_gradients(struct sol_model *model, int n_y, const sol_tensor *y,
                                 const sol_tensor *dy, int n_x, const sol_tensor *x,
                                 sol_tensor *dx);
/* Adds an output of the backward call. */
SOL_API void sol_model_backward_output(struct sol_model *model, const char *name,
                                       sol_tensor tensor);

/* Host nodes: a function of yours computes a layer that SOL does not have (struct sol_host_call in custom.h). It runs at every
 * call of the program, on the calling thread; calls of a program on several threads may overlap. All tensors are contiguous,
 * outermost dim first, and valid during the function only. It must write each output, and no input. It may run programs, but not
 * the one that it belongs to. */
struct sol_host {
    const char *name; /* in reports and messages */
    /* A failure ends the program's run, which returns this status, and sol_error() the node's name and the message. */
    enum sol_status (*run)(void *user, const struct sol_host_call *call);
    void *user; /* first argument of `run` */
    void (*release)(
        void *
            user); /* called once, when no model and no program needs `user` any more; may be NULL */
};
/* Adds a function to the model, and returns its number. The model owns host->user from now on, also after an error. Programs
 * that are compiled of the model keep it. */
SOL_API int sol_model_host(struct sol_model *model, const struct sol_host *host);
/* Adds a layer that function number `host` computes. `types`: the `n_out` outputs, such as "f32[$0,8] i64[2*$0+1]". `attributes`:
 * "effects=true" if it does more than to write its outputs (it is never dropped, and keeps its place among such layers),
 * "pure=true" if equal inputs give equal outputs (so two such layers with equal inputs may be computed once), or "".
 * Writes n_out tensors to `out`; there must be at least one. */
SOL_API void sol_model_host_layer(struct sol_model *model, int host, int n_in, const sol_tensor *in,
                                  const char *types, const char *attributes, const char *origin,
                                  int n_out, sol_tensor *out);

/* Custom layers: like a host node, but its function is code without a frontend (custom.h). So programs call it without Python, on
 * several threads if it has tasks, and deployed libraries contain it if its source is known.
 *
 *     struct sol_custom *swirl;
 *     struct sol_attribute angle = {.name = "angle", .n = 1, .floats = (double[]){0.5}};
 *     if (sol_custom_compile("swirl", text, "-O3", &swirl)) puts(sol_error());
 *     int host = sol_model_custom(m, swirl, 1, &angle);
 *     sol_model_host_layer(m, host, 1, &x, "f32[$0,8]", "pure=true", "net.c:7", 1, &y);
 *
 * Objects are reference counted; models and programs hold references of their own. The caller releases what these three return. */
struct sol_custom;
/* Compiles C text that defines the function `name`, by the compiler and with the cache of generated kernels. `flags` are words for the
 * compiler (NULL: "-O3"). ETOOL: it rejects the text; EUNSUPPORTED: there is no compiler. */
SOL_API SOL_CHECKED enum sol_status sol_custom_compile(const char *name, const char *text,
                                                       const char *flags, struct sol_custom **out);
/* Opens a shared library that defines the function `name`. `path`: as for dlopen. The process keeps the library. */
SOL_API SOL_CHECKED enum sol_status sol_custom_open(const char *name, const char *path,
                                                    struct sol_custom **out);
/* Takes functions of the calling program, which must stay valid. `tasks` may be NULL. */
SOL_API SOL_CHECKED enum sol_status sol_custom_take(const char *name, sol_custom_run *run,
                                                    sol_custom_tasks *tasks,
                                                    struct sol_custom **out);
SOL_API void sol_custom_retain(struct sol_custom *custom);
SOL_API void sol_custom_release(struct sol_custom *custom); /* NULL is fine */
/* Calls the function once, on SOL's threads, without a model. Of `call` only tensors and attributes are read. */
SOL_API SOL_CHECKED enum sol_status sol_custom_call(const struct sol_custom *custom,
                                                    const struct sol_host_call *call);
/* Adds the function with these attributes, which are copied, to the model. Returns its number for sol_model_host_layer, whose
 * inputs and outputs may be at most SOL_CUSTOM_TENSORS together. */
#define SOL_CUSTOM_TENSORS 64
SOL_API int sol_model_custom(struct sol_model *model, struct sol_custom *custom, int n_attributes,
                             const struct sol_attribute *attributes);

/* Writes the shape that the builder inferred to `dim` and returns the rank, or -1 if the tensor is
 * poisoned. A dim that is a symbol is negative as in struct sol_port; any other formula is INT64_MIN. */
SOL_API int sol_model_shape(const struct sol_model *model, sol_tensor tensor,
                            int64_t dim[SOL_MAX_RANK]);

/* Writes dim `d` of a tensor in its text form, such as "3" or "2*$8+1" (docs/ir.md); false if there is none. SOL_SIZE_TEXT
 * bytes are enough for any. */
#define SOL_SIZE_TEXT 512
SOL_API bool sol_model_dim(const struct sol_model *model, sol_tensor tensor, int d, char *out,
                           size_t size);
/* Writes the normal form of a size, which attributes may contain: equal sizes have equal texts. `text` may have quotients:
 * "floor(($1+1)/2)" becomes "$8". False if it is no size; that is kept as the builder's error. */
SOL_API bool sol_model_size(struct sol_model *model, const char *text, char *out, size_t size);
/* The element type of a tensor; SOL_N_DTYPES if it is poisoned. */
SOL_API enum sol_dtype sol_model_dtype(const struct sol_model *model, sol_tensor tensor);

/* Describes input number `i`, counted in the order of adding, with dims as in sol_model_shape; false if there is none. */
SOL_API bool sol_model_get_input(const struct sol_model *model, int i, struct sol_port *out);
/* The name of symbol number `i`, or NULL if there is none. The model owns it. */
SOL_API const char *sol_model_symbol_name(const struct sol_model *model, int i);

/* Returns the builder's first error, with its message in sol_error(), and forgets it: the call that failed has added nothing, and
 * the model can be continued in another way. Memory that is out is not forgotten. */
SOL_API SOL_CHECKED enum sol_status sol_model_recover(struct sol_model *model);

/* Returns the builder's first error; without one, verifies the whole model. */
SOL_API SOL_CHECKED enum sol_status sol_model_check(const struct sol_model *model);

/* Converts a model to its text form (docs/ir.md) and back. The text is malloc'ed; NULL: out of memory, or the builder had an
 * error. Parsing what sol_model_print returns gives an equal model. */
SOL_API char *sol_model_print(const struct sol_model *model);
SOL_API SOL_CHECKED enum sol_status sol_model_parse(const char *text, struct sol_model **out);

/* ---- Compiling ------------------------------------------------------------------------------ */

struct sol_options {
    const char *device; /* "x86", "ref", ...; NULL: the best one available */
    int device_number;  /* of devices of which there may be several: 0, 1, .. */
    int64_t batch_hint; /* typical value of the first symbol, for the cost model; 0 means 1 */
    /* typical values of the first n_hints symbols, in their order; 0: unknown. hints[0] is not used */
    int n_hints;
    const int64_t *hints;
    /* same bits at every run, rounding errors of plain sums: docs/numerics.md */
    bool deterministic;
    /* 0 to 1: how much of what a forward call could save is computed again in its backward call. With r, at most 1 - r of the bytes
     * that 0 saves are saved, if that is possible; 0 repeats no layer that takes time, 1 saves the least that is sensible
     * (src/pass/recompute_choice.c). SOL_RECOMPUTE_CHEAP: all pointwise layers are repeated, no products */
    double recompute;
#define SOL_RECOMPUTE_CHEAP (-1.0)
    bool no_autotune; /* choose by the cost model alone, without timing */
    bool debug;       /* write the C text of generated kernels into ./.sol */
    const char *name; /* folder of that text below ./.sol */
    /* instruction set to compile for: "avx512", "avx2", "neon"; NULL: this machine's */
    const char *cpu;
    /* the program keeps the C text of its generated kernels and interprets them */
    bool keep_source;
    bool no_libraries; /* own kernels compute all products; keep_source implies it */
    void (*progress)(void *user, int done, int total, const char *what); /* may be NULL */
    void *user; /* first argument of `progress` */
};

/* Runs a model once, layer by layer, without compiling it: for values that are needed once, or that are few. Slow for large ones.
 * `inputs`, `params` and `outputs` are in the order of the model, as in sol_program_run; NULL for those that it does not have.
 * EINVAL: the model has symbols. EINDEX: an index of a gather is outside of its table. */
SOL_API SOL_CHECKED enum sol_status sol_model_evaluate(const struct sol_model *model,
                                                       const void *const *inputs,
                                                       const void *const *params,
                                                       void *const *outputs);

/* Compiles a model into a program that the caller releases. `options` may be NULL. The program does not refer to the model. */
SOL_API SOL_CHECKED enum sol_status sol_compile(const struct sol_model *model,
                                                const struct sol_options *options,
                                                struct sol_program **out);

/* The model as text after pass number `pass` (0: as built), malloc'ed; `*name` is that pass. NULL with sol_error(). */
SOL_API char *sol_dump(const struct sol_model *model, int pass, const char **name);

/* Graphviz text of a compiled program, malloc'ed: a box per cluster, its color shows the module. */
SOL_API char *sol_program_dot(const struct sol_program *program);
/* A self-contained HTML report: the network with the time of each step, memory over time, and which
 * implementations were chosen. `steps` has what sol_program_profile reported with these symbols, for each of the program's
 * `n` steps; their seconds may be medians of several runs. malloc'ed; NULL with sol_error(). */
SOL_API char *sol_program_html_report(const struct sol_program *program, const char *title,
                                      const int64_t *symbols, const struct sol_step_time *steps,
                                      int n);
/* For each cluster, as text: the implementation that was chosen, those that refused, and why. The program owns the text. */
SOL_API const char *sol_program_report(const struct sol_program *program);
/* Number of kernels that this compile passed to the C compiler; 0 if all came from the cache. */
SOL_API int sol_program_n_compiled(const struct sol_program *program);
/* Processor time of the C compiler for these kernels, in seconds. */
SOL_API double sol_program_compiler_seconds(const struct sol_program *program);

/* ---- This machine --------------------------------------------------------------------------- */

struct sol_info {
    const char *kind; /* "device", "isa", "library", "compiler", "cache" */
    const char *name;
    bool available;
    const char *detail; /* version or path; the reason when it is not available */
};
/* Calls `visit` once for each device, instruction set and kernel library, for the C compiler, and for the cache. */
SOL_API void sol_query(void (*visit)(void *user, const struct sol_info *info), void *user);
SOL_API const char *sol_version(void);

/* Measure this machine with SOL's threads, for about 0.1 s. flops: peak floating point operations per second of the
 * instruction set in use, on registers (a multiply-add counts as two). bandwidth: bytes per second of repeated reads of a
 * buffer of `size` bytes (at least 256 KiB per thread, at most 512 MiB), so `size` decides which cache or memory is
 * measured; 0: out of memory. */
SOL_API double sol_measure_flops(void);
SOL_API double sol_measure_bandwidth(size_t size);

/* The cache of compiled kernels. usage: counts its files. clear: removes them, and counts what it removed (may be NULL). */
struct sol_cache {
    int64_t n_files, bytes;
};
SOL_API SOL_CHECKED enum sol_status sol_cache_usage(struct sol_cache *out);
SOL_API SOL_CHECKED enum sol_status sol_cache_clear(struct sol_cache *removed);

/* Logs a warning, once per process, for each environment variable of SOL that has an invalid value;
 * it names the valid ones. sol_compile calls this first. */
SOL_API void sol_check_environment(void);
/* The largest useful number of threads on this machine. */
SOL_API int sol_max_threads(void);

/* Identifies the kind of a file that is not a model by its first bytes, with advice for the user:
 * "compressed by gzip: unpack it first". NULL: unknown. Call it only if sol_onnx_is_model is false. */
SOL_API const char *sol_file_kind(const void *bytes, size_t size);

/* Makes `n` bytes of untrusted text, such as a name from a file, safe for a terminal or a log: printable UTF-8 stays,
 * any other byte becomes \xNN; with `keep_lines` newlines and tabs stay, too. Writes at most `size` bytes including a NUL;
 * returns the length of the whole result, without the NUL. */
SOL_API size_t sol_clean(const char *text, size_t n, bool keep_lines, char *out, size_t size);

/* Log levels: 0 error, 1 warn, 2 info, 3 debug, 4 trace. Default: $SOL_LOG or warn. */
SOL_API void sol_set_log_level(int level);

#ifdef __cplusplus
}
#endif
#endif

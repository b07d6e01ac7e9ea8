/*
 * SOL, compile API. Build a model, compile it for a device, run it (run.h).
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
 * The builder is sticky: after the first mistake every call returns a poisoned tensor, and
 * sol_model_check() or sol_compile() reports that first mistake, with the layer and its origin.
 *
 * Dims are always outermost first, as in NumPy. All layers and their attributes: docs/ir.md.
 */
#ifndef SOL_H
#define SOL_H

#include <sol/run.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sol_model;
typedef int32_t sol_tensor; /* index of a tensor in its model; < 0 is poisoned */

/* ---- Models --------------------------------------------------------------------------------- */

/* NULL only when memory is out. */
SOL_API struct sol_model *sol_model_new(const char *name);
SOL_API void sol_model_free(struct sol_model *model);

/* A size that is given at each run. Returns a negative number to use as a dim. */
SOL_API int64_t sol_model_symbol(struct sol_model *model, const char *name);

SOL_API sol_tensor sol_model_input(struct sol_model *model, const char *name, enum sol_dtype dtype,
                                   int rank, const int64_t *dim);
/* The caller owns parameters and passes them to sol_weights_new. */
SOL_API sol_tensor sol_model_param(struct sol_model *model, const char *name, enum sol_dtype dtype,
                                   int rank, const int64_t *dim);
/* A scalar (rank 0, f32) known at compile time. */
SOL_API sol_tensor sol_model_scalar(struct sol_model *model, double value);

/* Adds layer `kind`, with attributes as text: "stride=[2,2] groups=4". `origin` (may be NULL) is shown
 * in error messages: a line of the user's program. Returns the first output. */
SOL_API sol_tensor sol_model_layer(struct sol_model *model, const char *kind, int n_in,
                                   const sol_tensor *in, const char *attributes,
                                   const char *origin);
SOL_API void sol_model_output(struct sol_model *model, const char *name, sol_tensor tensor);

/* Shape of a tensor as the builder inferred it: rank, or -1 when poisoned. Symbolic dims come as in
 * struct sol_port; a dim that is a formula of symbols comes as INT64_MIN. */
SOL_API int sol_model_shape(const struct sol_model *model, sol_tensor tensor,
                            int64_t dim[SOL_MAX_RANK]);

/* Input number `i`, in the order in which they were added, with dims as of sol_model_shape; false past the last. The name of symbol
 * number `i`; NULL past the last. Names live as long as the model. */
SOL_API bool sol_model_get_input(const struct sol_model *model, int i, struct sol_port *out);
SOL_API const char *sol_model_symbol_name(const struct sol_model *model, int i);

/* Reports the builder's first error, if any, and verifies the model. */
SOL_API SOL_CHECKED enum sol_status sol_model_check(const struct sol_model *model);

/* The text form (docs/ir.md). sol_model_print returns malloc'ed text, NULL when memory is out;
 * parsing it gives an equal model. */
SOL_API char *sol_model_print(const struct sol_model *model);
SOL_API SOL_CHECKED enum sol_status sol_model_parse(const char *text, struct sol_model **out);

/* ---- Compiling ------------------------------------------------------------------------------ */

struct sol_options {
    const char *device; /* "x86", "ref", ...; NULL = the best one available */
    int64_t batch_hint; /* typical value of the first symbol, for the cost model; 0 = 1 */
    bool deterministic; /* same bits at every run, errors of plain sums: docs/numerics.md */
    bool no_autotune;   /* choose by the cost model alone, without timing */
    bool debug;         /* write generated sources and graphs into ./.sol */
    const char *name;   /* prefix of debug output */
    const char
        *cpu; /* instruction set to compile for: "avx512", "avx2", "neon"; NULL: this machine's */
    bool keep_source; /* the program keeps its generated kernels as text, and interprets them */
    void (*progress)(void *user, int done, int total, const char *what); /* may be NULL */
    void *user;
};

/* Compiles for a device. `options` may be NULL. The program does not refer to the model. */
SOL_API SOL_CHECKED enum sol_status sol_compile(const struct sol_model *model,
                                                const struct sol_options *options,
                                                struct sol_program **out);

/* The model as text after pass number `pass` (0 = as built) and that pass's name; NULL past the last. */
SOL_API char *sol_dump(const struct sol_model *model, int pass, const char **name);

/* Graphviz text of a compiled program: clusters as boxes, modules as colours. malloc'ed. */
SOL_API char *sol_program_dot(const struct sol_program *program);
/* A self-contained HTML report: the network with the time of each step, memory over time, and which
 * implementations were chosen. `steps`: what sol_program_profile reported for all `n` steps with
 * these symbols, or medians of several runs. malloc'ed; NULL with sol_error(). */
SOL_API char *sol_program_html_report(const struct sol_program *program, const char *title,
                                      const int64_t *symbols, const struct sol_step_time *steps,
                                      int n);
/* What was chosen and refused for each cluster, and why, as text. Valid as long as the program. */
SOL_API const char *sol_program_report(const struct sol_program *program);
/* How many kernels this compile handed to the C compiler; 0 when all came from the cache. */
SOL_API int sol_program_n_compiled(const struct sol_program *program);
/* Processor time that the C compiler took for them. */
SOL_API double sol_program_compiler_seconds(const struct sol_program *program);

/* ---- What is there -------------------------------------------------------------------------- */

struct sol_info {
    const char *kind; /* "device", "isa", "library", "compiler", "cache" */
    const char *name;
    bool available;
    const char *detail; /* version or path; the reason when it is not available */
};
/* Calls `visit` for every device, instruction set, kernel library, compiler and cache. */
SOL_API void sol_query(void (*visit)(void *user, const struct sol_info *info), void *user);
SOL_API const char *sol_version(void);

/* Limits of this machine, measured for some milliseconds with SOL's threads: floating point operations per second (a
 * multiply-add is two) that vectors of its best instruction set reach on registers, and bytes per second of reading
 * `size` bytes over and over, from whatever cache or memory holds as many; 0 when memory is out. */
SOL_API double sol_measure_flops(void);
SOL_API double sol_measure_bandwidth(size_t size);

/* The cache of compiled kernels: what is in it, and what was removed (may be NULL). */
struct sol_cache {
    int64_t n_files, bytes;
};
SOL_API SOL_CHECKED enum sol_status sol_cache_usage(struct sol_cache *out);
SOL_API SOL_CHECKED enum sol_status sol_cache_clear(struct sol_cache *removed);

/* Warns about each environment variable of SOL that has an invalid value, and names the valid ones;
 * once per variable and process. sol_compile does it first. */
SOL_API void sol_check_environment(void);
/* The largest useful number of threads on this machine. */
SOL_API int sol_max_threads(void);

/* Identifies a file that is not a model by its first bytes, and says what to do about it:
 * "compressed by gzip: unpack it first". NULL when the bytes are unknown. Call sol_onnx_is_model
 * first. */
SOL_API const char *sol_file_kind(const void *bytes, size_t size);

/* Makes untrusted text, such as a name from a file, safe to show on a terminal or in a log: printable UTF-8 stays, any other byte
 * becomes \xNN; with `keep_lines` newlines and tabs stay, too. Writes what fits into `size` bytes, with a NUL; returns the length
 * of all. */
SOL_API size_t sol_clean(const char *text, size_t n, bool keep_lines, char *out, size_t size);

/* Log levels: 0 error, 1 warn, 2 info, 3 debug, 4 trace. Default: $SOL_LOG or warn. */
SOL_API void sol_set_log_level(int level);

#ifdef __cplusplus
}
#endif
#endif

/*
 * SOL, ONNX frontend: reads an ONNX file into a model.
 *
 *     struct sol_onnx *onnx;
 *     struct sol_program *program;
 *     struct sol_weights *weights;
 *     if (sol_onnx_read("net.onnx", &onnx)) puts(sol_error());
 *     sol_compile(sol_onnx_model(onnx), NULL, &program);
 *     sol_weights_new(program, sol_onnx_params(onnx), &weights);
 *
 * Opsets 6 to 28 of the default domain. Files are untrusted: any content gives a model or an error
 * that names the node, and nothing outside of the file's folder is read.
 */
#ifndef SOL_ONNX_H
#define SOL_ONNX_H

#include <sol/sol.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sol_onnx;

/* Do these bytes look like an ONNX model, whatever the file's name? The first few KiB of a file will do. A quick look, for choosing a
 * reader: a file that looks like one may still be malformed. */
SOL_API bool sol_onnx_is_model(const void *bytes, size_t size);

/* `path` may also be a pipe, or /dev/stdin: it is read to its end. EINVAL when the file cannot be read or is malformed, EUNSUPPORTED for what SOL does not have. */
SOL_API SOL_CHECKED enum sol_status sol_onnx_read(const char *path, struct sol_onnx **out);
/* The same from memory, which is copied. `folder`: where external data may lie; NULL: nowhere. */
SOL_API SOL_CHECKED enum sol_status sol_onnx_parse(const void *data, size_t size,
                                                   const char *folder, struct sol_onnx **out);
/* The same with fixed shapes for inputs whose sizes the file leaves open, so that a network whose
 * structure depends on them can be compiled as a whole. */
struct sol_onnx_shape {
    const char *input;
    int rank;
    int64_t dim[SOL_MAX_RANK];
};
SOL_API SOL_CHECKED enum sol_status sol_onnx_read_shaped(const char *path,
                                                         const struct sol_onnx_shape *shapes, int n,
                                                         struct sol_onnx **out);
SOL_API SOL_CHECKED enum sol_status sol_onnx_parse_shaped(const void *data, size_t size,
                                                          const char *folder,
                                                          const struct sol_onnx_shape *shapes,
                                                          int n, struct sol_onnx **out);
/* The model; it belongs to `onnx`. */
SOL_API struct sol_model *sol_onnx_model(const struct sol_onnx *onnx);
/* Values of the model's parameters for sol_weights_new, in its order; valid until sol_onnx_free. */
SOL_API int sol_onnx_n_params(const struct sol_onnx *onnx);
SOL_API const void *const *sol_onnx_params(const struct sol_onnx *onnx);
SOL_API int sol_onnx_n_nodes(const struct sol_onnx *onnx);
SOL_API void sol_onnx_free(struct sol_onnx *onnx);

/*
 * Sessions run networks that cannot be compiled as a whole. A call compiles the partitions of the
 * graph that SOL supports, as soon as their shapes are known, and caches them for later calls. It
 * interprets the other nodes. Sessions support all element types of ONNX except complex numbers;
 * also sequences, optionals, control flow and model-local functions.
 *
 *     struct sol_session *net;
 *     struct sol_results *results;
 *     if (sol_session_read("net.onnx", NULL, &net)) puts(sol_error());
 *     float data[6] = {1, 2, 3, 4, 5, 6};
 *     struct sol_value x = {.type = 1, .rank = 2, .dim = {2, 3}, .n = 6, .data = data};
 *     if (sol_session_run(net, (const struct sol_value *[]){&x}, &results)) puts(sol_error());
 *     const struct sol_value *y = sol_results_get(results, 0);
 *
 * The interpreter is a reference: plain loops, results that are at least as precise as their type, and slow. Try sol_onnx_read first.
 * Each call has limits: $SOL_CALL_MEMORY for memory, $SOL_LOOP_SECONDS for loops of the network. An
 * index out of range, an integer division by 0 and the like are EINVAL; the message begins with the
 * node's number, operator and name.
 */

/* `type`: ONNX's number of the element type, with one of these besides. */
enum { SOL_VALUE_NONE = 0, SOL_VALUE_SEQUENCE = -1 };

/* A tensor, row major; elements below 8 bits take a byte each, strings are struct sol_string. Or a sequence, whose `data` are `n`
 * pointers to values; or an optional that has no value. */
struct sol_value {
    int type, rank;
    int64_t dim[SOL_MAX_RANK];
    int64_t n; /* elements or items */
    const void *data;
};
struct sol_string {
    const char *at; /* no NUL behind it */
    size_t size;
};

struct sol_session;
struct sol_results;

/* EINVAL when the file cannot be read or is malformed, EUNSUPPORTED when an operator is neither compiled nor interpreted. `options`
 * (NULL: defaults) are those of all compiled parts; only device, deterministic and no_autotune count, and must stay valid. */
SOL_API SOL_CHECKED enum sol_status sol_session_read(const char *path,
                                                     const struct sol_options *options,
                                                     struct sol_session **out);
SOL_API SOL_CHECKED enum sol_status sol_session_parse(const void *data, size_t size,
                                                      const char *folder,
                                                      const struct sol_options *options,
                                                      struct sol_session **out);
SOL_API void sol_session_free(struct sol_session *session);

/* Return the name. Type 0: not a tensor; rank -1: unknown rank. A negative dim is open: input dims
 * with the same number below -1 have one name, which sol_session_size_name returns; -1 has no name
 * (NULL). */
SOL_API int sol_session_n_inputs(const struct sol_session *session);
SOL_API int sol_session_n_outputs(const struct sol_session *session);
SOL_API const char *sol_session_input(const struct sol_session *session, int i, int *type,
                                      int *rank, int64_t dim[SOL_MAX_RANK]);
SOL_API const char *sol_session_output(const struct sol_session *session, int i, int *type,
                                       int *rank, int64_t dim[SOL_MAX_RANK]);
SOL_API const char *sol_session_size_name(const struct sol_session *session, int64_t dim);
/* How many nodes the last call ran compiled and how many it interpreted; nodes of subgraphs count
 * as the node that contains them. */
SOL_API void sol_session_count(const struct sol_session *session, int *compiled, int *interpreted);

/* One call, with a value for each input (NULL: an optional one left out). Calls on one network may overlap. The results belong to
 * the caller. */
SOL_API SOL_CHECKED enum sol_status sol_session_run(struct sol_session *session,
                                                    const struct sol_value *const *inputs,
                                                    struct sol_results **out);
SOL_API const struct sol_value *sol_results_get(const struct sol_results *results, int i);
SOL_API void sol_results_free(struct sol_results *results);

#ifdef __cplusplus
}
#endif
#endif

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
 * It reads opsets 6 to 28 of the default domain. Files are untrusted: any content gives a model or an
 * error that names the node. Nothing outside the file's folder is read.
 */
#ifndef SOL_ONNX_H
#define SOL_ONNX_H

#include <sol/sol.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sol_onnx;

/* Do these bytes look like an ONNX model? The first few KiB of a file are enough; the file's name does not matter. This is a quick
 * check to choose a reader: a file that passes it may still be malformed. */
SOL_API bool sol_onnx_is_model(const void *bytes, size_t size);

/* Reads a file; sol_onnx_free frees *out. `path` may also be a pipe or /dev/stdin, which is read to its end. EINVAL when the file
 * cannot be read or is malformed, EUNSUPPORTED when it uses something that SOL does not support. */
SOL_API SOL_CHECKED enum sol_status sol_onnx_read(const char *path, struct sol_onnx **out);
/* The same from memory, which is copied. `folder`: the folder of external data; NULL: external data is an error. */
SOL_API SOL_CHECKED enum sol_status sol_onnx_parse(const void *data, size_t size,
                                                   const char *folder, struct sol_onnx **out);
/* The same, but with fixed shapes for `n` inputs whose sizes the file leaves open. So a network whose
 * structure depends on these sizes can be compiled as a whole. */
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
/* The model; `onnx` owns it. */
SOL_API struct sol_model *sol_onnx_model(const struct sol_onnx *onnx);
/* Values of the model's parameters, in the order of sol_weights_new; valid until sol_onnx_free. */
SOL_API int sol_onnx_n_params(const struct sol_onnx *onnx);
SOL_API const void *const *sol_onnx_params(const struct sol_onnx *onnx);
SOL_API int sol_onnx_n_nodes(const struct sol_onnx *onnx);
SOL_API void sol_onnx_free(struct sol_onnx *onnx);

/*
 * What a file declares: its inputs and outputs as their author named them, and texts about it. sol_onnx_info_read does not check
 * whether SOL can run the network. A text is "" where the file has none. A port's type is written as "tensor(float)",
 * "seq(tensor(int64))" or "optional(tensor(float))", "" if it is none of these.
 */
struct sol_onnx_dim {
    int64_t size;     /* -1: open */
    const char *name; /* of an open size; "": none */
};
struct sol_onnx_port {
    const char *name, *type;
    int rank;                       /* -1: unknown; for an optional that of its value */
    const struct sol_onnx_dim *dim; /* `rank` of them */
    bool is_initialized;            /* an input for which the file has a value, too */
};
struct sol_onnx_info {
    int64_t ir_version, version; /* of the format; of the model (INT64_MAX: none) */
    const char *producer, *domain, *description, *graph_name, *graph_description;
    int n_inputs, n_outputs, n_properties;
    const struct sol_onnx_port *inputs, *outputs;
    const char *const *keys, *const *values; /* of the properties */
};

/* EINVAL when the file cannot be read or is malformed. sol_onnx_info_free frees *out with all that it points to. */
SOL_API SOL_CHECKED enum sol_status sol_onnx_info_read(const char *path,
                                                       struct sol_onnx_info **out);
SOL_API SOL_CHECKED enum sol_status sol_onnx_info_parse(const void *data, size_t size,
                                                        struct sol_onnx_info **out);
SOL_API void sol_onnx_info_free(struct sol_onnx_info *info);

/*
 * Sessions run networks that cannot be compiled as a whole. A call compiles the partitions of the
 * graph that SOL supports, as soon as their shapes are known, and keeps them for later calls, also in branches
 * and loops. It interprets the other nodes. Sessions support all element types of ONNX except complex numbers,
 * and also sequences, optionals, control flow and model-local functions.
 *
 *     struct sol_session *net;
 *     struct sol_results *results;
 *     if (sol_session_read("net.onnx", NULL, &net)) puts(sol_error());
 *     float data[6] = {1, 2, 3, 4, 5, 6};
 *     struct sol_value x = {.type = 1, .rank = 2, .dim = {2, 3}, .n = 6, .data = data};
 *     if (sol_session_run(net, (const struct sol_value *[]){&x}, &results)) puts(sol_error());
 *     const struct sol_value *y = sol_results_get(results, 0);
 *
 * The interpreter is a slow reference: it runs plain loops, and its results are at least as precise as their type. Try
 * sol_onnx_read first. Each call has limits: $SOL_CALL_MEMORY for memory, $SOL_LOOP_SECONDS for loops of the network. Bad values,
 * such as an index out of range or an integer division by 0, are EINVAL; the message begins with the node's number, operator and
 * name.
 */

/* Values of `type` in struct sol_value: ONNX's number of the element type, or one of these. */
enum { SOL_VALUE_NONE = 0, SOL_VALUE_SEQUENCE = -1, SOL_VALUE_MAP = -2 };

/* A tensor, a sequence, a map, or an optional without a value. A map is a list of two tensors of equal length: keys, values. A tensor is row-major; each element below 8 bits takes a byte, and
 * strings are struct sol_string. The `data` of a sequence or map is an array of `n` pointers to values. */
struct sol_value {
    int type, rank;
    int64_t dim[SOL_MAX_RANK];
    int64_t n; /* elements of a tensor, items of a sequence; 2 for a map */
    const void *data;
};
struct sol_string {
    const char *at; /* without a NUL at the end */
    size_t size;
};

struct sol_session;
struct sol_results;

/* EINVAL when the file cannot be read or is malformed, EUNSUPPORTED when SOL can neither compile nor interpret an operator.
 * `options` (NULL: defaults) apply to all partitions; only device, deterministic and no_autotune have an effect, and must stay
 * valid. */
SOL_API SOL_CHECKED enum sol_status sol_session_read(const char *path,
                                                     const struct sol_options *options,
                                                     struct sol_session **out);
SOL_API SOL_CHECKED enum sol_status sol_session_parse(const void *data, size_t size,
                                                      const char *folder,
                                                      const struct sol_options *options,
                                                      struct sol_session **out);
SOL_API void sol_session_free(struct sol_session *session);

/* sol_session_input and sol_session_output return the name. Type 0: not a tensor; rank -1: the rank
 * is unknown. A negative dim is an open size. Input dims with the same number below -1 are the same
 * size, and sol_session_size_name returns its name. A dim of -1 has no name (NULL). */
SOL_API int sol_session_n_inputs(const struct sol_session *session);
SOL_API int sol_session_n_outputs(const struct sol_session *session);
SOL_API const char *sol_session_input(const struct sol_session *session, int i, int *type,
                                      int *rank, int64_t dim[SOL_MAX_RANK]);
SOL_API const char *sol_session_output(const struct sol_session *session, int i, int *type,
                                       int *rank, int64_t dim[SOL_MAX_RANK]);
SOL_API const char *sol_session_size_name(const struct sol_session *session, int64_t dim);
/* How many nodes the last call ran compiled and how many it interpreted. Nodes of branches and of bodies of loops count each time
 * that they run. A node with subgraphs is interpreted itself. */
SOL_API void sol_session_count(const struct sol_session *session, int *compiled, int *interpreted);

/* Runs one call, with a value for each input (NULL: an optional input that is left out). Calls of one session may overlap. The
 * caller frees the results with sol_results_free; the values of sol_results_get are valid until then. */
SOL_API SOL_CHECKED enum sol_status sol_session_run(struct sol_session *session,
                                                    const struct sol_value *const *inputs,
                                                    struct sol_results **out);
/* Runs one call, without results, and measures it. Then it calls `visit` once for each step of a partition and each interpreted
 * node (module "node"; `layers` has its number and name, and the nodes around it), in the order in which they ran first. What
 * runs several times has the sum of its times. Texts are valid until `visit` returns. */
SOL_API SOL_CHECKED enum sol_status sol_session_profile(
    struct sol_session *session, const struct sol_value *const *inputs,
    void (*visit)(void *user, const struct sol_step_time *step), void *user);
SOL_API const struct sol_value *sol_results_get(const struct sol_results *results, int i);
SOL_API void sol_results_free(struct sol_results *results);

#ifdef __cplusplus
}
#endif
#endif

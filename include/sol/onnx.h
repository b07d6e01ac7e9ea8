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
 * Opsets 6 to 28 of the default domain. A file may come from anybody: whatever it holds, the answer is a model or an error that
 * names the node, and nothing outside of the file's folder is read.
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
/* The same, for one shape of inputs whose sizes the file leaves open: what depends on them can then be compiled as a whole. */
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
 * Mixed networks: what cannot be compiled as a whole. Parts of the graph that SOL takes, once the shapes and the numbers that decide
 * shapes are known, are compiled at the first call that needs them, and kept; the rest is interpreted at every call. All element types
 * of ONNX but complex numbers, sequences, optionals, control flow and functions of the file's own are there.
 *
 *     struct sol_mixed *net;
 *     struct sol_results *results;
 *     if (sol_mixed_read("net.onnx", NULL, &net)) puts(sol_error());
 *     float data[6] = {1, 2, 3, 4, 5, 6};
 *     struct sol_value x = {.type = 1, .rank = 2, .dim = {2, 3}, .n = 6, .data = data};
 *     if (sol_mixed_run(net, (const struct sol_value *[]){&x}, &results)) puts(sol_error());
 *     const struct sol_value *y = sol_results_get(results, 0);
 *
 * The interpreter is a reference: plain loops, results that are at least as precise as their type, and slow. Try sol_onnx_read first.
 * What a call may take is limited: memory by $SOL_CALL_MEMORY, loops of the network by $SOL_LOOP_SECONDS. An index outside of its dim,
 * a division of whole numbers by 0 and the like are EINVAL, with the node's number, operator and name in front of the message.
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

struct sol_mixed;
struct sol_results;

/* EINVAL when the file cannot be read or is malformed, EUNSUPPORTED when an operator is neither compiled nor interpreted. `options`
 * (NULL: defaults) are those of all compiled parts; only device, no_winograd and no_autotune count, and must stay valid. */
SOL_API SOL_CHECKED enum sol_status sol_mixed_read(const char *path,
                                                   const struct sol_options *options,
                                                   struct sol_mixed **out);
SOL_API SOL_CHECKED enum sol_status sol_mixed_parse(const void *data, size_t size,
                                                    const char *folder,
                                                    const struct sol_options *options,
                                                    struct sol_mixed **out);
SOL_API void sol_mixed_free(struct sol_mixed *mixed);

/* Names; a type of 0 says no tensor, a rank of -1 that it is open. A dim below 0 is open; of inputs, equal ones below -1 have the same name,
 * which sol_mixed_size_name tells, and -1 has none (NULL). */
SOL_API int sol_mixed_n_inputs(const struct sol_mixed *mixed);
SOL_API int sol_mixed_n_outputs(const struct sol_mixed *mixed);
SOL_API const char *sol_mixed_input(const struct sol_mixed *mixed, int i, int *type, int *rank,
                                    int64_t dim[SOL_MAX_RANK]);
SOL_API const char *sol_mixed_output(const struct sol_mixed *mixed, int i, int *type, int *rank,
                                     int64_t dim[SOL_MAX_RANK]);
SOL_API const char *sol_mixed_size_name(const struct sol_mixed *mixed, int64_t dim);
/* Nodes of the last call that ran compiled, and that were interpreted; those of subgraphs count as their node. */
SOL_API void sol_mixed_count(const struct sol_mixed *mixed, int *compiled, int *interpreted);

/* One call, with a value for each input (NULL: an optional one left out). Calls on one network may overlap. The results belong to
 * the caller. */
SOL_API SOL_CHECKED enum sol_status sol_mixed_run(struct sol_mixed *mixed,
                                                  const struct sol_value *const *inputs,
                                                  struct sol_results **out);
SOL_API const struct sol_value *sol_results_get(const struct sol_results *results, int i);
SOL_API void sol_results_free(struct sol_results *results);

#ifdef __cplusplus
}
#endif
#endif

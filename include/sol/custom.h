/*
 * SOL, custom layers: a C function of yours computes a layer of a network.
 *
 *   swirl.c -> sol.custom_layer (Python) or sol_custom_compile (sol.h) -> layers "swirl" of any network
 *
 * A source file includes this header and defines a function with the name of the layer:
 *
 *     #include <sol/custom.h>
 *
 *     enum sol_status swirl(const struct sol_host_call *call) {
 *         const float *x = call->in[0].data;
 *         float *y = call->out[0].data;
 *         const double angle = sol_attribute_float(call, "angle");
 *         if (call->in[0].rank != 2)
 *             return sol_host_fail(call, SOL_EINVAL, "x has %d dims, not 2", call->in[0].rank);
 *         ...
 *         return SOL_OK;
 *     }
 *
 * Tensors: contiguous, outermost dim first, at any address that suits their elements. Their element types and dims are those of
 * this call; those of outputs were declared with the layer. SOL owns all memory, which is valid during the function only. The
 * function writes every element of each output, and nothing else; what outputs hold before is undefined. An input may be the
 * caller's own tensor: never write it. Inputs and outputs do not overlap. A tensor with a dim of 0 has any address.
 *
 * Errors: return a status other than SOL_OK, with a message by sol_host_fail. The call of the network then fails with this message
 * behind the layer's name; also if the function has written a message and returns SOL_OK. The function must not end the process, and must not leave by longjmp or a C++ exception.
 *
 * Threads: calls of a network may overlap, so the function may run on several threads at once. It keeps nothing between calls,
 * except by its own synchronization. To divide its work among SOL's threads, the source also defines a function NAME_tasks:
 *
 *     int64_t swirl_tasks(const struct sol_host_call *call) { return call->in[0].dim[0]; }
 *
 * It returns the number of tasks, at least 1 unless an output is empty. It depends on types, dims and attributes alone: it may not read
 * `data`. SOL then calls swirl several times, on several threads, each time for tasks [call->begin, call->end), so that each task is
 * computed once. Tasks write disjoint elements, so the result does not depend on their order. Without it there is one task.
 *
 * Compatibility: later versions of SOL add fields at the ends of structs only, so compiled functions stay valid.
 */
#ifndef SOL_CUSTOM_H
#define SOL_CUSTOM_H

#include <sol/run.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sol_host_tensor {
    void *data; /* any address if the tensor is empty */
    enum sol_dtype dtype;
    int rank;
    int64_t dim[SOL_MAX_RANK];
};

/* A constant of one layer, such as the angle of this swirl: a number, a list of numbers, or a text. One of the three pointers is
 * set. A bool is the int 0 or 1. */
struct sol_attribute {
    const char *name;
    int64_t n; /* of a list; else 1 */
    const int64_t *ints;
    const double *floats;
    const char *text;
};

#define SOL_HOST_MESSAGE 512
struct sol_host_call {
    int n_in, n_out, n_symbols;
    const struct sol_host_tensor *in, *out;
    const int64_t *symbol; /* the values of the model's symbols in this call */
    char *message;         /* SOL_HOST_MESSAGE bytes, in which the function may explain an error */
    int n_attributes; /* of custom layers: always all attributes, in the order of their declaration */
    const struct sol_attribute *attribute;
    int64_t begin, end; /* the tasks to compute: 0 and 1 if there is no NAME_tasks */
};

/* A custom layer's function, and its optional NAME_tasks. */
typedef enum sol_status sol_custom_run(const struct sol_host_call *call);
typedef int64_t sol_custom_tasks(const struct sol_host_call *call);

/* ---- Helpers ---- */

/* Writes a message as printf does, and returns `status`. */
__attribute__((format(printf, 3, 4))) static inline enum sol_status sol_host_fail(
    const struct sol_host_call *call, enum sol_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(call->message, SOL_HOST_MESSAGE, format, arguments);
    va_end(arguments);
    return status;
}

/* The number of elements. */
static inline int64_t sol_host_count(const struct sol_host_tensor *tensor) {
    int64_t n = 1;
    for (int i = 0; i < tensor->rank; i++) n *= tensor->dim[i];
    return n;
}

/* The attribute of this name, or NULL. */
static inline const struct sol_attribute *sol_attribute_find(const struct sol_host_call *call,
                                                             const char *name) {
    for (int i = 0; i < call->n_attributes; i++)
        if (!strcmp(call->attribute[i].name, name)) return &call->attribute[i];
    return NULL;
}

/* The number in an attribute, the first one of a list. An int is a float, too, as Python's default decides which of them an attribute
 * is. If there is no such attribute, or it has no number of this type, the result is 0, and the call fails with a message. */
static inline int64_t sol_attribute_int(const struct sol_host_call *call, const char *name) {
    const struct sol_attribute *a = sol_attribute_find(call, name);
    if (a && a->ints && a->n) return a->ints[0];
    (void)sol_host_fail(call, SOL_EINVAL, "it has no integer \"%.64s\" among its attributes", name);
    return 0;
}
static inline double sol_attribute_float(const struct sol_host_call *call, const char *name) {
    const struct sol_attribute *a = sol_attribute_find(call, name);
    if (a && a->n && a->floats) return a->floats[0];
    if (a && a->n && a->ints) return (double)a->ints[0];
    (void)sol_host_fail(call, SOL_EINVAL, "it has no number \"%.64s\" among its attributes", name);
    return 0;
}

#ifdef __cplusplus
}
#endif
#endif

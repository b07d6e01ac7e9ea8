/*
 * SOL, run API: runs compiled programs.
 *
 *   sol_compile (sol.h) -> program; program + parameters -> sol_weights_new -> weights
 *   program + weights + inputs -> sol_program_run -> outputs
 *
 *   struct sol_program   compiled network: steps, kernels, size formulas. Immutable, shared, refcounted.
 *   struct sol_weights   packed parameters (folded, reordered, transformed) of one version of the parameters.
 *
 * A program does not own the caller's tensors: inputs, parameters and outputs are plain pointers. Inputs and outputs
 * must be valid during the call, parameters as long as their weights. All tensors are contiguous, outermost dim first
 * (row major). A program may write parameters (sol_model_update); their ports say so (`is_updated`). It does so at the end of a
 * call that has not failed.
 *
 * Errors: a function that can fail returns an enum sol_status, or NULL where it returns a pointer; sol_error() then returns
 * the message of the last failure on the calling thread. Nothing in SOL ends the process.
 *
 * Threads: all functions may be called from any thread. Calls on one program may overlap, unless the program updates parameters:
 * then the caller must not let a call overlap with another use of these parameters' memory, just as for a function of his own.
 */
#ifndef SOL_RUN_H
#define SOL_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef SOL_API
#define SOL_API __attribute__((visibility("default")))
#endif
#define SOL_CHECKED __attribute__((warn_unused_result))
#define SOL_MAX_RANK 8
#define SOL_MAX_SYMBOLS 8 /* of a model */

/* code, Python exception, meaning */
#define SOL_STATUS_LIST(X)                                                     \
    X(EINVAL, ValueError, "bad argument or model")                             \
    X(EUNSUPPORTED, NotImplementedError, "legal, but nobody implements it")    \
    X(ENOMEM, MemoryError, "out of memory")                                    \
    X(EDEVICE, RuntimeError, "the device or its driver failed")                \
    X(ETOOL, RuntimeError, "the C compiler rejected a kernel or did not end")  \
    X(EBUG, RuntimeError, "an invariant of SOL is broken")                     \
    X(EINDEX, IndexError, "an index in the data is out of range")

enum sol_status {
    SOL_OK,
#define SOL_STATUS_ENUM(code, exception, text) SOL_##code,
    SOL_STATUS_LIST(SOL_STATUS_ENUM)
#undef SOL_STATUS_ENUM
};

/* All element types: code, name, the C type that holds one element, family. Elements of bf16 and f16 are stored as their bits; a
 * bool is 0 or 1. */
#define SOL_DTYPE_LIST(X)          \
    X(F32, "f32", float, FLOAT)      \
    X(F64, "f64", double, FLOAT)     \
    X(BF16, "bf16", uint16_t, FLOAT) \
    X(F16, "f16", uint16_t, FLOAT)   \
    X(I64, "i64", int64_t, INTEGER)  \
    X(I32, "i32", int32_t, INTEGER)  \
    X(I16, "i16", int16_t, INTEGER)  \
    X(I8, "i8", int8_t, INTEGER)     \
    X(U8, "u8", uint8_t, INTEGER)    \
    X(BOOL, "bool", uint8_t, TRUTH)

enum sol_dtype {
#define SOL_DTYPE_ENUM(code, name, type, family) SOL_##code,
    SOL_DTYPE_LIST(SOL_DTYPE_ENUM)
#undef SOL_DTYPE_ENUM
    SOL_N_DTYPES
};

/* The message of the last failure on this thread; "" if there was none. Valid until the next failure on this thread. */
SOL_API const char *sol_error(void);

struct sol_program;
struct sol_weights;

/* Describes one input, parameter or output of a program. dim[i] < 0: the dim is symbol number
 * -dim[i]-1, whose value sol_program_run receives in `symbols`. */
struct sol_port {
    const char *name;
    enum sol_dtype dtype;
    int rank;
    int64_t dim[SOL_MAX_RANK];
    bool is_updated;  /* of a parameter: calls write it */
    bool is_backward; /* an input or output of sol_program_backward only */
    bool is_saved;    /* sol_program_backward reads this input or output of the forward call, too */
};

SOL_API int sol_program_n_inputs(const struct sol_program *program);
SOL_API int sol_program_n_params(const struct sol_program *program);
SOL_API int sol_program_n_outputs(const struct sol_program *program);
SOL_API int sol_program_n_symbols(const struct sol_program *program);
SOL_API const struct sol_port *sol_program_input(const struct sol_program *program, int i);
SOL_API const struct sol_port *sol_program_param(const struct sol_program *program, int i);
SOL_API const struct sol_port *sol_program_output(const struct sol_program *program, int i);

/* The shape of output `i` for these symbol values, in elements. */
SOL_API SOL_CHECKED enum sol_status sol_program_output_shape(const struct sol_program *program,
                                                             int i, const int64_t *symbols,
                                                             int64_t dim[SOL_MAX_RANK]);

/* Packs `params` (n_params pointers in the order of sol_program_param). The caller releases the
 * result. Kernels read some parameters in place instead of packed, so all parameters must stay valid
 * as long as the weights are used. The memory of parameters that the program updates must be writable, and may not overlap outputs
 * or other parameters. Their values are never packed, so the caller may change them between calls without new weights. */
SOL_API SOL_CHECKED enum sol_status sol_weights_new(const struct sol_program *program,
                                                    const void *const *params,
                                                    struct sol_weights **out);
/* Packs other values of the parameters. If the caller has the only reference to *weights, it gets the new values in its memory, so
 * no call with it may be running; else *weights is released, and new weights take its place. If it fails after it began to change
 * values, *weights is released, too, and NULL. */
SOL_API SOL_CHECKED enum sol_status sol_weights_update(struct sol_weights **weights,
                                                       const void *const *params);
SOL_API void sol_weights_retain(struct sol_weights *weights);
SOL_API void sol_weights_release(struct sol_weights *weights);

/* Runs the program once, synchronously. `symbols` holds one value >= 0 per symbol; `inputs` and `outputs` hold one pointer per
 * port. A symbol value of 0 (an empty batch) is legal; pointers of empty tensors may be NULL. Inputs may not overlap outputs. */
SOL_API SOL_CHECKED enum sol_status sol_program_run(const struct sol_program *program,
                                                    const struct sol_weights *weights,
                                                    const int64_t *symbols,
                                                    const void *const *inputs,
                                                    void *const *outputs);
/*
 * A program with a backward part (docs/ir.md, Phases) runs in two calls; sol_program_run refuses it. sol_program_forward computes the
 * outputs, and leaves the values that the second call needs in `saved`: memory of sol_program_saved_size bytes, aligned to 64, which
 * the caller owns. sol_program_backward reads it, and computes the outputs whose ports are `is_backward`. It gets the same symbols,
 * and weights of the same version of the parameters, which keep their values until the first backward call has returned, as it packs
 * some of them. Of the other ports it reads those that are `is_saved`: their memory must still have the values of the first call.
 * Pointers of ports that a call does not use may be NULL. The second call may be repeated.
 */
SOL_API SOL_CHECKED enum sol_status sol_program_forward(const struct sol_program *program,
                                                        const struct sol_weights *weights,
                                                        const int64_t *symbols,
                                                        const void *const *inputs,
                                                        void *const *outputs, void *saved);
SOL_API SOL_CHECKED enum sol_status sol_program_backward(const struct sol_program *program,
                                                         struct sol_weights *weights,
                                                         const int64_t *symbols,
                                                         const void *const *inputs,
                                                         void *const *outputs, void *saved);
/* The bytes of `saved` for these symbols; 0 if nothing is saved. EINVAL if no call can have these symbols. The values of a program for
 * a far device stay there, so it needs only a few bytes of the host, whose address names the values. They may not be moved. */
SOL_API SOL_CHECKED enum sol_status sol_program_saved_size(const struct sol_program *program,
                                                           const int64_t *symbols, size_t *out);
/* To be called before memory that was `saved` is freed or becomes something else: frees what it names on a far device. NULL is
 * fine, and so is memory that no call has got. */
SOL_API void sol_program_saved_free(const struct sol_program *program, void *saved);
/* A speculative run: calls `guard(user)` exactly once, on the calling thread, while workers may
 * already execute the first step. The guard fills `outputs`. If it returns false, the run is discarded:
 * nothing is written to outputs, and the status is meaningless. */
SOL_API SOL_CHECKED enum sol_status sol_program_run_speculative(
    bool (*guard)(void *user), void *user, const struct sol_program *program,
    const struct sol_weights *weights, const int64_t *symbols, const void *const *inputs,
    void *const *outputs);

/* An implementation that was considered for a step. */
struct sol_candidate {
    const char *name;
    const char *refusal; /* NULL: it accepted; else the reason */
    double seconds;      /* its estimated time, if it accepted */
};

/* One step of a profiled run. The program owns the strings. */
struct sol_step_time {
    const char *name;   /* e.g. "conv winograd4 3x3 64->64" */
    const char *module; /* "DFP", "DNN", "copy", "gather", "host" or "custom" */
    const char *layers; /* the layers fused into this step, as text */
    double seconds;
    double
        flops; /* floating point operations; of a convolution as the direct algorithm needs them */
    double bytes; /* minimal memory traffic: each input and output once */
    int cluster;  /* its number in the report and the graph; -1: the device has no clusters */
    /* The candidate that was chosen; the step's name if there was no choice. */
    const char *implementation;
    int n_candidates;
    const struct sol_candidate *candidate;
    const char *choice; /* the report's lines about this step */
    bool is_backward;   /* of the backward call */
};
/* Runs the program once and measures each step. Then it calls `visit` once per step, in order. Of a program with a backward part it
 * runs both calls, one after the other, with memory of its own for what the first leaves for the second; all pointers are needed. */
SOL_API SOL_CHECKED enum sol_status sol_program_profile(
    const struct sol_program *program, struct sol_weights *weights, const int64_t *symbols,
    const void *const *inputs, void *const *outputs,
    void (*visit)(void *user, const struct sol_step_time *step), void *user);

/* Bytes that SOL allocates: for packed parameters, and for one call with these symbols (arena and scratch of all
 * threads; 0 with sol_error() on a failure). A program with a backward part has one arena and scratch for each of both calls. */
SOL_API size_t sol_program_weights_size(const struct sol_program *program);
SOL_API size_t sol_program_arena_size(const struct sol_program *program, const int64_t *symbols);

/* All memory of a program, in bytes. Each call in flight has its own `arena` and `scratch`; calls share the rest. */
struct sol_memory {
    size_t weights;   /* packed parameters; the caller owns the parameters themselves */
    size_t constants; /* the program itself: steps, tables, report texts; without machine code */
    size_t arena;     /* intermediate values; those with disjoint lifetimes share memory */
    size_t live;      /* peak of simultaneously live intermediates: a lower bound for `arena` */
    size_t scratch;   /* of all threads together */
    size_t saved;     /* between a forward call and its backward call; the caller owns it */
    size_t backward_arena, backward_live, backward_scratch; /* those of the backward call */
};
/* The memory that the program needs with these symbols and the current number of threads. */
SOL_API SOL_CHECKED enum sol_status sol_program_memory(const struct sol_program *program,
                                                       const int64_t *symbols,
                                                       struct sol_memory *out);

/* What a program has copied between the host and its far device since it was made, in bytes; 0 on the host's own devices. */
struct sol_transfers {
    int64_t to_device,
        to_host; /* of calls: inputs, outputs, parameters that calls update, tensors of functions of the host */
    int64_t launches; /* kernels that calls have started */
    int64_t
        weights; /* parameters, whenever they are packed, and the program's constants: to the device */
};
SOL_API void sol_program_transfers(const struct sol_program *program, struct sol_transfers *out);

SOL_API void sol_program_retain(struct sol_program *program);
SOL_API void sol_program_release(struct sol_program *program);

/* Number of threads that compute a call, the caller included. 0: $SOL_NUM_THREADS, else one per core that the process may use. */
SOL_API void sol_set_threads(int n);
SOL_API int sol_threads(void);

#ifdef __cplusplus
}
#endif
#endif

/* Replaces the compiler by functions that fail: the readers are fuzzed without it, and sessions interpret all nodes. */
#include <sol/onnx.h>
#include <sol/sol.h>

enum sol_status sol_compile(const struct sol_model *model, const struct sol_options *options,
                            struct sol_program **out) {
    (void)model, (void)options, (void)out;
    return SOL_EUNSUPPORTED;
}
enum sol_status sol_weights_new(const struct sol_program *program, const void *const *params,
                                struct sol_weights **out) {
    (void)program, (void)params, (void)out;
    return SOL_EUNSUPPORTED;
}
enum sol_status sol_program_run(const struct sol_program *program,
                                const struct sol_weights *weights, const int64_t *symbols,
                                const void *const *inputs, void *const *outputs) {
    (void)program, (void)weights, (void)symbols, (void)inputs, (void)outputs;
    return SOL_EUNSUPPORTED;
}
enum sol_status sol_program_output_shape(const struct sol_program *program, int i,
                                         const int64_t *symbols, int64_t dim[SOL_MAX_RANK]) {
    (void)program, (void)i, (void)symbols, (void)dim;
    return SOL_EUNSUPPORTED;
}
const struct sol_port *sol_program_output(const struct sol_program *program, int i) {
    (void)program, (void)i;
    return NULL;
}
void sol_program_release(struct sol_program *program) { (void)program; }
void sol_weights_release(struct sol_weights *weights) { (void)weights; }

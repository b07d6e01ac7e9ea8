/*
 * Steps of generated kernels: call the compiled function, or the interpreter if the kernel has not been compiled.
 *
 *   dfp makes struct kernel -> the device's link sets `compiled` -> kernel_run at each call
 */
#include "run/program.h"

void kernel_call(const struct kernel *kernel, void *const *ptr, const int64_t *arg, char *scratch,
                 int64_t begin, int64_t end) {
    if (kernel->compiled) kernel->compiled(ptr, arg, scratch, begin, end);
    else kernel->interpret(kernel->code, ptr, arg, scratch, begin, end);
}

static void kernel_run(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                       int64_t begin, int64_t end) {
    kernel_call(step->data, ptr, arg, scratch, begin, end);
}

static int64_t kernel_n_tasks(const struct step *step, const int64_t *arg) {
    return arg[step->n_arg - 1];
}

const struct step_kind step_kernel = {
    .name = "kernel", .run = kernel_run, .n_tasks = kernel_n_tasks};

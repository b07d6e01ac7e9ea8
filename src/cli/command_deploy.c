/* `sol deploy`: writes a network as a library. */
#include "cli.h"

#include <sol/deploy.h>
#include <string.h>
#include <unistd.h>

/* The names of options and their values are those of sol.deploy in Python. */

/* The index of `name` in a list of three; -1 after a message. NULL selects the first. */
static int find_name(const char *option, const char *name, const char *const names[3]) {
    for (int i = 0; i < 3; i++)
        if (!name || !strcmp(names[i], name)) return i;
    complain("--%s=%s is none of %s, %s, %s", option, name, names[0], names[1], names[2]);
    return -1;
}

static int write_library(const struct options *o, const struct network *network,
                         struct sol_library *library) {
    if (isatty(2)) library->progress = show_progress;
    enum sol_status status = sol_deploy(network->model, sol_onnx_params(network->onnx), library);
    if (isatty(2)) clear_progress();
    if (status) return complain("%s: %s", o->model, sol_error());
    say("%s/%s.h says how to use it\n", library->path ? library->path : ".", library->lib_name);
    return 0;
}

/* The default device of C sources is c. The sizes of the simple function come from --batch and --shape. The text form is refused,
 * since it has no weights. */
int command_deploy(const struct options *o) {
    static const char *const targets[] = {"shared_lib", "static_lib", "c_source"};
    static const char *const weights[] = {"embedded", "file", "packed"};
    const int target = find_name("target", o->target, targets),
              place = find_name("weights", o->weights, weights);
    if (target < 0 || place < 0) return 2;
    const bool is_c = target == SOL_C_SOURCE && !o->compile.device;
    struct sol_library library = {.lib_name = o->lib_name ? o->lib_name : "MyNetwork",
                                  .func_name = o->func_name ? o->func_name : "predict",
                                  .path = o->output,
                                  .target = (enum sol_target)target,
                                  .weights = (enum sol_library_weights)place,
                                  .device = is_c ? "c" : o->compile.device,
                                  .cpu = o->compile.cpu,
                                  .compiler = o->compiler,
                                  .static_memory = o->static_memory,
                                  .deterministic = o->compile.deterministic,
                                  .no_autotune = o->compile.no_autotune};
    struct network network;
    int code = open_model(o, &network);
    library.symbols = network.symbols;
    if (!code && !network.onnx)
        code = complain("%s has no values to deploy: it is no ONNX model", o->model);
    if (!code) code = choose_sizes(o, &network);
    if (!code) code = write_library(o, &network, &library);
    close_network(&network);
    return code;
}

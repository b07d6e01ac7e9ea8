/*
 * SOL, deploy API: writes a trained network as a library that needs only the C library.
 *
 *   model + parameters -> sol_deploy -> library and header
 *
 *     struct sol_library library = {.lib_name = "MyNetwork", .func_name = "predict", .path = "."};
 *     if (sol_deploy(model, params, &library)) puts(sol_error());
 *
 * writes ./libMyNetwork.so and ./MyNetwork.h. The header's comments say how to call it; docs/deploy.md is the manual.
 */
#ifndef SOL_DEPLOY_H
#define SOL_DEPLOY_H

#include <sol/sol.h>

#ifdef __cplusplus
extern "C" {
#endif

enum sol_target {
    SOL_SHARED_LIB, /* libNAME.so */
    SOL_STATIC_LIB, /* libNAME.a */
    SOL_C_SOURCE /* device "c": NAME.c and NAME_math.h, C99; others: a folder NAME with build.sh */
};

/* Where the parameters' values are stored. */
enum sol_library_weights {
    SOL_WEIGHTS_EMBEDDED, /* in the library, as they were trained; packed at initialization */
    SOL_WEIGHTS_FILE,     /* in NAME.weights beside the library, mapped at initialization */
    SOL_WEIGHTS_PACKED    /* in the library, already packed: larger file, no packing at run time */
};

struct sol_library {
    const char *lib_name; /* a C identifier: names the files, and prefixes all symbols except ... */
    const char *func_name; /* ... these: func_name, func_name_init, _seed, _error */
    const char *path;      /* the output folder, created if missing; NULL: the working directory */
    enum sol_target target;
    enum sol_library_weights weights;
    const char *device;     /* "x86", "arm64", "ve", or "c" for portable C; NULL: this machine's */
    const char *cpu;        /* its instruction set; NULL: this machine's best, or the usual one */
    const char *compiler;   /* NULL: $SOL_CC or cc; for another device its cross compiler */
    const int64_t *symbols; /* the sizes of func_name, one per symbol of the model; NULL: all 1 */
    bool static_memory;     /* device "c": no malloc; a second call at the same time fails */
    bool deterministic, no_autotune; /* as in struct sol_options */
    void (*progress)(void *user, int done, int total, const char *what); /* may be NULL */
    void *user;
};

/*
 * Writes the library and its header. `params`: as for sol_weights_new. It replaces an earlier deployment of the same name,
 * of any target, and no other files. On failure no file changes. EINVAL: a name is no identifier, the folder cannot be
 * created, or a file that SOL did not write already has one of the names. EUNSUPPORTED: the device does not have an
 * option. EDEVICE: a far device cannot be used here. ETOOL: the compiler is missing or fails.
 */
SOL_API SOL_CHECKED enum sol_status sol_deploy(const struct sol_model *model,
                                               const void *const *params,
                                               const struct sol_library *library);

#ifdef __cplusplus
}
#endif
#endif

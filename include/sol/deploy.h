/*
 * SOL, deploying: a trained network as a library that needs nothing but the C library.
 *
 *     struct sol_library library = {.lib_name = "MyNetwork", .func_name = "predict", .path = "."};
 *     if (sol_deploy(model, params, &library)) puts(sol_error());
 *
 * writes ./libMyNetwork.so and ./MyNetwork.h, whose comments say how to call it. docs/deploy.md has the whole story.
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

/* Where the values of the parameters are. */
enum sol_library_weights {
    SOL_WEIGHTS_EMBEDDED, /* in the library, as they were trained; packed when it is opened */
    SOL_WEIGHTS_FILE,     /* in NAME.weights beside the library, mapped when it is opened */
    SOL_WEIGHTS_PACKED    /* in the library as kernels read them: larger, ready at once */
};

struct sol_library {
    const char
        *lib_name; /* a C identifier: names of files, and the prefix of all symbols but ... */
    const char *func_name; /* ... these: func_name, func_name_init, _seed, _error */
    const char *path;      /* a folder, made if need be; NULL: the working directory */
    enum sol_target target;
    enum sol_library_weights weights;
    const char *device;     /* "x86", "arm64", or "c" for portable C; NULL: this machine's */
    const char *cpu;        /* its instruction set; NULL: this machine's best, or the usual one */
    const char *compiler;   /* NULL: $SOL_CC or cc; for another device its cross compiler */
    const int64_t *symbols; /* sizes that func_name is for, one per symbol of the model; NULL: 1 */
    bool static_memory;     /* device "c": no malloc; one call at a time, a second one fails */
    bool deterministic, no_autotune; /* as in struct sol_options */
    void (*progress)(void *user, int done, int total, const char *what); /* may be NULL */
    void *user;
};

/*
 * Writes the library and its header. `params` as for sol_weights_new. Replaces an earlier deployment of the same name, whatever its
 * target was. Never replaces other files: if one is in the way, it fails. On failure nothing changes. EINVAL for names that are no
 * identifiers, and for a folder that cannot be made or has such files, EUNSUPPORTED for what a device does not have, ETOOL when the
 * compiler is missing or fails.
 */
SOL_API SOL_CHECKED enum sol_status sol_deploy(const struct sol_model *model,
                                               const void *const *params,
                                               const struct sol_library *library);

#ifdef __cplusplus
}
#endif
#endif

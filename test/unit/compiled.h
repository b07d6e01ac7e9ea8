/* Compiles generated kernels, as one C file with strict warnings, and loads them: vectors as gnu99, single values (`lanes` is 1) as C99. KEEP=1 in the environment keeps the file. */
#ifndef COMPILED_H
#define COMPILED_H

#include "check.h"

#include "dfp/dialect.h"

#include <dlfcn.h>
#include <unistd.h>

typedef void kernel_function(void *const *, const int64_t *, char *, int64_t, int64_t);

/* Vectors of so many floats, as a CPU has them; 1: none. */
static inline struct device_caps compiled_caps(int lanes) {
    return (struct device_caps){.block = lanes,
                                .vector = lanes,
                                .judged_vector = 16,
                                .scratch_max = 128 << 10,
                                .grain = 256,
                                .dialect = lanes > 1 ? &dfp_gnu : &dfp_plain};
}

/* Adds kernel number `i`. */
static inline void compiled_add(struct text *source, int i, const char *kernel) {
    text_add(source, "#define SOL_KERNEL kernel_%d\n%s#undef SOL_KERNEL\n", i, kernel);
}

static inline void compiled_write(const char *path, const struct text *source, int lanes) {
    const struct device_caps caps = compiled_caps(lanes);
    FILE *file = fopen(path, "w");
    REQUIRE(file);
    for (const char *const *piece = caps.dialect->prelude; *piece; piece++) fputs(*piece, file);
    if (strstr(source->at, DFP_NEEDS_TYPES)) fputs(dfp_types, file);
    fwrite(source->at, 1, source->size, file);
    REQUIRE(!fclose(file));
}

static inline void *compiled_open(const struct text *source, int lanes) {
    char path[64], library[64], flag[32], output[4096];
    snprintf(path, sizeof path, "/tmp/test_kernels_%d.c", (int)getpid());
    snprintf(library, sizeof library, "/tmp/test_kernels_%d_%d.so", (int)getpid(), lanes);
    snprintf(flag, sizeof flag, lanes > 1 ? "-DLANES=%d" : "-pedantic", lanes);
    compiled_write(path, source, lanes);
    const char *const argv[] = {"cc",
                                lanes > 1 ? "-std=gnu99" : "-std=c99",
                                "-O1",
                                "-Wall",
                                lanes > 1 ? "-Wall" : "-Wextra",
                                "-Werror",
                                "-Wno-psabi",
                                "-Wno-unused-function",
                                "-ffp-contract=fast",
                                "-fno-math-errno",
                                "-fno-trapping-math",
                                "-shared",
                                "-fPIC",
                                flag,
                                path,
                                "-o",
                                library,
                                NULL};
    struct os_run run = {.max_s = 300};
    REQUIRE(!os_spawn(argv, &run, output, sizeof output));
    if (run.code) fprintf(stderr, "%s\n", output);
    REQUIRE(run.code == 0);
    void *handle = dlopen(library, RTLD_NOW);
    REQUIRE(handle);
    unlink(library);
    if (!getenv("KEEP")) unlink(path);
    return handle;
}

static inline kernel_function *compiled_find(void *handle, int i) {
    char symbol[32];
    kernel_function *function;
    snprintf(symbol, sizeof symbol, "kernel_%d", i);
    *(void **)&function = dlsym(handle, symbol);
    REQUIRE(function);
    return function;
}

#endif

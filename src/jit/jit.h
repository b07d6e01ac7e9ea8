/*
 * Compiles C text at run time by the machine's C compiler, or another one, with a cache on disk. For any device: it
 * supplies the compiler's flags and a loader of objects.
 *
 *   texts -> jit_build -> module -> jit_find: functions -> jit_release
 *
 * Each text becomes one object. An object that any process of this user has compiled is
 * loaded from the cache folder: $SOL_CACHE_DIR, or $XDG_CACHE_HOME/sol, or $HOME/.cache/sol.
 *
 * All functions may be called from any thread. Errors: EUNSUPPORTED: there is no compiler. ETOOL:
 * it rejects a text, does not end, or its object cannot be loaded. EDEVICE: a file cannot be written.
 * ENOMEM.
 */
#ifndef JIT_JIT_H
#define JIT_JIT_H

#include "base/base.h"

struct jit_module;

/* The cost of a build. */
struct jit_stats {
    int n_compiled;     /* texts that were compiled; the others were in the cache */
    int n_quick;        /* of these, the number compiled with less optimization, as they are long */
    double processor_s; /* processor time of all runs of the compiler */
    double longest_s;   /* the most processor time of one text */
};

/* How a compiler is found: $variable, which may have arguments, or else the first of `usual` that works. Constant, as the process
 * remembers by its address what was found. */
struct jit_choice {
    const char *what; /* for messages */
    enum env variable;
    const char *usual[4]; /* names, which are searched in PATH, or paths; NULL at the end */
    int slowness;         /* how many times the usual limit of a run it gets; 0: once */
};

/* How a device loads the compiler's output. */
struct jit_loader {
    void *(*open)(const char *path);                 /* NULL with a message: it cannot be loaded */
    void *(*find)(void *object, const char *symbol); /* NULL: it has no such symbol */
    void (*close)(void *object);
    const struct jit_choice *compiler; /* NULL: the one for this machine */
    const char *
        libraries; /* words for the compiler behind the text, separated by spaces, such as "-lz -lm"; NULL: none */
};
/* Opens shared objects by dlopen: the compiler's flags are -shared -fPIC. */
extern const struct jit_loader jit_objects;
/* Reads the compiler's output, which only another device can load: an object is a struct jit_image, and has no symbols. */
struct jit_image {
    char *data;
    size_t size;
};
extern const struct jit_loader jit_images;

/* Loads `texts` from the cache, and compiles missing ones in parallel. `flags` are words for the compiler,
 * separated by spaces; with them its output must be what `loader` opens. -lm is added. `debug` adds -g and
 * keeps the sources in the cache folder. `stats` may be NULL. The caller releases the module.
 *
 * A run of the compiler may use $SOL_CC_TIMEOUT seconds of processor time. A long text is compiled with -O2, a text that
 * exceeds the limit again with -O1, both with SOL_LONG defined. The result is cached like any other, so later builds do not try
 * full optimization again. */
enum sol_status jit_build(const struct jit_loader *loader, const char *flags,
                          const char *const *texts, int n_texts, bool debug,
                          struct jit_module **out, struct jit_stats *stats);

/* The address of an external function or object of any of the texts; NULL: none. */
void *jit_find(struct jit_module *module, const char *symbol);

/* What the loader has opened for text number i. */
void *jit_object(const struct jit_module *module, int i);

/* Frees the module. Addresses that jit_find returned become invalid. `module` may be NULL. */
void jit_release(struct jit_module *module);

/* The compiler for this machine: its command, and the first line of its --version. Both live as long as the
 * process. The command is $SOL_CC, which may have arguments, or else the first of cc, gcc, clang in
 * PATH that works. */
enum sol_status jit_compiler(const char **path, const char **version);
/* The same for another one. */
enum sol_status jit_compiler_of(const struct jit_choice *choice, const char **path,
                                const char **version);

/* Creates and checks the cache folder, and writes its path to `out`. EINVAL with the reason if it cannot be trusted. */
enum sol_status jit_cache_dir(char *out, size_t size);

#endif

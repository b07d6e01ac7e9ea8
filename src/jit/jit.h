/*
 * Kernels from text: C text in, functions out, by way of the machine's C compiler and a cache on
 * disk. For any device: a device says which flags the compiler gets and how an object is loaded.
 *
 * Each text becomes one object. What was compiled once, by any process of this user, is
 * loaded from the cache ever after: $SOL_CACHE_DIR, or $XDG_CACHE_HOME/sol, or $HOME/.cache/sol.
 *
 * All functions may be called from any thread. Codes: EUNSUPPORTED when there is no compiler, ETOOL
 * when it rejects a text or does not end, EDEVICE when the result cannot be written or loaded,
 * ENOMEM.
 */
#ifndef JIT_JIT_H
#define JIT_JIT_H

#include "base/base.h"

struct jit_module;

/* What a build cost. */
struct jit_stats {
    int n_compiled;     /* texts that went to the compiler; the others were in the cache */
    int n_quick;        /* of these, without full optimization as they are long */
    double processor_s; /* of the compiler, all its runs together ... */
    double longest_s;   /* ... and for the text that took most */
};

/* How a device makes kernels of what the compiler wrote. The CPU's is `cpu_objects` (device/cpu/cpu.h). */
struct jit_loader {
    void *(*open)(const char *path);                 /* NULL with a message: it cannot be loaded */
    void *(*find)(void *object, const char *symbol); /* NULL: it has no such symbol */
    void (*close)(void *object);
};

/* Builds `texts`, missing ones in parallel, and loads them. `flags` are words for the compiler,
 * separated by spaces, which make it write what `loader` takes; -lm is added. `debug` adds -g and
 * keeps the sources in the cache folder. `stats` may be NULL. The module belongs to the caller.
 *
 * A run of the compiler may take $SOL_CC_TIMEOUT seconds of processor time. A text that takes more, or is long enough to, is compiled
 * with -O2 or -O1 and SOL_LONG defined; what came out is the text's object in the cache, so that nothing is tried twice. */
enum sol_status jit_build(const struct jit_loader *loader, const char *flags,
                          const char *const *texts, int n_texts, bool debug,
                          struct jit_module **out, struct jit_stats *stats);

/* The address of an external function or object in any of the texts; NULL when there is none. */
void *jit_find(struct jit_module *module, const char *symbol);

/* What jit_find has returned is gone afterwards. NULL is fine. */
void jit_release(struct jit_module *module);

/* The compiler in use: its command, and the first line of its --version. Both live as long as the
 * process. $SOL_CC, whose words are the first words of the command, or the first of cc, gcc, clang
 * that is in PATH. */
enum sol_status jit_compiler(const char **path, const char **version);

/* Creates and checks the cache folder. EINVAL with the reason when there is none that can be
 * trusted. */
enum sol_status jit_cache_dir(char *out, size_t size);

#endif

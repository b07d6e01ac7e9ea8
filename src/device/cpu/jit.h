/*
 * Kernels from text: C text in, functions out, by way of the machine's C compiler and a cache on
 * disk.
 *
 * Each text becomes one shared object. What was compiled once, by any process of this user, is
 * loaded from the cache ever after: $SOL_CACHE_DIR, or $XDG_CACHE_HOME/sol, or $HOME/.cache/sol.
 *
 * All functions may be called from any thread. Codes: EUNSUPPORTED when there is no compiler, ETOOL
 * when it rejects a text or does not end, EDEVICE when the result cannot be written or loaded,
 * ENOMEM.
 */
#ifndef DEVICE_CPU_JIT_H
#define DEVICE_CPU_JIT_H

#include "base/base.h"

struct jit_module;

/* Builds `texts`, missing ones in parallel, and loads them. `flags` are words for the compiler,
 * separated by spaces; -shared, -fPIC and -lm are added. Whatever else the result depends on goes
 * to `key_extra` (may be ""). `debug` adds -g and keeps the sources in the cache folder.
 * `n_compiled` (may be NULL) is how many texts went to the compiler. The module belongs to the
 * caller. */
enum sol_status jit_build(const char *key_extra, const char *const *texts, int n_texts,
                          const char *flags, bool debug, struct jit_module **out, int *n_compiled);

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

/* How much is in the cache. */
struct sol_cache;
enum sol_status jit_cache_usage(struct sol_cache *out);
/* Empties it, and tells what was removed. Programs that are loaded go on, and so do compiles of other processes. */
enum sol_status jit_cache_clear(struct sol_cache *removed);

#endif

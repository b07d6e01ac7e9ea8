/*
 * Checks all environment variables of SOL before the first compile.
 *
 *   sol_compile, the program sol -> sol_check_environment -> one warning per invalid value
 *
 * The code that uses a variable reads it through base/env.c and ignores an invalid value. Checking all variables at the start
 * also finds mistakes in variables that this run does not read.
 */
#include "device/cpu/cpu.h"
#include "device/device.h"
#include "device/far/far.h"

#include <sol/sol.h>
#include <stdio.h>
#include <string.h>

#define POSITIVE 1e-6, 1e18, "numbers above 0", 1

#define WORDS 512

static void add_word(char *out, size_t size, const char *word) {
    size_t n = strlen(out);
    (void)snprintf(out + n, size - n, n ? ", %s" : "%s", word);
}

static void add_impl(void *words, const struct dnn_impl *impl, bool is_far) {
    (void)is_far;
    add_word(words, WORDS, impl->name);
}

static void check_disabled(void) {
    char words[WORDS] = "";
    if (!env_get(ENV_SOL_DISABLE)) return;
    device_visit_impls(add_impl, words);
    for (int i = 0; devices[i]; i++) add_word(words, sizeof words, devices[i]->name);
    add_word(words, sizeof words, "all");
    env_check_words(ENV_SOL_DISABLE, words);
}

void sol_check_environment(void) {
    log_check();
    env_check_words(ENV_SOL_DEBUG, "plan, pass, kernels, time, all");
    check_disabled();
    (void)cpu_isa();
    (void)os_threads();
    (void)env_number(ENV_SOL_CC_TIMEOUT, POSITIVE);
    (void)env_number(ENV_SOL_CALL_MEMORY, POSITIVE);
    (void)env_number(ENV_SOL_LOOP_SECONDS, POSITIVE);
    far_check_environment();
    target_check_environment();
}

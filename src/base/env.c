/*
 * Environment: each variable of SOL is a row of ENV_LIST and read here, so that none goes
 * undocumented.
 */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
#define ENV_NAME(name, text) #name,
    ENV_LIST(ENV_NAME)
#undef ENV_NAME
};

const char *env_get(enum env variable) {
    const char *value = getenv(names[variable]);
    return value && *value ? value : NULL;
}

static bool word_is(const char *at, size_t size, const char *word) {
    return strlen(word) == size && !memcmp(at, word, size);
}

bool env_has(enum env variable, const char *word) {
    const char *at = env_get(variable);
    while (at && *at) {
        at += strspn(at, ", ");
        size_t size = strcspn(at, ", ");
        if (size && (word_is(at, size, word) || word_is(at, size, "all"))) return true;
        at += size;
    }
    return false;
}

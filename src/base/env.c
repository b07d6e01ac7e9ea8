/*
 * Environment variables. Each variable of SOL is a row of ENV_LIST and is read only here, so all are
 * documented. An invalid value causes one warning per variable, which names the valid values.
 */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
#define ENV_NAME(name, text) #name,
    ENV_LIST(ENV_NAME)
#undef ENV_NAME
};

const char *env_name(enum env variable) { return names[variable]; }

const char *env_get(enum env variable) {
    const char *value = getenv(names[variable]);
    return value && *value ? value : NULL;
}

bool env_has(enum env variable, const char *word) {
    const char *list = env_get(variable);
    return list && (text_lists(list, word, strlen(word)) || text_lists(list, "all", 3));
}

/* ---- Invalid values ---- */

void env_refuse(enum env variable, const char *valid) {
    static atomic_flag told[COUNT(names)]; /* zero: clear */
    if (!atomic_flag_test_and_set(&told[variable]))
        log_write(LOG_WARN, "%s=%s: valid are %s", names[variable], env_get(variable), valid);
}

double env_number(enum env variable, double min, double max, const char *valid,
                  double default_value) {
    const char *value = env_get(variable);
    double number;
    if (!value) return default_value;
    if (text_parse_double(&value, &number) && !*value && number >= min && number <= max)
        return number;
    env_refuse(variable, valid);
    return default_value;
}

/* Is each word of `list` also in `words`? Words are separated by commas and blanks. */
static bool has_all(const char *list, const char *words) {
    for (size_t size; *list; list += size) {
        list += strspn(list, ", ");
        size = strcspn(list, ", ");
        if (size && !text_lists(words, list, size)) return false;
    }
    return true;
}

void env_check_words(enum env variable, const char *words) {
    const char *value = env_get(variable);
    if (value && !has_all(value, words)) env_refuse(variable, words);
}

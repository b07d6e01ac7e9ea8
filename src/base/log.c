/*
 * Log: writes lines to stderr, "sol: warning: ...".
 *
 * A line is formatted in a buffer and written by one write(), so that lines of different threads and
 * processes do not mix. Nothing here allocates or takes a lock: it may be called when memory is
 * out.
 */
#include "base/base.h"

#include <errno.h>
#include <sol/sol.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define LINE_SIZE 2048

static const struct {
    const char *name, *prefix;
} levels[] = {
    [LOG_ERROR] = {"ERROR", "error: "}, [LOG_WARN] = {"WARN", "warning: "},
    [LOG_INFO] = {"INFO", ""},          [LOG_DEBUG] = {"DEBUG", "debug: "},
    [LOG_TRACE] = {"TRACE", "trace: "},
};

static _Atomic int current = -1; /* -1: $SOL_LOG has not been read yet */

/* The level with this name or digit; -1: none. */
static int find_level(const char *value) {
    for (int i = 0; i < COUNT(levels); i++)
        if (!strcasecmp(value, levels[i].name) || (value[0] == '0' + i && !value[1])) return i;
    return -1;
}

/* The level of $SOL_LOG; the default if the value is invalid, as a log must not fail. */
static int read_level(void) {
    const char *value = env_get(ENV_SOL_LOG);
    int level = value ? find_level(value) : LOG_WARN;
    return level < 0 ? LOG_WARN : level;
}

void log_check(void) {
    const char *value = env_get(ENV_SOL_LOG);
    if (value && find_level(value) < 0)
        env_refuse(ENV_SOL_LOG, "ERROR, WARN, INFO, DEBUG and TRACE, or 0 to 4");
}

void sol_set_log_level(int level) {
    atomic_store(&current, (int)min_i64(max_i64(level, LOG_ERROR), LOG_TRACE));
}

bool log_on(enum log_level level) {
    int now = atomic_load_explicit(&current, memory_order_relaxed);
    if (now < 0) {
        /* Keeps the value of a concurrent sol_set_log_level. */
        int read = read_level();
        now = atomic_compare_exchange_strong(&current, &now, read) ? read : now;
    }
    return (int)level <= now;
}

void log_write(enum log_level level, const char *format, ...) {
    if (!log_on(level)) return;
    int before = errno; /* restored below, as the caller may report it */
    char line[LINE_SIZE];
    int head = snprintf(line, sizeof line, "sol: %s", levels[level].prefix);
    va_list args;
    va_start(args, format);
    int size = vsnprintf(line + head, sizeof line - (size_t)head - 1, format, args);
    va_end(args);
    if (size < 0) line[head] = 0;
    char clean[LINE_SIZE];
    text_clean(line, strlen(line), true, clean, sizeof clean - 1);
    size_t end = strlen(clean);
    clean[end++] = '\n';
    ssize_t written = write(STDERR_FILENO, clean, end);
    (void)written; /* a failure cannot be reported anywhere */
    errno = before;
}

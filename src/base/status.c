/*
 * Status and message: how functions report failures.
 *
 *   fail(code, message) -> TRY returns the code through the callers, fail_prefix adds context -> sol_error()
 *
 * The message is in a static buffer per thread: nothing is allocated, so it works when memory is out, and nothing
 * must be freed.
 *
 * Invariant: the buffer is NUL terminated, a message that is too long is cut, and the text is safe for a terminal
 * (text_clean).
 */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_SIZE 1024

static _Thread_local char message[MESSAGE_SIZE];

const char *sol_error(void) { return message; }

enum sol_status fail(enum sol_status code, const char *format, ...) {
    /* Formats into a copy, as an argument may be sol_error(), the buffer itself. */
    char next[MESSAGE_SIZE];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(next, sizeof next, format, args);
    va_end(args);
    if (size < 0) next[0] = 0; /* an invalid multibyte string: report the code without message */
    /* Only output of the C compiler may have several lines. */
    text_clean(next, strlen(next), code == SOL_ETOOL, message, sizeof message);
    return code;
}

void fail_prefix(const char *format, ...) {
    char next[MESSAGE_SIZE];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(next, sizeof next, format, args);
    va_end(args);
    char both[2 * MESSAGE_SIZE];
    text_clean(next, size < 0 ? 0 : strlen(next), false, both, MESSAGE_SIZE);
    strcat(both, message);
    text_clean(both, strlen(both), true, message, sizeof message); /* cuts between characters */
}

#ifndef NDEBUG
void status_assert_failed(const char *condition, const char *file, int line) {
    fprintf(stderr, "sol: bug: %s:%d: %s does not hold\n", file, line, condition);
    abort();
}
#endif

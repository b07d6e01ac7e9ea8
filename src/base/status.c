/*
 * Status and message: how every failure in SOL is told.
 *
 * The message is formatted at the point of failure into a buffer of the thread, so it needs no
 * memory, nobody has to free it, and it can be written even when memory is out. The code travels up
 * by TRY; on the way, callers may put the place in front with fail_prefix.
 *
 * Invariant: the buffer is always NUL terminated, a message that is too long loses its end, and names of files and users in
 * it can do no harm to a terminal.
 */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_SIZE 1024

static _Thread_local char message[MESSAGE_SIZE];

const char *sol_error(void) { return message; }

enum sol_status fail(enum sol_status code, const char *format, ...) {
    /* An argument may be sol_error() itself, so the text is made aside before it replaces the
     * message. */
    char next[MESSAGE_SIZE];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(next, sizeof next, format, args);
    va_end(args);
    if (size < 0) next[0] = 0; /* the format met an invalid multibyte string: the code has to do */
    /* What a C compiler says has lines; nothing else has. */
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
    text_clean(both, strlen(both), true, message, sizeof message); /* cut at a whole character */
}

#ifndef NDEBUG
void status_assert_failed(const char *condition, const char *file, int line) {
    fprintf(stderr, "sol: bug: %s:%d: %s does not hold\n", file, line, condition);
    abort();
}
#endif

/* Prints text and messages. sol_clean cleans them, so that names, paths and texts of files cannot control the terminal. */
#include "cli.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void print(FILE *to, const char *format, va_list args) {
    char *raw = NULL;
    const int n = vasprintf(&raw, format, args);
    if (n < 0) return;
    const size_t size = sol_clean(raw, (size_t)n, true, NULL, 0) + 1;
    char *text = malloc(size);
    if (text) {
        sol_clean(raw, (size_t)n, true, text, size);
        fputs(text, to);
    }
    free(text);
    free(raw);
}

void say(const char *format, ...) {
    va_list args;
    va_start(args, format);
    print(stdout, format, args);
    va_end(args);
}

static void remark(const char *format, va_list args) {
    fflush(stdout); /* keeps the order of messages if stdout and stderr are the same file */
    fputs("sol: ", stderr);
    print(stderr, format, args);
    fputs("\n", stderr);
}

void note(const char *format, ...) {
    va_list args;
    va_start(args, format);
    remark(format, args);
    va_end(args);
}

int complain(const char *format, ...) {
    va_list args;
    va_start(args, format);
    remark(format, args);
    va_end(args);
    return 1;
}

const char *clean(const char *name) {
    static _Thread_local char texts[8][256];
    static _Thread_local int next;
    char *out = texts[next++ % 8];
    if (sol_clean(name, strlen(name), false, out, 254) >= 254) strcat(out, "..");
    return out;
}

/* `what` is clean already, as libsol cleans it. */
void show_progress(void *user, int done, int total, const char *what) {
    (void)user;
    fprintf(stderr, "\r\033[K%d/%d %.60s", done, total, what);
    fflush(stderr);
}

void clear_progress(void) { fputs("\r\033[K", stderr); }

/*
 * The test harness: CHECK counts, check_done prints "N passed, N failed", and what an emulator left out as skipped, and returns the
 * exit code of main.
 *
 * A failed CHECK does not end the test, so one run shows all failures. Use REQUIRE where continuing
 * would crash. Any thread may use both.
 */
#ifndef CHECK_H
#define CHECK_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int check_passed, check_failed, check_skipped;

static inline int check_that(int holds, const char *condition, const char *file, int line) {
    atomic_fetch_add(holds ? &check_passed : &check_failed, 1);
    if (!holds) fprintf(stderr, "%s:%d: failed: %s\n", file, line, condition);
    return holds;
}

static inline int check_text_is(const char *is, const char *expected, const char *file, int line) {
    int same = is && !strcmp(is, expected);
    check_that(same, "texts are equal", file, line);
    if (!same)
        fprintf(stderr, "    is:       %s\n    expected: %s\n", is ? is : "(null)", expected);
    return same;
}

/* When an emulator runs the test, prints that `what` is left out, and returns true. The emulator does not support a fork of a process
 * with threads, and its posix_spawn does not report that a program does not exist. */
static inline int check_is_emulated(const char *what) {
    if (!getenv("TEST_RUNNER")) return 0;
    printf("left out under an emulator: %s\n", what);
    atomic_fetch_add(&check_skipped, 1);
    return 1;
}

/* The same for forks of a process with busy threads. AddressSanitizer does not support these either: its allocator stays locked in the
 * child. */
static inline int check_cannot_fork(void) {
#ifdef __SANITIZE_ADDRESS__
    printf("left out under AddressSanitizer: forks among busy threads\n");
    return 1;
#endif
    return check_is_emulated("forks among busy threads");
}

/* The path of a file in the build's folder, in which the test is test/unit/NAME. */
static inline void check_path(const char *name, char *out, size_t size) {
    const ssize_t n = readlink("/proc/self/exe", out, size - 1);
    out[n > 0 ? n : 0] = 0;
    for (int i = 0; i < 3 && strrchr(out, '/'); i++) *strrchr(out, '/') = 0;
    (void)snprintf(out + strlen(out), size - strlen(out), "/%s", name);
}

static inline int check_done(void) {
    int failed = atomic_load(&check_failed), skipped = atomic_load(&check_skipped);
    printf("%d passed, %d failed", atomic_load(&check_passed), failed);
    if (skipped) printf(", %d skipped", skipped);
    puts("");
    return failed != 0;
}

#define CHECK(condition) check_that(!!(condition), #condition, __FILE__, __LINE__)
#define CHECK_TEXT(is, expected) check_text_is(is, expected, __FILE__, __LINE__)
#define REQUIRE(condition) \
    do {                                          \
        if (!CHECK(condition)) exit(check_done()); \
    } while (0)

#endif

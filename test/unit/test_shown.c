/*
 * Messages: untrusted text, invalid environment variables, files that are not models.
 */
#include "base/base.h"
#include "check.h"

#include <sol/sol.h>
#include <unistd.h>

/* Runs `work`, and returns in `out` what it writes to stderr. */
static void capture(void (*work)(void), char *out, size_t size) {
    int pipes[2];
    REQUIRE(!pipe(pipes));
    const int before = dup(STDERR_FILENO);
    dup2(pipes[1], STDERR_FILENO);
    work();
    dup2(before, STDERR_FILENO);
    close(before);
    close(pipes[1]);
    const ssize_t n = read(pipes[0], out, size - 1);
    out[n < 0 ? 0 : n] = 0;
    close(pipes[0]);
}

static void read_variables(void) {
    setenv("SOL_LOG", "loud", 1);
    setenv("SOL_DEBUG", "plan,foo", 1);
    setenv("SOL_DISABLE", "blah", 1);
    setenv("SOL_CPU", "z80", 1);
    setenv("SOL_NUM_THREADS", "many", 1);
    setenv("SOL_CC_TIMEOUT", "-3", 1);
    setenv("SOL_FAR", "memory=4096,memroy=1", 1);
    setenv("SOL_VISIBLE_DEVICES", "1;0", 1);
    for (int i = 0; i < 2; i++) sol_check_environment();
}

static void read_good_variables(void) {
    setenv("SOL_LOG", "warn", 1);
    setenv("SOL_DEBUG", "all", 1);
    setenv("SOL_DISABLE", "onednn, ref,winograd4", 1);
    setenv("SOL_CPU", "generic", 1);
    setenv("SOL_NUM_THREADS", "2", 1);
    setenv("SOL_CC_TIMEOUT", "0.5", 1);
    setenv("SOL_CALL_MEMORY", "100", 1);
    setenv("SOL_FAR", "latency=20,bandwidth=0.5,fail=copy:3,die=2,trace=/tmp/trace", 1);
    setenv("SOL_VISIBLE_DEVICES", "1,0", 1);
    sol_check_environment();
}

static int count(const char *text, const char *part) {
    int n = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) n++;
    return n;
}

/* For each invalid value one warning is printed, with the valid values. */
static void test_refused_values(void) {
    static const char *const names[] = {"SOL_LOG", "SOL_DEBUG",           "SOL_DISABLE",
                                        "SOL_CPU", "SOL_NUM_THREADS",     "SOL_CC_TIMEOUT",
                                        "SOL_FAR", "SOL_VISIBLE_DEVICES", "SOL_CALL_MEMORY"};
    char text[4096];
    sol_set_log_level(LOG_WARN);
    capture(read_good_variables, text, sizeof text);
    CHECK_TEXT(text, "");
    CHECK(os_threads() == 2);
    capture(read_variables, text, sizeof text);
    for (int i = 0; i < 8; i++) CHECK(count(text, names[i]) == 1);
    CHECK(strstr(text, "SOL_LOG=loud: valid are ERROR, WARN, INFO, DEBUG and TRACE"));
    CHECK(strstr(text, "SOL_DEBUG=plan,foo: valid are plan, pass, kernels, time, all\n"));
    CHECK(strstr(text, "winograd4") && strstr(text, "openblas") && strstr(text, "ref"));
    CHECK(strstr(text, "SOL_CPU=z80: valid are ") && strstr(text, "generic"));
    CHECK(strstr(text, "SOL_NUM_THREADS=many: valid are numbers from 1 to "));
    CHECK(os_threads() == os_cores());
    for (int i = 0; i < COUNT(names); i++) unsetenv(names[i]);
}

/* ---- Untrusted text ---- */

static const char *clean(const char *text, bool keep_lines) {
    static char out[256];
    size_t n = text_clean(text, strlen(text), keep_lines, out, sizeof out);
    CHECK(n == strlen(out));
    char again[256];
    text_clean(out, n, keep_lines, again, sizeof again);
    CHECK_TEXT(again, out);
    return out;
}

static void test_clean(void) {
    CHECK_TEXT(clean("conv_1 [3,4] \\x \"q\"", false), "conv_1 [3,4] \\x \"q\"");
    CHECK_TEXT(clean("gr\xc3\xbc\xc3\x9f, \xe5\x90\x8d, \xf0\x9f\x98\x80", false),
               "gr\xc3\xbc\xc3\x9f, \xe5\x90\x8d, \xf0\x9f\x98\x80");
    CHECK_TEXT(clean("\033[31mred\007\r\n\t\177", false), "\\x1b[31mred\\x07\\x0d\\x0a\\x09\\x7f");
    CHECK_TEXT(clean("a\n\tb\r", true), "a\n\tb\\x0d");
    CHECK_TEXT(clean("\xc2\x9b"
                     "31m",
                     false),
               "\\xc2\\x9b31m"); /* C1 */
    CHECK_TEXT(clean("\xe2\x80\xae"
                     "abc",
                     false),
               "\\xe2\\x80\\xaeabc"); /* from right to left */
    CHECK_TEXT(clean("\x9b"
                     "31m \xff \xc3",
                     false),
               "\\x9b31m \\xff \\xc3");
    CHECK_TEXT(clean("\xc0\x9b \xed\xa0\x80", false), "\\xc0\\x9b \\xed\\xa0\\x80");
    char out[8];
    CHECK(text_clean("ab\033cd", 5, false, out, sizeof out) == 8);
    CHECK_TEXT(out, "ab\\x1bc"); /* only complete characters, and a NUL */
    CHECK(text_clean("abc\033d", 5, false, out, 6) == 8);
    CHECK_TEXT(out, "abc");
    CHECK(text_clean("abc", 3, false, NULL, 0) == 3 && sol_clean("a\0b", 3, false, out, 8) == 6);
    CHECK_TEXT(out, "a\\x00b");
}

static void write_log(void) { log_write(LOG_WARN, "node %s", "\033]0;owned\007"); }

/* Messages and log lines with names from a file. */
static void test_clean_messages(void) {
    (void)fail(SOL_EINVAL, "node \"%s\": no", "a\033[2J\nsol: warning: b");
    CHECK_TEXT(sol_error(), "node \"a\\x1b[2J\\x0asol: warning: b\": no");
    fail_prefix("%s: ", "\033c\n");
    CHECK_TEXT(sol_error(), "\\x1bc\\x0a: node \"a\\x1b[2J\\x0asol: warning: b\": no");
    (void)fail(SOL_ETOOL, "cc: 1:\nerror\033");
    CHECK_TEXT(sol_error(), "cc: 1:\nerror\\x1b");
    char text[256];
    capture(write_log, text, sizeof text);
    CHECK_TEXT(text, "sol: warning: node \\x1b]0;owned\\x07\n");
    char longer[1500];
    memset(longer, 0xc3, sizeof longer);
    for (size_t i = 1; i < sizeof longer; i += 2) longer[i] = (char)0xbc;
    longer[sizeof longer - 1] = 0;
    (void)fail(SOL_EINVAL, "%s", longer); /* truncated in a character: all of it is removed */
    const size_t n = strlen(sol_error());
    CHECK(n > 1000 && !strcmp(clean(sol_error() + n - 20, false), sol_error() + n - 20));
}

/* ---- Files that are not models ---- */

#define KIND(text) sol_file_kind(text, sizeof(text) - 1)

static void test_file_kinds(void) {
    CHECK(strstr(KIND("PK\3\4....archive"), "torch.save") && strstr(KIND("\x80\2}q"), "pickle"));
    CHECK(strstr(KIND("\x1f\x8b\10"), "gzip") && strstr(KIND(""), "empty"));
    CHECK(strstr(KIND("\n <!DOCTYPE HTML><html>"), "web page"));
    CHECK(strstr(KIND("version https://git-lfs.github.com/spec/v1\n"), "Git LFS"));
    CHECK(strstr(KIND("\x08\0\0\0\0\0\0\0{\"w\":1}"), "safetensors"));
    CHECK(!KIND("model \"m\" {") && !KIND("# comment\nmodel") && !KIND("\x08\x0a") && !KIND("x"));
}

int main(void) {
    test_refused_values();
    test_clean();
    test_clean_messages();
    test_file_kinds();
    return check_done();
}

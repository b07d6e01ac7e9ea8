/*
 * src/jit: kernels from text, also with a compiler that fails and a cache that is damaged.
 *
 * Each test has its own cache folder below one scratch folder. Needs a C compiler.
 */
#include "check.h"
#include "device/cpu/cpu.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sol/sol.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATH_SIZE 512
#define FLAGS CPU_OBJECT_FLAGS "-O1 "

static char scratch[] = "/tmp/sol-test-jit-XXXXXX";
static char cache[PATH_SIZE];

static const char *const two_texts[] = {"int one(void) { return 1; }\n",
                                        "int two(void) { return 2; }\n"};

/* Sets $SOL_CACHE_DIR to a new name below the scratch folder. The folder is not created. */
static void use_cache(const char *name) {
    (void)snprintf(cache, sizeof cache, "%s/%s", scratch, name);
    setenv("SOL_CACHE_DIR", cache, 1);
}

static int call(struct jit_module *module, const char *name) {
    void *address = jit_find(module, name);
    int (*function)(void);
    memcpy(&function, &address, sizeof function); /* ISO C has no cast from object to function */
    return address ? function() : -1;
}

/* Builds `texts`, checks that the first two return 1 and 2, and returns how many were compiled. */
static int build_two(const char *const *texts, const char *flags, bool debug) {
    struct jit_module *module = NULL;
    struct jit_stats stats;
    if (!CHECK(!jit_build(&jit_objects, flags, texts, 2, debug, &module, &stats))) {
        fprintf(stderr, "    %s\n", sol_error());
        return -1;
    }
    CHECK(call(module, "one") == 1 && call(module, "two") == 2);
    CHECK(!jit_find(module, "no_such_symbol"));
    jit_release(module);
    return stats.n_compiled;
}

static int build(void) { return build_two(two_texts, FLAGS, false); }

/* Counts the files in the cache folder whose names have this ending. `last` (may be NULL) receives
 * the path of one of them. */
static int count_files(const char *ending, char last[PATH_SIZE]) {
    DIR *folder = opendir(cache);
    int n = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        size_t size = strlen(entry->d_name);
        if (size < strlen(ending) || strcmp(entry->d_name + size - strlen(ending), ending))
            continue;
        if (last) (void)snprintf(last, PATH_SIZE, "%.250s/%.250s", cache, entry->d_name);
        n++;
    }
    if (folder) closedir(folder);
    return n;
}

static int count_descriptors(void) {
    int n = 0;
    for (int fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* ---- The cache works ---- */

static void test_hits(void) {
    use_cache("hits/below/it");
    CHECK(build() == 2);
    CHECK(build() == 0);
    CHECK(count_files(".so", NULL) == 2 && count_files(".c", NULL) == 0);
    struct stat folder;
    CHECK(!stat(cache, &folder) && (folder.st_mode & 0777) == 0700);

    CHECK(build_two(two_texts, FLAGS "-O2", false) == 2);
    CHECK(build_two(two_texts, FLAGS "-Dother", false) == 2);
    CHECK(build_two(two_texts, FLAGS, true) == 2);
    CHECK(count_files(".c", NULL) == 2);
    static const char *const changed[] = {"int one(void) { return 1; }\n",
                                          "int two(void) { return  2; }\n"};
    CHECK(build_two(changed, FLAGS, false) == 1);
    CHECK(build() == 0);

    char path[PATH_SIZE];
    CHECK(!jit_cache_dir(path, sizeof path));
    CHECK_TEXT(path, cache);
    CHECK(jit_cache_dir(path, 5) == SOL_EINVAL);
    struct sol_cache usage = {0}, removed = {0};
    int n_cached = count_files(".so", NULL) + count_files(".c", NULL);
    CHECK(!sol_cache_usage(&usage) && usage.n_files == n_cached && usage.bytes > 1000);
    CHECK(!sol_cache_clear(&removed) && removed.n_files >= n_cached &&
          removed.bytes >= usage.bytes);
    CHECK(count_files(".so", NULL) == 0 && count_files(".c", NULL) == 0);
    CHECK(!sol_cache_usage(&usage) && !usage.n_files && !usage.bytes);
    CHECK(build() == 2);

    struct jit_module *module;
    CHECK(!jit_build(&jit_objects, FLAGS, NULL, 0, false, &module, NULL) &&
          !jit_find(module, "one"));
    jit_release(module);
    jit_release(NULL);
}

/* The words of a text are words for the compiler, and belong to its key alone. */
static void test_libraries(void) {
    static const char *const none[] = {NULL, NULL}, *const some[] = {NULL, " -ldl  -lm"};
    static const struct {
        const char *const *libraries;
        int n_compiled;
    } rows[] = {{none, 2}, {some, 1}, {some, 0}, {none, 0}, {NULL, 0}};
    use_cache("libraries");
    for (int i = 0; i < COUNT(rows); i++) {
        struct jit_loader loader = jit_objects;
        struct jit_module *module = NULL;
        struct jit_stats stats;
        loader.libraries = rows[i].libraries;
        CHECK(!jit_build(&loader, FLAGS, two_texts, 2, false, &module, &stats) &&
              stats.n_compiled == rows[i].n_compiled && call(module, "two") == 2);
        jit_release(module);
    }
}

static void test_folders(void) {
    unsetenv("SOL_CACHE_DIR");
    char path[PATH_SIZE], expected[PATH_SIZE];
    setenv("XDG_CACHE_HOME", scratch, 1);
    (void)snprintf(expected, sizeof expected, "%s/sol", scratch);
    CHECK(!jit_cache_dir(path, sizeof path));
    CHECK_TEXT(path, expected);
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", scratch, 1);
    (void)snprintf(expected, sizeof expected, "%s/.cache/sol", scratch);
    CHECK(!jit_cache_dir(path, sizeof path));
    CHECK_TEXT(path, expected);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    CHECK(jit_cache_dir(path, sizeof path) == SOL_EINVAL);
    CHECK(build() == 2);
}

/* ---- The cache is damaged ---- */

static void write_file(const char *path, const char *data, size_t size, int flags) {
    int fd = open(path, O_WRONLY | flags, 0700);
    REQUIRE(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    close(fd);
}

static void damage_byte(const char *path, off_t at) {
    int fd = open(path, O_RDWR);
    char byte;
    REQUIRE(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 0x55;
    REQUIRE(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

static off_t size_of(const char *path) {
    struct stat file = {0};
    CHECK(!stat(path, &file));
    return file.st_size;
}

/* A file of 20 GiB without a valid end is not read, and no memory is allocated for it. */
static void test_huge(const char *path) {
    struct rusage before, after;
    CHECK(!truncate(path, (off_t)20 << 30) && !getrusage(RUSAGE_SELF, &before));
    CHECK(build() == 1 && build() == 0);
    CHECK(!getrusage(RUSAGE_SELF, &after) && after.ru_maxrss - before.ru_maxrss < 1 << 20);
}

static void test_damage(void) {
    use_cache("damage");
    CHECK(build() == 2);
    char path[PATH_SIZE];
    REQUIRE(count_files(".so", path) == 2);
    off_t size = size_of(path);
    for (off_t at = 0; at < size; at += size / 13) {
        damage_byte(path, at);
        CHECK(build() == 1 && build() == 0);
    }
    static const int parts[] = {0, 1, 4, 8, 9};
    for (int i = 0; i < COUNT(parts); i++) {
        CHECK(!truncate(path, size * parts[i] / 9 - (parts[i] == 9)));
        CHECK(build() == 1 && build() == 0);
    }
    write_file(path, "garbage", 7, O_TRUNC);
    CHECK(build() == 1);
    write_file(path, "x", 1, O_APPEND);
    CHECK(build() == 1);
    CHECK(!unlink(path) && !mkfifo(path, 0600) && build() == 1);
    CHECK(!unlink(path) && !symlink("/dev/null", path) && build() == 1 && build() == 0);
    CHECK(!unlink(path) && !mkdir(path, 0700) && build() == 1 && build() == 1);
    CHECK(!rmdir(path) && build() == 1);
    test_huge(path);
}

/* A valid file under the name of another key, as if two keys had the same hash. */
static void test_collision(void) {
    use_cache("collision");
    struct jit_module *module;
    CHECK(!jit_build(&jit_objects, FLAGS, two_texts, 1, false, &module, NULL));
    jit_release(module);
    char first[PATH_SIZE];
    REQUIRE(count_files(".so", first) == 1);
    char kept[PATH_SIZE];
    (void)snprintf(kept, sizeof kept, "%.250s/kept", scratch);
    CHECK(!rename(first, kept));
    CHECK(!jit_build(&jit_objects, FLAGS, two_texts + 1, 1, false, &module, NULL));
    jit_release(module);
    char second[PATH_SIZE];
    REQUIRE(count_files(".so", second) == 1 && strcmp(first, second));
    CHECK(!rename(kept, second));
    struct jit_stats stats;
    CHECK(!jit_build(&jit_objects, FLAGS, two_texts + 1, 1, false, &module, &stats) &&
          stats.n_compiled == 1);
    CHECK(call(module, "two") == 2 && !jit_find(module, "one"));
    jit_release(module);
}

/* ---- The cache cannot be trusted or written ---- */

/* The folder is refused for this reason and is not changed: it still has `n_files` objects. */
static void check_refused_full(const char *reason, int n_files) {
    char path[PATH_SIZE];
    CHECK(jit_cache_dir(path, sizeof path) == SOL_EINVAL);
    if (!CHECK(strstr(sol_error(), reason))) fprintf(stderr, "    %s\n", sol_error());
    struct sol_cache removed;
    CHECK(sol_cache_clear(&removed) == SOL_EINVAL);
    CHECK(build() == 2 && build() == 2);
    CHECK(count_files(".so", NULL) == n_files);
}

static void check_refused(const char *reason) { check_refused_full(reason, 0); }

static void test_refusals(void) {
    use_cache("foreign");
    CHECK(!mkdir(cache, 0700) && !chmod(cache, 0770));
    check_refused("others may write");
    CHECK(!chmod(cache, 0702));
    check_refused("others may write");

    use_cache("link");
    char target[PATH_SIZE];
    (void)snprintf(target, sizeof target, "%s/target", scratch);
    CHECK(!mkdir(target, 0700) && !symlink(target, cache));
    check_refused("link or no folder");
    use_cache("file");
    write_file(cache, "x", 1, O_CREAT);
    check_refused("link or no folder");
    setenv("SOL_CACHE_DIR", "relative", 1);
    CHECK(build() == 2 && access("relative", F_OK));
    use_cache("above/it");
    char above[PATH_SIZE];
    (void)snprintf(above, sizeof above, "%s/above", scratch);
    CHECK(!mkdir(above, 0700) && !mkdir(cache, 0700) && !chmod(above, 0707));
    check_refused("a folder above");
    if (!geteuid()) { /* a folder that another group may write, and one of root */
        CHECK(!chmod(above, 0770) && !chown(above, 0, 65534));
        check_refused("a folder above");
        CHECK(!chown(above, 0, 0) && !chmod(above, 0770));
        CHECK(build() == 2 && build() == 0);
        struct sol_cache removed;
        CHECK(!sol_cache_clear(&removed));
    }
    CHECK(!chmod(above, 01777)); /* as /tmp is */
    CHECK(build() == 2 && build() == 0);
    CHECK(!geteuid() ? !chown(above, 65534, (gid_t)-1) : !chmod(above, 0777));
    check_refused_full("a folder above", 2);
    CHECK(!geteuid() ? !chown(above, 0, (gid_t)-1) : !chmod(above, 0700));
    if (!geteuid()) {
        use_cache("other");
        CHECK(!mkdir(cache, 0700) && !chown(cache, 65534, (gid_t)-1));
        check_refused("another user");
    }
}

/* Objects in a folder without write permission are used; other texts are compiled elsewhere. */
static void test_full(void) {
    use_cache("full");
    CHECK(build() == 2);
    struct jit_module *module;
    struct jit_stats stats;
    CHECK(!chmod(cache, 0500));
    CHECK(!jit_build(&jit_objects, FLAGS, two_texts, 2, false, &module, &stats) &&
          !stats.n_compiled);
    jit_release(module);
    if (geteuid()) { /* root may write to any folder */
        CHECK(build_two(two_texts, FLAGS "-Dnew", false) == 2);
        CHECK(build_two(two_texts, FLAGS "-Dnew", false) == 2);
    }
    CHECK(!chmod(cache, 0700));
}

/* With a file size limit below a kernel's size, the process does not end and leaves no files. */
static void test_size_limit(void) {
    static char text[64 << 10];
    const char *const texts[] = {text};
    use_cache("limit");
    memset(text, ' ', sizeof text - 1);
    pid_t child = fork();
    if (!child) {
        struct rlimit limit = {8 << 10, 8 << 10};
        struct jit_module *module;
        bool fails = !setrlimit(RLIMIT_FSIZE, &limit) &&
                     jit_build(&jit_objects, FLAGS, texts, 1, false, &module, NULL) == SOL_EDEVICE;
        _exit(!fails);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(count_files("", NULL) == 2); /* . and .. */
}

/* Old temporary files of a killed process are removed; new ones, which may still be written, are not. */
static void test_stale(void) {
    char old[PATH_SIZE], new[PATH_SIZE];
    use_cache("stale");
    CHECK(!mkdir(cache, 0700));
    (void)snprintf(old, sizeof old, "%.250s/tmp-0123456789abcdef.so", cache);
    (void)snprintf(new, sizeof new, "%.250s/tmp-0123456789abcdee.c", cache);
    write_file(old, "x", 1, O_CREAT);
    write_file(new, "x", 1, O_CREAT);
    const struct timespec times[2] = {{.tv_sec = time(NULL) - 86400},
                                      {.tv_sec = time(NULL) - 86400}};
    CHECK(!utimensat(AT_FDCWD, old, times, 0));
    struct sol_cache removed;
    CHECK(!sol_cache_clear(&removed) && removed.n_files == 1);
    CHECK(access(old, F_OK) && !access(new, F_OK));
}

/* ---- The compiler fails ---- */

/* Sets $SOL_CC to a script that answers --version and runs `body` in all other cases. */
static void use_script(const char *name, const char *body) {
    char path[PATH_SIZE], text[1024];
    (void)snprintf(path, sizeof path, "%s/%s", scratch, name);
    int size = snprintf(text, sizeof text,
                        "#!/bin/sh\n[ \"$1\" = --version ] && echo 1.0 && exit 0\n%s\n", body);
    write_file(path, text, (size_t)size, O_CREAT | O_TRUNC);
    setenv("SOL_CC", path, 1);
}

static enum sol_status build_status(const char *text) {
    struct jit_module *module;
    enum sol_status status = jit_build(&jit_objects, FLAGS, &text, 1, false, &module, NULL);
    if (!status) jit_release(module);
    return status;
}

static void test_bad_text(void) {
    use_cache("text");
    CHECK(build_status("int f(void) { return nowhere; }\n") == SOL_ETOOL);
    CHECK(strstr(sol_error(), "nowhere") && strstr(sol_error(), cache));
    char path[PATH_SIZE];
    CHECK(count_files(".c", path) == 1 && strstr(sol_error(), path));
    CHECK(count_files(".so", NULL) == 0);
    CHECK(build_status("int missing(void); int f(void) { return missing(); }\n") == SOL_ETOOL);
    CHECK(strstr(sol_error(), "missing"));
    /* One bad text among good ones: the good ones are cached, nothing leaks. */
    const char *const session[] = {two_texts[0], "#error no\n", two_texts[1]};
    struct jit_module *module;
    struct jit_stats stats;
    CHECK(jit_build(&jit_objects, FLAGS, session, 3, false, &module, &stats) == SOL_ETOOL);
    CHECK(stats.n_compiled == 2);
    CHECK(build() == 0);
}

static void test_bad_compiler(void) {
    use_cache("compiler");
    use_script("sleeps", "sleep 1000");
    setenv("SOL_CC_TIMEOUT", "0.1", 1);
    double before = os_now();
    CHECK(build_status("int f;\n") == SOL_ETOOL && strstr(sol_error(), "did not end"));
    CHECK(os_now() - before < 8);
    unsetenv("SOL_CC_TIMEOUT");

    use_script("silent", "exit 0");
    CHECK(build_status("int f;\n") == SOL_ETOOL && strstr(sol_error(), "wrote nothing"));
    use_script("garbage", "while [ \"$1\" != -o ]; do shift; done; echo no >\"$2\"");
    CHECK(build_status("int f;\n") == SOL_ETOOL && strstr(sol_error(), "cannot load"));
    use_script("crashes", "kill -SEGV $$");
    CHECK(build_status("int f;\n") == SOL_ETOOL && strstr(sol_error(), "139"));
    use_script("talks", "yes | head -c 10000000; exit 1");
    CHECK(build_status("int f;\n") == SOL_ETOOL && strstr(sol_error(), "y\ny\n"));

    setenv("SOL_CC", "none", 1);
    CHECK(build_status("int f;\n") == SOL_EUNSUPPORTED && strstr(sol_error(), "SOL_CC=none"));
    setenv("SOL_CC", "/nonexistent/cc -x", 1);
    CHECK(build_status("int f;\n") == SOL_ETOOL && strstr(sol_error(), "/nonexistent/cc"));
    CHECK(count_files(".so", NULL) == 1); /* the record of the compile that timed out */
    CHECK(count_files(".c", NULL) > 0);

    setenv("SOL_CC", "  cc   -DONE=1 ", 1);
    CHECK(build_status("int f = ONE;\n") == SOL_OK);
    const char *path, *version;
    CHECK(!jit_compiler(&path, &version) && path[0] == '/' && strstr(path, "-DONE=1") && *version);
    unsetenv("SOL_CC");
    CHECK(!jit_compiler(&path, &version) && path[0] == '/' && *version);
    char *search = strdup(getenv("PATH"));
    setenv("PATH", "::.:/nonexistent", 1);
    setenv("SOL_CC", "cc", 1); /* not cached yet, unlike the compiler for an unset SOL_CC */
    CHECK(jit_compiler(&path, &version) == SOL_ETOOL);
    setenv("PATH", search, 1);
    free(search);
    unsetenv("SOL_CC");
}

/* ---- The compiler is slow ---- */

#define SPIN "while :; do :; done"

static struct jit_stats build_late(const char *limit_s, enum sol_status expected) {
    static const char *const text = "int f;\n";
    struct jit_module *module;
    struct jit_stats stats;
    setenv("SOL_CC_TIMEOUT", limit_s, 1);
    enum sol_status status = jit_build(&jit_objects, FLAGS, &text, 1, false, &module, &stats);
    unsetenv("SOL_CC_TIMEOUT");
    CHECK(status == expected);
    if (!status) jit_release(module);
    return stats;
}

/* A text that takes too long is compiled with less optimization. The result is cached. */
static void test_late(void) {
    use_cache("late");
    use_script("slow", "case \"$*\" in *-DSOL_LONG*) exec cc \"$@\";; esac; " SPIN);
    struct jit_stats stats = build_late("0.2", SOL_OK);
    CHECK(stats.n_compiled == 1 && stats.n_quick == 1);
    CHECK(stats.processor_s >= 0.2 && stats.processor_s < 2);
    CHECK(stats.longest_s == stats.processor_s);
    stats = build_late("0.2", SOL_OK);
    CHECK(stats.n_compiled == 0 && stats.processor_s == 0);
}

/* If the compiler exceeds the limit at all levels, the cache records this until the limit is raised. */
static void test_never(void) {
    use_cache("never");
    use_script("spins", SPIN);
    CHECK(build_late("0.1", SOL_ETOOL).processor_s >= 0.2);
    CHECK(build_late("0.1", SOL_ETOOL).processor_s == 0 && strstr(sol_error(), "did not end"));
    CHECK(build_late("0.2", SOL_ETOOL).processor_s >= 0.4);
    CHECK(build_late("0.1", SOL_ETOOL).processor_s == 0);
    struct sol_cache removed;
    CHECK(!sol_cache_clear(&removed));
    CHECK(build_late("0.1", SOL_ETOOL).processor_s >= 0.2);
    unsetenv("SOL_CC");
}

/* A long text is compiled with less optimization at once, without a first run with all optimization. */
static void test_long(void) {
    use_cache("long");
    static char text[16 << 10];
    const char *const texts[] = {text};
    memset(text, '\n', sizeof text - 1);
    for (int is_long = 0; is_long < 2; is_long++) {
        text[is_long ? sizeof text - 1 : 4000] = 0;
        struct jit_module *module;
        struct jit_stats stats;
        CHECK(!jit_build(&jit_objects, FLAGS, texts, 1, false, &module, &stats));
        jit_release(module);
        CHECK(stats.n_compiled == 1 && stats.n_quick == is_long);
        text[4000] = '\n';
    }
}

/* ---- Many processes ---- */

static void test_processes(void) {
    enum { PROCESSES = 16 };
    use_cache("race");
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (!children[i]) _exit(build() < 0);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status = -1;
        CHECK(waitpid(children[i], &status, 0) == children[i] && status == 0);
    }
    CHECK(build() == 0);
    CHECK(count_files(".so", NULL) == 2 && count_files(".c", NULL) == 0);
}

/* After a process was killed at any time, the cache still works. */
static void test_kills(void) {
    for (int ms = 0; ms < 120; ms += 8) {
        char name[32];
        (void)snprintf(name, sizeof name, "kill-%d", ms);
        use_cache(name);
        pid_t child = fork();
        if (!child) _exit(build() < 0);
        usleep((useconds_t)ms * 1000);
        kill(child, SIGKILL);
        CHECK(waitpid(child, NULL, 0) == child);
        int n = build();
        CHECK(n >= 0 && n <= 2 && build() == 0);
    }
}

/* ---- Memory ---- */

static void test_memory(void) {
    use_cache("memory");
    CHECK(build() == 2);
    for (int n = 1;; n++) {
        struct jit_module *module;
        mem_fail_at = n;
        enum sol_status status = jit_build(&jit_objects, FLAGS, two_texts, 2, false, &module, NULL);
        bool reached = mem_fail_at == 0;
        mem_fail_at = 0;
        CHECK(!status || status == SOL_ENOMEM);
        if (!status) jit_release(module);
        if (!reached) break;
    }
    CHECK(build() == 0);
}

int main(void) {
    REQUIRE(mkdtemp(scratch) != NULL);
    unsetenv("SOL_CC");
    unsetenv("SOL_CC_TIMEOUT");
    use_cache("first");
    CHECK(build() == 2);
    int descriptors = count_descriptors();
    test_hits();
    test_libraries();
    test_damage();
    test_collision();
    test_refusals();
    test_full();
    test_size_limit();
    test_stale();
    test_bad_text();
    test_bad_compiler();
    test_late();
    test_never();
    test_long();
    test_processes();
    test_kills();
    test_memory();
    test_folders();
    CHECK(count_descriptors() == descriptors);
    const char *const remove[] = {"rm", "-rf", scratch, NULL};
    struct os_run run = {.max_s = 10};
    CHECK(!os_spawn(remove, &run, NULL, 0) && !run.code);
    return check_done();
}

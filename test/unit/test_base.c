/*
 * src/base: messages, memory, text and numbers, hash, environment, files and child processes.
 */
#include "base/base.h"
#include "check.h"

#include <fcntl.h>
#include <float.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sol/sol.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Status ---- */

static enum sol_status fail_twice(void) {
    TRY(SOL_OK);
    TRY(fail(SOL_EINVAL, "dim %d", 3));
    return SOL_EBUG;
}

static void *read_error(void *unused) {
    (void)unused;
    CHECK_TEXT(sol_error(), "");
    return NULL;
}

static void test_status(void) {
    CHECK_TEXT(sol_error(), "");
    CHECK(fail_twice() == SOL_EINVAL);
    fail_prefix("layer %s: ", "conv1");
    CHECK_TEXT(sol_error(), "layer conv1: dim 3");
    (void)fail(SOL_EBUG, "again: %s", sol_error());
    CHECK_TEXT(sol_error(), "again: layer conv1: dim 3");

    char longer[3000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    (void)fail(SOL_EINVAL, "%s", longer);
    CHECK(strlen(sol_error()) == 1023);
    fail_prefix("%s", "front ");
    CHECK(strlen(sol_error()) == 1023 && !strncmp(sol_error(), "front x", 7));
    fail_prefix("%s", longer);
    CHECK(strlen(sol_error()) == 1023);

    pthread_t thread;
    REQUIRE(!pthread_create(&thread, NULL, read_error, NULL));
    pthread_join(thread, NULL);
}

/* ---- Arena ---- */

/* arena_release frees the memory that was allocated between two marks, and nothing else. */
static void fence_arena(struct arena *arena) {
    const char *before = arena_strdup(arena, "before");
    size_t size = arena_size(arena);
    struct arena_block *first = arena_mark(arena);
    memset(arena_alloc(arena, 5 << 20), 1, 5 << 20);
    struct arena_block *second = arena_mark(arena);
    const char *behind = arena_strdup(arena, "behind");
    CHECK(arena_size(arena) > size + (5 << 20));
    arena_release(first, second);
    CHECK(arena_size(arena) < size + (2 << 20));
    CHECK_TEXT(before, "before");
    CHECK_TEXT(behind, "behind");
}

static void fill_arena(struct arena *arena) {
    struct {
        int n, cap;
        int *at;
    } numbers = {0};
    for (int i = 0; i < 10000; i++) VEC_PUSH(arena, &numbers, i);
    for (int i = 0; i < 10000; i += 777) CHECK(numbers.at[i] == i);
    char *large = arena_alloc(arena, 3 << 20);
    CHECK((uintptr_t)large % 16 == 0 && !large[0] && !large[(3 << 20) - 1]);
    for (int i = 0; i < 100; i++) CHECK((uintptr_t)arena_alloc(arena, (size_t)i) % 16 == 0);
    CHECK(arena_alloc(arena, 0) != arena_alloc(arena, 0));
    CHECK_TEXT(arena_printf(arena, "%s-%d", arena_strdup(arena, "abc"), 5), "abc-5");
    CHECK(!memcmp(arena_copy(arena, "xyz", 3), "xyz", 3));
    fence_arena(arena);
}

/* Fills an arena while the n-th allocation fails. Returns whether that allocation was reached. */
static bool fails_at(int n) {
    struct arena arena;
    jmp_buf boundary;
    arena_init(&arena);
    arena.boundary = &boundary;
    volatile bool failed = true;
    mem_fail_at = n;
    if (!setjmp(boundary)) {
        fill_arena(&arena);
        failed = false;
    }
    if (failed) CHECK(!strncmp(sol_error(), "out of memory", 13));
    mem_fail_at = 0;
    arena_fini(&arena);
    return failed;
}

static bool refuses(size_t item_size, size_t n) {
    struct arena arena;
    jmp_buf boundary;
    arena_init(&arena);
    arena.boundary = &boundary;
    volatile bool refused = true;
    if (!setjmp(boundary)) {
        (void)arena_alloc_array(&arena, item_size, n);
        refused = false;
    }
    arena_fini(&arena);
    return refused;
}

/* ---- Stack ---- */

static void *measure_stack(void *deeper) {
    volatile char room[8192] = {0};
    size_t left = os_stack_left();
    CHECK(left > 100 << 10 && left < 256 << 10);
    CHECK(os_stack_check(64 << 10, "") == SOL_OK);
    CHECK(os_stack_check(1 << 20, "too deep") == SOL_ENOMEM);
    CHECK(strstr(sol_error(), "too deep: ") && strstr(sol_error(), "stack are left"));
    if (deeper) CHECK(*(size_t *)deeper >= left + sizeof room);
    else measure_stack(&left);
    return NULL;
}

static void test_stack(void) {
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    CHECK(!pthread_attr_setstacksize(&attr, 256 << 10));
    CHECK(!pthread_create(&thread, &attr, measure_stack, NULL));
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    CHECK(os_stack_left() > 64 << 10);
}

static void test_arena(void) {
    int n = 1;
    while (fails_at(n)) n++;
    CHECK(n > 3);
    CHECK(refuses(1, SIZE_MAX));
    CHECK(refuses(16, SIZE_MAX / 8));
    CHECK(refuses(8, (size_t)-1));
    for (size_t alignment = 16; alignment <= 4096; alignment *= 2) {
        char *memory = mem_alloc(100, alignment);
        CHECK(memory && (uintptr_t)memory % alignment == 0 && !memory[0] && !memory[99]);
        mem_free(memory);
    }
    mem_fail_at = 2;
    void *first = mem_realloc(NULL, 10), *second = mem_realloc(first, 20);
    CHECK(first && !second && mem_fail_at == 0);
    mem_free(first);
    CHECK(!mem_alloc(SIZE_MAX - 100, 64));
}

/* KiB in huge pages of the mapping that contains `at`; -1: the system does not tell, or has none. */
static long count_huge(const char *at) {
    char line[512];
    unsigned long begin, end;
    long found = -1;
    bool is_in = false;
    FILE *none = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (!none) return -1;
    const bool is_off = !fgets(line, sizeof line, none) || strstr(line, "[never]");
    fclose(none);
    FILE *maps = is_off ? NULL : fopen("/proc/self/smaps", "r");
    while (maps && found < 0 && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            is_in = (uintptr_t)at >= begin && (uintptr_t)at < end;
        if (is_in) (void)sscanf(line, "AnonHugePages: %ld kB", &found);
    }
    if (maps) fclose(maps);
    return found;
}

/* Large memory of whole pages lies in huge pages from its first write on. */
static void test_huge(void) {
    const size_t size = ((size_t)32 << 20) + 100;
    char *memory = mem_alloc(size, 4096);
    CHECK(memory && (uintptr_t)memory % 4096 == 0);
    CHECK(!memory[0] && !memory[size / 2] && !memory[size - 1]);
    if (!check_is_emulated("huge pages")) CHECK(count_huge(memory + size / 2) != 0);
    mem_free(memory);
}

/* ---- Text ---- */

static void check_double(struct arena *arena, double value) {
    struct text text;
    text_init(&text, arena);
    text_add_double(&text, value);
    CHECK(strpbrk(text.at, ".enf") && !strchr(text.at, ','));
    const char *at = text.at;
    double back = 0;
    CHECK(text_parse_double(&at, &back) && !*at);
    CHECK(isnan(value) ? isnan(back) : !memcmp(&value, &back, sizeof value));
}

static void check_float(struct arena *arena, float value) {
    struct text text;
    text_init(&text, arena);
    text_add_c_float(&text, (double)value);
    const char *at = text.at + (text.at[0] == '(');
    double back = 0;
    CHECK(text_parse_double(&at, &back) && *at == 'f');
    CHECK((float)back == value);
}

static double random_double(uint64_t *state) {
    *state = hash_bytes(*state, "", 0);
    double value;
    memcpy(&value, state, sizeof value);
    return value;
}

static const char *print_float(struct arena *arena, double value) {
    struct text text;
    text_init(&text, arena);
    text_add_c_float(&text, value);
    return text.at;
}

static const char *print_double(struct arena *arena, double value) {
    struct text text;
    text_init(&text, arena);
    text_add_double(&text, value);
    return text.at;
}

static void check_numbers(struct arena *arena) {
    static const double values[] = {0.0,
                                    -0.0,
                                    1.0,
                                    0.1,
                                    1.5,
                                    1e22,
                                    123456789.0,
                                    DBL_MAX,
                                    DBL_MIN,
                                    5e-324,
                                    1.0 / 3,
                                    -2.5e-7,
                                    9007199254740993.0,
                                    1e100,
                                    INFINITY,
                                    -INFINITY,
                                    NAN};
    for (int i = 0; i < COUNT(values); i++) check_double(arena, values[i]);
    uint64_t state = 1;
    for (int i = 0; i < 2000; i++) {
        double value = random_double(&state);
        check_double(arena, value);
        if (isfinite(value) && fabs(value) < (double)FLT_MAX) check_float(arena, (float)value);
    }
    CHECK_TEXT(print_double(arena, 0.1), "0.1");
    CHECK_TEXT(print_double(arena, 3), "3.0");
    CHECK_TEXT(print_double(arena, -INFINITY), "-inf");
    CHECK_TEXT(print_double(arena, -(double)NAN), "nan");
    CHECK_TEXT(print_float(arena, 0.1), "0.1f");
    CHECK_TEXT(print_float(arena, -2), "(-2.0f)");
    CHECK_TEXT(print_float(arena, 1e300), "(1.0f/0.0f)");
    CHECK_TEXT(print_float(arena, -INFINITY), "(-1.0f/0.0f)");
    CHECK_TEXT(print_float(arena, NAN), "(0.0f/0.0f)");
}

static void check_parse(void) {
    static const char *const bad[] = {"", "-", "x", " 1", "0x10", "e5", ".", "+1", "--1", ".e1"};
    double value = 7;
    for (int i = 0; i < COUNT(bad); i++) {
        const char *at = bad[i];
        CHECK(!text_parse_double(&at, &value) && at == bad[i] && value == 7);
    }
    const char *at = "1.25,2";
    CHECK(text_parse_double(&at, &value) && value == 1.25 && *at == ',');
    at = "-inf]";
    CHECK(text_parse_double(&at, &value) && value < 0 && isinf(value) && *at == ']');
    at = ".5";
    CHECK(text_parse_double(&at, &value) && value == 0.5 && !*at);
}

static void test_text(void) {
    struct arena arena;
    jmp_buf boundary;
    arena_init(&arena);
    arena.boundary = &boundary;
    REQUIRE(!setjmp(boundary));
    struct text text;
    text_init(&text, &arena);
    CHECK_TEXT(text.at, "");
    for (int i = 0; i < 1000; i++) text_add(&text, "%d,", i);
    CHECK(text.size == 3890 && strlen(text.at) == 3890);
    CHECK_TEXT(text.at + 3882, "998,999,");
    text_add_raw(&text, "abc", 2);
    CHECK_TEXT(text.at + 3890, "ab");
    check_numbers(&arena);
    check_parse();
    /* Locales with a decimal comma. Without one on this machine, the second round repeats the first. */
    static const char *const locales[] = {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "ps_AF.UTF-8"};
    for (int i = 0; i < COUNT(locales); i++)
        if (setlocale(LC_ALL, locales[i])) printf("locale %s\n", locales[i]);
    check_numbers(&arena);
    check_parse();
    (void)setlocale(LC_ALL, "C");
    arena_fini(&arena);
}

/* ---- Hash, environment, log ---- */

static void test_hash(void) {
    unsigned char data[64] = {0};
    uint64_t seen[COUNT(data) + 1];
    for (int n = 0; n <= COUNT(data); n++) { /* zeros of different lengths hash differently */
        seen[n] = hash_bytes(0, data, (size_t)n);
        for (int i = 0; i < n; i++) CHECK(seen[i] != seen[n]);
    }
    for (int bit = 0; bit < 8 * COUNT(data); bit++) { /* and each bit changes the hash */
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        uint64_t hash = hash_bytes(0, data, sizeof data);
        int changed = __builtin_popcountll(hash ^ seen[COUNT(data)]);
        CHECK(changed >= 12 && changed <= 52);
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    CHECK(hash_bytes(1, data, 8) != hash_bytes(2, data, 8));
}

static void test_env(void) {
    setenv("SOL_DISABLE", " winograd4, onednn,,x86 ", 1);
    CHECK(env_has(ENV_SOL_DISABLE, "winograd4") && env_has(ENV_SOL_DISABLE, "onednn"));
    CHECK(env_has(ENV_SOL_DISABLE, "x86") && !env_has(ENV_SOL_DISABLE, "winograd"));
    CHECK(!env_has(ENV_SOL_DISABLE, ""));
    setenv("SOL_DISABLE", "all", 1);
    CHECK(env_has(ENV_SOL_DISABLE, "anything"));
    setenv("SOL_DISABLE", "", 1);
    CHECK(!env_get(ENV_SOL_DISABLE) && !env_has(ENV_SOL_DISABLE, "x"));
    unsetenv("SOL_LOG");
    CHECK(log_on(LOG_WARN) && !log_on(LOG_INFO));
    sol_set_log_level(99);
    CHECK(log_on(LOG_TRACE));
    sol_set_log_level(-1);
    CHECK(log_on(LOG_ERROR) && !log_on(LOG_WARN));
}

/* ---- Files and processes ---- */

static void test_read(void) {
    char path[] = "/tmp/sol-test-XXXXXX";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0 && write(fd, "hello", 5) == 5);
    close(fd);
    char *data = NULL;
    size_t size = 0;
    CHECK(!os_read(path, &data, &size) && size == 5 && !strcmp(data, "hello"));
    mem_free(data);
    mem_fail_at = 1;
    CHECK(os_read(path, &data, &size) == SOL_ENOMEM);
    CHECK(!truncate(path, 0) && !os_read(path, &data, &size) && size == 0 && !data[0]);
    mem_free(data);
    unlink(path);
    CHECK(os_read(path, &data, &size) == SOL_EINVAL && strstr(sol_error(), path));
    CHECK(os_read("/tmp", &data, &size) == SOL_EINVAL);
    CHECK(!mkfifo(path, 0600) && os_read(path, &data, &size) == SOL_EINVAL);
    unlink(path);
}

static void *write_slowly(void *path) {
    int fd = open(path, O_WRONLY);
    char part[1000];
    for (int i = 0; i < 200; i++) {
        memset(part, 'a' + i % 26, sizeof part);
        if (write(fd, part, sizeof part) < 0) break;
    }
    close(fd);
    return NULL;
}

/* Data of a pipe arrives in pieces; the pipe ends when its writer closes it. */
static void test_read_pipe(void) {
    char path[] = "/tmp/sol-test-XXXXXX", *data = NULL;
    size_t size = 0;
    pthread_t writer;
    int fd = mkstemp(path);
    REQUIRE(fd >= 0 && write(fd, "hello", 5) == 5 && !close(fd));
    CHECK(!os_read_any(path, &data, &size) && size == 5 && !strcmp(data, "hello"));
    mem_free(data);
    unlink(path);
    CHECK(os_read_any(path, &data, &size) == SOL_EINVAL && strstr(sol_error(), path));
    CHECK(os_read_any("/tmp", &data, &size) == SOL_EINVAL && strstr(sol_error(), "irectory"));
    REQUIRE(!mkfifo(path, 0600) && !pthread_create(&writer, NULL, write_slowly, path));
    REQUIRE(!os_read_any(path, &data, &size));
    CHECK(size == 200000 && data[199999] == 'a' + 199 % 26 && !data[size]);
    pthread_join(writer, NULL);
    mem_free(data);
    unlink(path);
    mem_fail_at = 1;
    CHECK(os_read_any("/dev/null", &data, &size) == SOL_ENOMEM);
    CHECK(!os_read_any("/dev/null", &data, &size) && !size && !data[0]);
    mem_free(data);
}

static int spawn_shell(const char *script, double timeout_s, char *output, size_t size) {
    const char *argv[] = {"sh", "-c", script, NULL};
    struct os_run run = {.max_s = timeout_s, .code = -100};
    CHECK(!os_spawn(argv, &run, output, size));
    return run.code;
}

static void test_spawn(void) {
    static char output[100 << 10];
    CHECK(spawn_shell("echo out; echo err >&2; exit 3", 10, output, sizeof output) == 3);
    CHECK_TEXT(output, "out\nerr\n");
    CHECK(spawn_shell("kill -9 $$", 10, NULL, 0) == 128 + 9);
    CHECK(spawn_shell("cat; echo end", 10, output, sizeof output) == 0); /* stdin is empty */
    CHECK_TEXT(output, "end\n");
    CHECK(spawn_shell("echo 123456", 10, output, 4) == 0);
    CHECK_TEXT(output, "123");
    CHECK(spawn_shell("head -c 3000000 /dev/zero | tr '\\0' x", 10, output, sizeof output) == 0);
    CHECK(strlen(output) == 65536);
    CHECK(spawn_shell("exec >&- 2>&-; sleep 0.1; exit 5", 10, output, sizeof output) == 5);

    /* A grandchild that keeps the output open does not delay os_spawn. */
    double before = os_now();
    CHECK(spawn_shell("sleep 3 & exit 4", 10, output, sizeof output) == 4);
    CHECK(os_now() - before < 2);
    /* A time-out ends the grandchildren too. */
    before = os_now();
    CHECK(spawn_shell("sleep 31.4159 & sleep 31.4159; echo no", 0.3, output, sizeof output) == -1);
    CHECK(os_now() - before < 2);
    CHECK(spawn_shell("yes", 0.2, output, sizeof output) == -1);
    CHECK(spawn_shell("pgrep -f '[s]leep 31.4159'", 10, NULL, 0) != 0);

    /* Sleeping takes no processor time; the processor time of grandchildren counts. */
    const char *const scripts[] = {"sleep 0.4", "while :; do :; done",
                                   "sh -c 'while :; do :; done' & wait"};
    for (int i = 0; i < 3; i++) {
        const char *limited[] = {"sh", "-c", scripts[i], NULL};
        struct os_run limit = {.max_processor_s = 0.2, .max_s = 60};
        CHECK(!os_spawn(limited, &limit, NULL, 0) && limit.code == (i ? -1 : 0));
        CHECK(i ? limit.processor_s >= 0.2 && limit.processor_s < 2 : limit.processor_s < 0.1);
    }
    const char *missing[] = {"/nonexistent/cc", "x", NULL};
    struct os_run run = {.max_s = 5};
    if (!check_is_emulated("spawning a program that is missing"))
        CHECK(os_spawn(missing, &run, NULL, 0) == SOL_EDEVICE &&
              strstr(sol_error(), "/nonexistent/cc"));
    signal(SIGCHLD, SIG_IGN);
    const char *argv[] = {"true", NULL};
    CHECK(os_spawn(argv, &run, NULL, 0) == SOL_EDEVICE);
    signal(SIGCHLD, SIG_DFL);
}

static int count_files(void) {
    int n = 0;
    for (int fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

int main(void) {
    int files = count_files();
    test_status();
    test_arena();
    test_huge();
    test_stack();
    test_text();
    test_hash();
    test_env();
    test_read();
    test_read_pipe();
    test_spawn();
    CHECK(os_cores() >= 1);
    CHECK(count_files() == files);
    return check_done();
}

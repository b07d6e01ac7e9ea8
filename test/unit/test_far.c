/*
 * src/device/far: a device that is another process, also one that dies, has no memory, or lets commands fail.
 *
 * $SOL_FAR is set by each test before it opens a device. Kernels are compiled by jit_build; a loader reads the objects. No test
 * depends on how long something takes. `test_far time` prints how long a submission and a copy take. Needs a C compiler.
 */
#include "check.h"
#include "children.h"
#include "device/cpu/cpu.h"
#include "device/far/far.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sol/sol.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define QUICK "latency=0,bandwidth=100000,threads=2" /* for tests of results only */

static const struct target *const far = &far_target;

/* ---- Kernels ---- */

static const char kernel_text[] =
    "#include <stdint.h>\n"
    "#include <stdlib.h>\n"
    "#include <string.h>\n"
    "#include <time.h>\n"
    "#define KERNEL(name) void name(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end)\n"
    /* ptr[0][i] = ptr[1][i] * arg[0] + i */
    "KERNEL(scale) {\n"
    "    int64_t *out = ptr[0]; const int64_t *in = ptr[1];\n"
    "    for (int64_t i = begin; i < end; i++) out[i] = in[i] * arg[0] + i;\n"
    "}\n"
    /* Task i adds 1 to each of its arg[0] bytes, by way of the scratch. */
    "KERNEL(next) {\n"
    "    for (int64_t i = begin; i < end; i++) {\n"
    "        char *at = (char *)ptr[0] + i * arg[0];\n"
    "        memcpy(scratch, at, arg[0]);\n"
    "        for (volatile int j = 0; j < 20; j++) ;\n"
    "        for (int64_t j = 0; j < arg[0]; j++) at[j] = scratch[j] + 1;\n"
    "    }\n"
    "}\n"
    /* Counts tasks. */
    "KERNEL(count) { __atomic_fetch_add((int64_t *)ptr[0], end - begin, __ATOMIC_RELAXED); }\n"
    /* Says that it runs, and ends when it is told to, or after 20 s. */
    "KERNEL(handshake) {\n"
    "    volatile int64_t *at = ptr[0];\n"
    "    at[0] = 1;\n"
    "    for (time_t end_s = time(NULL) + 20; !at[1] && time(NULL) < end_s;) ;\n"
    "}\n"
    "KERNEL(touch) { *(volatile char *)(uintptr_t)arg[0] = 1; }\n"
    "KERNEL(leave) { exit(3); }\n";

static struct jit_module *module;
static struct jit_image *image;

static void compile_kernels(void) {
    REQUIRE(!jit_build(&jit_images, CPU_OBJECT_FLAGS "-O2 -w", (const char *const[]){kernel_text},
                       1, false, &module, NULL));
    image = jit_object(module, 0);
    REQUIRE(image && image->size);
}

/* ---- Short forms ---- */

static void *open_far(int number, const char *settings) {
    void *context = NULL;
    setenv("SOL_FAR", settings, 1);
    enum sol_status status = far->open(number, &context);
    if (status) fprintf(stderr, "open: %s\n", sol_error());
    REQUIRE(!status && context);
    return context;
}

static uint64_t load(void *context, const char *symbol) {
    uint64_t code = 0;
    enum sol_status status = far->load(context, image->data, image->size, symbol, &code);
    if (status) fprintf(stderr, "load: %s\n", sol_error());
    REQUIRE(!status && code);
    return code;
}

static sol_ptr alloc(void *context, int stream, size_t size) {
    sol_ptr at = 0;
    REQUIRE(!far->alloc(context, stream, size, &at));
    CHECK(at && at % 64 == 0);
    return at;
}

static enum sol_status to_device(void *context, sol_ptr to, void *from, size_t size) {
    struct transfer t = {TRANSFER_TO_DEVICE, .to = to, .host = from, .size = size};
    return far->copy(context, 1, &t, NULL);
}

static enum sol_status to_host(void *context, void *to, sol_ptr from, size_t size) {
    struct transfer t = {TRANSFER_TO_HOST, .from = from, .host = to, .size = size};
    return far->copy(context, 1, &t, NULL);
}

static enum sol_status on_device(void *context, int stream, sol_ptr to, sol_ptr from, size_t size) {
    struct transfer t = {TRANSFER_ON_DEVICE, to, from, NULL, size};
    return far->copy(context, stream, &t, NULL);
}

/* A kernel with up to two addresses and one number. */
static enum sol_status run(void *context, const char *name, uint64_t code, int64_t n_tasks,
                           sol_ptr a, sol_ptr b, int64_t arg, size_t scratch) {
    struct launch l = {.kind = LAUNCH_KERNEL,
                       .name = name,
                       .code = code,
                       .n_tasks = n_tasks,
                       .n_ptr = 2,
                       .ptr = (sol_ptr[]){a, b},
                       .n_arg = 1,
                       .arg = &arg,
                       .scratch = scratch};
    return far->launch(context, 0, &l, NULL);
}

static enum sol_status fill(void *context, sol_ptr at, int byte, int64_t size) {
    struct launch l = {
        .kind = LAUNCH_FILL, .n_ptr = 1, .ptr = &at, .n_arg = 2, .arg = (int64_t[]){byte, size}};
    return far->launch(context, 0, &l, NULL);
}

/* Later commands of `stream` wait for all that the other stream has. */
static enum sol_status follow(void *context, int stream) {
    uint64_t event = 0;
    struct launch l = {.kind = LAUNCH_WAIT, .n_arg = 2, .arg = (int64_t[]){!stream, 0}};
    TRY(far->launch(context, !stream, &l, &event)); /* its number is that of the last event */
    l.arg = (int64_t[]){!stream, (int64_t)event};
    return far->launch(context, stream, &l, NULL);
}

static bool says(const char *part) {
    bool found = strstr(sol_error(), part);
    if (!found) fprintf(stderr, "    message: %s\n    expected: %s\n", sol_error(), part);
    return found;
}

/* ---- What works ---- */

static void test_results(void) {
    void *d = open_far(1, QUICK);
    uint64_t scale = load(d, "scale"), count = load(d, "count");
    enum { N = 10000 };
    static int64_t in[N], out[N];
    for (int i = 0; i < N; i++) in[i] = 3 * i;
    sol_ptr a = alloc(d, 0, sizeof in), b = alloc(d, 0, sizeof in), c = alloc(d, 0, 64);
    CHECK(!to_device(d, a, in, sizeof in));
    CHECK(!follow(d, 0));
    CHECK(!run(d, "scale", scale, N, b, a, 7, 0));
    CHECK(!follow(d, 1));
    CHECK(!to_host(d, out, b, sizeof out));
    CHECK(!far->wait(d, 1, 0));
    int wrong = 0;
    for (int i = 0; i < N; i++) wrong += out[i] != 3 * i * 7 + i;
    CHECK(!wrong);

    CHECK(!fill(d, c, 0, 64));
    CHECK(!run(d, "count", count, 0, c, c, 0, 0)); /* no tasks */
    CHECK(!run(d, "count", count, 1, c, c, 0, 0));
    for (int i = 0; i < 100; i++) CHECK(!run(d, "count", count, 1000000007, c, c, 0, 0));
    CHECK(!run(d, "count", count, (int64_t)1 << 50, c, c, 0, 0));
    CHECK(!follow(d, 1) && !to_host(d, out, c, 8) && !far->wait(d, 1, 0));
    CHECK(out[0] == 1 + 100 * (int64_t)1000000007 + ((int64_t)1 << 50));

    /* Copies on the device, on both streams. */
    CHECK(!on_device(d, 0, b, a, sizeof in) && !follow(d, 1));
    CHECK(!on_device(d, 1, a + 8, b, sizeof in - 8) && !to_host(d, out, a, sizeof out));
    CHECK(!far->wait(d, 1, 0));
    CHECK(out[0] == 0 && !memcmp(out + 1, in, sizeof in - 8));
    CHECK(!far->free(d, 0, a) && !far->free(d, 0, b) && !far->free(d, 0, c));
    CHECK(!far->wait(d, 0, 0) && !far->wait(d, 0, 1));
    far->close(d);
}

/* Tasks with scratch, in many kernels behind each other. */
static void test_scratch(void) {
    for (int threads = 1; threads <= 4; threads += 3) {
        char settings[64], *out = malloc(1000 * 300);
        (void)snprintf(settings, sizeof settings, "latency=0,threads=%d", threads);
        void *d = open_far(0, settings);
        uint64_t next = load(d, "next");
        sol_ptr a = alloc(d, 0, 1000 * 300);
        CHECK(!fill(d, a, 5, 1000 * 300));
        for (int i = 0; i < 50; i++) CHECK(!run(d, "next", next, 1000, a, a, 300, 300));
        CHECK(!follow(d, 1) && !to_host(d, out, a, 1000 * 300) && !far->wait(d, 1, 0));
        int wrong = 0;
        for (int i = 0; i < 1000 * 300; i++) wrong += out[i] != 55;
        CHECK(!wrong);
        CHECK(!run(d, "huge", next, 10, a, a, 300, (size_t)1 << 60));
        CHECK(far->wait(d, 0, 0) == SOL_EDEVICE && says("huge: out of memory for scratch"));
        far->close(d);
        free(out);
    }
}

static void set_flag(void *user) { *(volatile int *)user = 1; }

static void test_host_functions(void) {
    void *d = open_far(0, QUICK);
    int flag = 0;
    uint64_t event = 0;
    struct launch l = {.kind = LAUNCH_HOST, .function = set_flag, .user = &flag};
    CHECK(!far->launch(d, 1, &l, &event) && event == 1);
    CHECK(!far->wait(d, 1, event) && flag == 1);
    CHECK(far->launch(d, 0, &l, NULL) == SOL_EINVAL && says("runs on stream 1"));
    far->close(d);
}

/* A long chain of commands that go to and fro between the streams; more than the rings hold. */
static void test_order(void) {
    void *d = open_far(0, QUICK);
    uint64_t next = load(d, "next");
    sol_ptr a = alloc(d, 0, 64), b = alloc(d, 0, 64);
    char out[64];
    CHECK(!fill(d, a, 0, 64));
    for (int i = 0; i < 1000; i++) {
        REQUIRE(!run(d, "next", next, 8, a, a, 8, 8) && !follow(d, 1));
        REQUIRE(!on_device(d, 1, b, a, 64) && !follow(d, 0));
        REQUIRE(!on_device(d, 0, a, b, 64));
    }
    CHECK(!follow(d, 1) && !to_host(d, out, a, 64) && !far->wait(d, 1, 0));
    for (int i = 0; i < 64; i++) CHECK(out[i] == (char)1000);
    for (int i = 0; i < 20000; i++) REQUIRE(!run(d, "next", next, 1, a, a, 8, 8));
    CHECK(!follow(d, 1) && !to_host(d, out, a, 64) && !far->wait(d, 1, 0));
    CHECK(out[0] == (char)21000 && out[8] == (char)1000);
    far->close(d);
}

/* The same from several threads: all commands are computed once. */
static void *launch_many(void *user) {
    void **all = user;
    for (int i = 0; i < 3000; i++)
        CHECK(!run(all[0], "count", *(uint64_t *)all[1], 3, *(sol_ptr *)all[2], 0, 0, 0));
    CHECK(!far->wait(all[0], 0, 0));
    return NULL;
}

static void test_threads(void) {
    void *d = open_far(0, QUICK);
    uint64_t code = load(d, "count");
    sol_ptr a = alloc(d, 0, 64);
    int64_t out = 0;
    void *all[] = {d, &code, &a};
    pthread_t threads[3];
    CHECK(!fill(d, a, 0, 64));
    for (int i = 0; i < 3; i++) REQUIRE(!pthread_create(&threads[i], NULL, launch_many, all));
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    CHECK(!to_host(d, &out, a, 8) && !far->wait(d, 1, 0) && out == (int64_t)3 * 3000 * 3);
    far->close(d);
}

/* ---- Overlap ---- */

struct interval {
    long long from, to;
};

/* Reads the intervals of one stream from a trace. */
static int read_trace(const char *path, int stream, struct interval *out, int n) {
    int count = 0, tid, pid;
    char line[512], name[128];
    FILE *file = fopen(path, "r");
    REQUIRE(file);
    while (fgets(line, sizeof line, file)) {
        long long from, size;
        if (sscanf(line,
                   "{\"name\": \"%127[^\"]\", \"ph\": \"X\", \"ts\": %lld, \"dur\": %lld, \"pid\": "
                   "%d, \"tid\": %d}",
                   name, &from, &size, &pid, &tid) == 5 &&
            tid == stream && count < n)
            out[count++] = (struct interval){from, from + size};
    }
    fclose(file);
    return count;
}

/* Kernels and copies overlap: the kernel runs until copies have seen that it runs, and one has told it to end. */
static void test_overlap(void) {
    char settings[256], path[] = "/tmp/sol-test-far-XXXXXX";
    close(mkstemp(path));
    (void)snprintf(settings, sizeof settings, "threads=1,trace=%s", path);
    void *d = open_far(0, settings);
    uint64_t code = load(d, "handshake");
    sol_ptr a = alloc(d, 0, 64);
    int64_t runs = 0, one = 1;
    CHECK(!fill(d, a, 0, 64) && !far->wait(d, 0, 0));
    CHECK(!run(d, "handshake", code, 1, a, a, 0, 0));
    while (!runs) CHECK(!to_host(d, &runs, a, 8) && !far->wait(d, 1, 0));
    CHECK(!to_device(d, a + 8, &one, 8) && !far->wait(d, 1, 0) && !far->wait(d, 0, 0));
    far->close(d);

    static struct interval copies[10000], kernels[10];
    int n_copies = read_trace(path, 1, copies, 10000), n = read_trace(path, 0, kernels, 10),
        common = 0;
    CHECK(n == 2 && n_copies >= 2);
    for (int i = 0; i < n_copies; i++)
        common += copies[i].from < kernels[1].to && copies[i].to > kernels[1].from;
    CHECK(common >= 2);
    for (int i = 1; i < n_copies; i++) CHECK(copies[i].from >= copies[i - 1].to);
    unlink(path);
}

/* ---- Wrong addresses ---- */

static void test_device_pointer_on_host(void) {
    void *d = open_far(0, QUICK);
    sol_ptr a = alloc(d, 0, 64);
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile char *)(uintptr_t)a = 1;
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) &&
          WTERMSIG(status) == SIGSEGV);
    far->close(d);
}

static void test_host_pointer_on_device(void) {
    void *d = open_far(0, QUICK), *other = open_far(1, QUICK);
    char *host = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t code = load(d, "touch"), event = 0;
    CHECK(!run(d, "touch host", code, 1, 0, 0, (int64_t)(uintptr_t)host, 0));
    CHECK(far->wait(d, 0, 0) == SOL_EDEVICE);
    CHECK(says("far 0: touch host: ") && says("signal 11"));
    CHECK(!*host);
    /* Everything but close fails from now on. */
    sol_ptr a;
    struct launch l = {.kind = LAUNCH_KERNEL, .name = "x", .code = code};
    CHECK(far->launch(d, 0, &l, &event) == SOL_EDEVICE && says("touch host"));
    CHECK(far->alloc(d, 0, 64, &a) == SOL_EDEVICE && far->free(d, 0, 64) == SOL_EDEVICE);
    CHECK(to_host(d, host, 0, 0) == SOL_EDEVICE && far->wait(d, 1, 0) == SOL_EDEVICE);
    CHECK(far->load(d, image->data, image->size, "touch", &code) == SOL_EDEVICE);
    far->close(d);
    a = alloc(other, 0, 64);
    CHECK(!fill(other, a, 9, 64) && !far->wait(other, 0, 0) && !to_host(other, host, a, 8) &&
          !far->wait(other, 1, 0) && host[7] == 9);
    far->close(other);
    d = open_far(0, QUICK);
    a = alloc(d, 0, 64);
    code = load(d, "leave");
    CHECK(!run(d, "leave", code, 1, 0, 0, 0, 0));
    CHECK(far->wait(d, 0, 0) == SOL_EDEVICE && says("leave: ") && says("exited with code 3"));
    far->close(d);
    munmap(host, 4096);
}

static void test_bad_arguments(void) {
    void *d = open_far(0, QUICK ",devices=3,memory=1"), *none = NULL;
    char host[64] = {0};
    sol_ptr a = alloc(d, 0, 64), big;
    CHECK(far->open(3, &none) == SOL_EDEVICE && says("there is no far 3") && !none);
    CHECK(far->open(-1, &none) == SOL_EDEVICE);
    CHECK(far->alloc(d, 2, 64, &big) == SOL_EINVAL && far->alloc(d, 0, 0, &big) == SOL_EINVAL);
    CHECK(far->free(d, 0, a + 64) == SOL_EINVAL && far->free(d, 0, 0) == SOL_EINVAL);
    CHECK(to_device(d, (sol_ptr)(uintptr_t)host, host, 64) == SOL_EINVAL);
    CHECK(to_host(d, host, a, (2 << 20)) == SOL_EINVAL && says("not in the device's memory"));
    CHECK(on_device(d, 0, a, (sol_ptr)(uintptr_t)host, 8) == SOL_EINVAL);
    CHECK(fill(d, a, 0, 2 << 20) == SOL_EINVAL && fill(d, 0, 0, 1) == SOL_EINVAL);
    struct transfer t = {TRANSFER_TO_DEVICE, .to = a, .host = host, .size = 8};
    CHECK(far->copy(d, 0, &t, NULL) == SOL_EINVAL && says("copies run on stream 1"));
    struct launch l = {.kind = LAUNCH_WAIT, .n_arg = 2, .arg = (int64_t[]){0, 100}};
    CHECK(far->launch(d, 1, &l, NULL) == SOL_EINVAL);
    CHECK(far->wait(d, 0, 100) == SOL_EINVAL && far->wait(d, 7, 0) == SOL_EINVAL);
    l = (struct launch){.kind = LAUNCH_KERNEL};
    CHECK(far->launch(d, 1, &l, NULL) == SOL_EINVAL && says("runs on stream 0"));
    l.n_arg = 100000;
    CHECK(far->launch(d, 0, &l, NULL) == SOL_EINVAL && says("too many arguments"));
    CHECK(!far->wait(d, 0, 0));
    far->close(d);
}

/* ---- Memory ---- */

static void test_memory(void) {
    void *d = open_far(0, QUICK ",memory=1");
    sol_ptr a = alloc(d, 0, 1 << 19), b = alloc(d, 0, (1 << 19) - 64), c = alloc(d, 0, 1), x;
    CHECK(far->alloc(d, 0, 1, &x) == SOL_ENOMEM && says("no memory for 1 bytes"));
    CHECK(far->alloc(d, 0, SIZE_MAX, &x) == SOL_ENOMEM);
    CHECK(!far->free(d, 0, a) && far->free(d, 0, a) == SOL_EINVAL);
    CHECK(far->alloc(d, 0, (1 << 19) + 1, &x) == SOL_ENOMEM);
    CHECK(!far->free(d, 0, c) && !far->free(d, 0, b));
    a = alloc(d, 0, 1 << 20); /* neighbours were merged */
    CHECK(!far->free(d, 0, a));

    /* The stream that freed it takes memory at once; the other one when the commands so far are done. */
    uint64_t code = load(d, "handshake");
    a = alloc(d, 0, 64);
    b = alloc(d, 0, 64);
    int64_t one = 1;
    CHECK(!fill(d, a, 0, 64) && !far->wait(d, 0, 0));
    CHECK(!run(d, "handshake", code, 1, a, a, 0, 0));
    CHECK(!far->free(d, 0, b));
    CHECK(alloc(d, 0, 64) == b && !far->free(d, 0, b));
    CHECK(alloc(d, 1, 64) > b);
    CHECK(!to_device(d, a + 8, &one, 8) && !far->wait(d, 0, 0));
    CHECK(alloc(d, 1, 64) == b);
    far->close(d);

    /* If only what the other stream has freed is left, it is waited for. */
    d = open_far(0, "latency=3000,memory=1");
    a = alloc(d, 0, 1 << 20);
    CHECK(!fill(d, a, 1, 64) && !far->free(d, 0, a));
    CHECK(alloc(d, 1, 1 << 20) == a);
    far->close(d);
}

/* ---- Errors that are asked for ---- */

static void test_faults(void) {
    sol_ptr a, b;
    char host[64];
    void *d = open_far(0, QUICK ",fail=alloc:2");
    a = alloc(d, 0, 64);
    CHECK(far->alloc(d, 0, 64, &b) == SOL_ENOMEM && says("SOL_FAR"));
    b = alloc(d, 0, 64);
    far->close(d);

    d = open_far(0, QUICK ",fail=copy:3");
    a = alloc(d, 0, 64);
    for (int i = 0; i < 2; i++) CHECK(!to_device(d, a, host, 64) && !far->wait(d, 1, 0));
    (void)to_device(d, a, host, 64);
    CHECK(far->wait(d, 1, 0) == SOL_EDEVICE && says("far 0: copy to the device of 64 bytes: "));
    CHECK(far->wait(d, 0, 0) == SOL_EDEVICE && fill(d, a, 0, 1) == SOL_EDEVICE);
    far->close(d);

    d = open_far(0, QUICK ",fail=kernel:2");
    uint64_t code = load(d, "count");
    a = alloc(d, 0, 64);
    CHECK(!run(d, "first", code, 1, a, a, 0, 0) && !far->wait(d, 0, 0));
    CHECK(!run(d, "second", code, 1, a, a, 0, 0));
    (void)run(d, "third", code, 1, a, a, 0, 0);
    CHECK(far->wait(d, 0, 0) == SOL_EDEVICE && says("far 0: second: "));
    far->close(d);

    d = open_far(1, QUICK ",die=3");
    code = load(d, "count");
    a = alloc(d, 0, 64);
    for (int i = 0; i < 5; i++) (void)run(d, i == 2 ? "deadly" : "fine", code, 1, a, a, 0, 0);
    CHECK(far->wait(d, 0, 0) == SOL_EDEVICE && says("far 1: deadly: ") && says("signal 9"));
    far->close(d);
}

static void test_load_errors(void) {
    void *d = open_far(0, QUICK);
    uint64_t code;
    CHECK(far->load(d, image->data, image->size, "nothing", &code) == SOL_EDEVICE);
    CHECK(says("far 0: cannot load nothing: ") && says("undefined symbol"));
    CHECK(far->load(d, "no module", 9, "x", &code) == SOL_EDEVICE && says("cannot load x: "));
    CHECK(far->load(d, image->data, 60, "scale", &code) == SOL_EDEVICE);
    /* The device still works; modules are loaded and freed any number of times. */
    sol_ptr a = alloc(d, 0, 64);
    CHECK(!fill(d, a, 0, 64));
    for (int i = 0; i < 50; i++) {
        code = load(d, "count");
        CHECK(!run(d, "count", code, 2, a, a, 0, 0));
        struct launch l = {.kind = LAUNCH_UNLOAD, .code = code};
        if (i % 2) CHECK(!far->launch(d, 0, &l, NULL));
    }
    int64_t out = 0;
    CHECK(!follow(d, 1) && !to_host(d, &out, a, 8) && !far->wait(d, 1, 0) && out == 100);
    far->close(d);
}

/* The worker is killed in the middle of work, each time elsewhere; another device goes on. */
static void test_kills(void) {
    void *other = open_far(1, QUICK);
    uint64_t other_code = load(other, "count");
    sol_ptr other_at = alloc(other, 0, 64);
    CHECK(!fill(other, other_at, 0, 64));
    static char host[1 << 16];
    for (int i = 0; i < 20; i++) {
        void *d = open_far(0, "latency=5,threads=2,memory=64");
        uint64_t code = load(d, "next");
        sol_ptr a = alloc(d, 0, sizeof host);
        enum sol_status status = SOL_OK;
        for (int j = 0; j < 100000 && !status; j++) {
            status =
                j % 2 ? to_host(d, host, a, sizeof host) : run(d, "next", code, 64, a, a, 64, 64);
            if (!status && j % 8 == 7) status = follow(d, j / 8 % 2);
            if (j == 40 * i) kill(far_worker(d), SIGKILL);
            if (!status && i % 3 == 0 && j > 40 * i) status = far->wait(d, j % 2, 0);
        }
        CHECK(status == SOL_EDEVICE && says("far 0: ") && says("signal 9"));
        CHECK(far->wait(d, 1, 0) == SOL_EDEVICE);
        far->close(d);
        CHECK(!run(other, "count", other_code, 5, other_at, 0, 0, 0));
    }
    int64_t out = 0;
    CHECK(!far->wait(other, 0, 0) && !to_host(other, &out, other_at, 8) &&
          !far->wait(other, 1, 0) && out == 100);
    far->close(other);
}

/* ---- Processes ---- */

/* Has the process ended? It may stay a zombie of a process that does not reap. */
static bool has_ended(pid_t pid) {
    char path[64], text[512] = "";
    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    const char *at = n > 0 ? strrchr(text, ')') : NULL;
    return !at || at[2] == 'Z' || at[2] == 'X';
}

/* The worker ends with its host, also if a child of the host lives on. */
static void test_host_ends(void) {
    int ends[2];
    pid_t pids[2] = {0, 0};
    REQUIRE(!pipe(ends));
    fflush(NULL);
    pid_t host = fork();
    if (!host) {
        void *d = open_far(0, QUICK);
        pids[0] = far_worker(d);
        pids[1] = fork();
        if (!pids[1]) {
            sleep(30);
            _exit(0);
        }
        (void)!write(ends[1], pids, sizeof pids);
        raise(SIGKILL);
    }
    REQUIRE(read(ends[0], pids, sizeof pids) == sizeof pids);
    CHECK(waitpid(host, NULL, 0) == host);
    for (int i = 0; i < 2000 && !has_ended(pids[0]); i++) usleep(5000);
    CHECK(has_ended(pids[0]) && !has_ended(pids[1]));
    kill(pids[1], SIGKILL);
    close(ends[0]);
    close(ends[1]);
}

/* In a child, the parent's device cannot be used, but closed, which leaves the parent's alone. */
static void test_fork(void) {
    void *d = open_far(0, QUICK);
    sol_ptr a = alloc(d, 0, 64);
    CHECK(!fill(d, a, 1, 64) && !far->wait(d, 0, 0));
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        sol_ptr b;
        bool good = far->alloc(d, 0, 64, &b) == SOL_EDEVICE &&
                    says("device far 0 was opened by the parent process");
        good = good && far->free(d, 0, a) == SOL_EDEVICE && fill(d, a, 0, 1) == SOL_EDEVICE;
        good = good && to_host(d, &b, a, 8) == SOL_EDEVICE && far->wait(d, 1, 0) == SOL_EDEVICE;
        far->close(d);
        _exit(good ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    char host[64] = {0};
    CHECK(!to_host(d, host, a, 64) && !far->wait(d, 1, 0) && host[63] == 1);
    far->close(d);
}

/* A host that ignores SIGCHLD cannot know how the worker ended. */
static void test_ignored_signal(void) {
    signal(SIGCHLD, SIG_IGN);
    void *d = open_far(0, QUICK);
    sol_ptr a = alloc(d, 0, 64);
    CHECK(!fill(d, a, 1, 64) && !far->wait(d, 0, 0));
    kill(far_worker(d), SIGKILL);
    while (!far->wait(d, 0, 0)) continue;
    CHECK(far->wait(d, 0, 0) == SOL_EDEVICE && says("far 0: the device's process ended"));
    far->close(d);
    signal(SIGCHLD, SIG_DFL);
}

static void test_descriptors(void) {
    int before = 0, after = 0;
    for (int fd = 0; fd < 256; fd++) before += fcntl(fd, F_GETFD) >= 0;
    for (int i = 0; i < 5; i++) far->close(open_far(i % 2, QUICK));
    for (int fd = 0; fd < 256; fd++) after += fcntl(fd, F_GETFD) >= 0;
    CHECK(before == after);
    CHECK(waitpid(-1, NULL, WNOHANG) < 0); /* all workers were reaped */
}

/* ---- Random operations ---- */

enum { SLOTS = 24, MOST = 5000, PENDING = 64, OPERATIONS = 10000 };

/* What the device should have, computed at once; and what copies to the host should bring. */
static struct slot {
    sol_ptr at;
    size_t size; /* a multiple of 8; 0: no allocation */
    char is[MOST];
    int stream; /* of the last command that used it; so far all uses are in order */
} slots[SLOTS];
static struct pending {
    char *host, *expected; /* NULL: a copy to the device */
    size_t size;
} pending[PENDING];
static int n_pending;
static uint64_t seed = 1;

static uint64_t random_below(uint64_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % n;
}

static void settle(void *d) {
    CHECK(!far->wait(d, 1, 0));
    for (int i = 0; i < n_pending; i++) {
        if (pending[i].expected)
            CHECK(!memcmp(pending[i].host, pending[i].expected, pending[i].size));
        free(pending[i].host);
        free(pending[i].expected);
    }
    n_pending = 0;
}

/* Lets the slot's next command run on `stream`. */
static void use(void *d, struct slot *slot, int stream) {
    if (slot->stream != stream) {
        REQUIRE(!follow(d, stream));
        for (int i = 0; i < SLOTS; i++) slots[i].stream = stream;
    }
}

static void random_alloc(void *d, struct slot *slot) {
    slot->stream = (int)random_below(2);
    slot->size = 8 * (1 + random_below(MOST / 8));
    slot->at = alloc(d, slot->stream, slot->size);
    if (slot->stream) use(d, slot, 0);
    memset(slot->is, 3, slot->size);
    REQUIRE(!fill(d, slot->at, 3, (int64_t)slot->size));
}

static void random_copy(void *d, struct slot *slot, bool to) {
    struct pending *p = &pending[n_pending++];
    *p = (struct pending){malloc(slot->size), to ? NULL : malloc(slot->size), slot->size};
    use(d, slot, 1);
    if (to) {
        for (size_t i = 0; i < slot->size; i++) p->host[i] = slot->is[i] = (char)random_below(256);
        REQUIRE(!to_device(d, slot->at, p->host, slot->size));
    } else {
        memcpy(p->expected, slot->is, slot->size);
        REQUIRE(!to_host(d, p->host, slot->at, slot->size));
    }
}

static void random_compute(void *d, struct slot *slot, uint64_t next) {
    use(d, slot, 0);
    for (size_t i = 0; i < slot->size; i++) slot->is[i]++;
    REQUIRE(!run(d, "next", next, (int64_t)slot->size / 8, slot->at, 0, 8, 8));
}

static void random_move(void *d, struct slot *to, struct slot *from, int stream) {
    size_t size = to->size < from->size ? to->size : from->size;
    if (to == from) return;
    use(d, to, stream);
    use(d, from, stream);
    memcpy(to->is, from->is, size);
    REQUIRE(!on_device(d, stream, to->at, from->at, size));
}

static void random_step(void *d, uint64_t next) {
    struct slot *slot = &slots[random_below(SLOTS)], *other = &slots[random_below(SLOTS)];
    uint64_t what = random_below(8);
    if (!slot->size) {
        random_alloc(d, slot);
    } else if (what == 0) {
        CHECK(!far->free(d, slot->stream, slot->at));
        slot->size = 0;
    } else if (what <= 2) {
        random_copy(d, slot, what == 1);
    } else if (what == 3 && other->size) {
        random_move(d, slot, other, (int)random_below(2));
    } else {
        random_compute(d, slot, next);
    }
    if (n_pending == PENDING) settle(d);
}

static void test_random(void) {
    void *d = open_far(0, QUICK ",memory=1");
    uint64_t next = load(d, "next");
    for (int i = 0; i < OPERATIONS; i++) random_step(d, next);
    settle(d);
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].size) random_copy(d, &slots[i], false);
    settle(d);
    far->close(d);
}

/* ---- Times, for a person ---- */

static void print_times(void) {
    void *d = open_far(0, "latency=0,bandwidth=1000,threads=1");
    enum { N = 4000, SIZE = 1 << 26 };
    uint64_t code = load(d, "count");
    sol_ptr a = alloc(d, 0, SIZE);
    char *host = calloc(1, SIZE);
    for (int round = 0; round < 3; round++) {
        double start = os_now();
        for (int i = 0; i < N; i++) (void)run(d, "count", code, 1, a, a, 0, 0);
        double submitted = os_now();
        (void)far->wait(d, 0, 0);
        double done = os_now();
        printf("launch: %.2f us submitted, %.2f us computed\n", 1e6 * (submitted - start) / N,
               1e6 * (done - start) / N);
        start = os_now();
        for (int i = 0; i < 200; i++)
            (void)!run(d, "count", code, 1, a, a, 0, 0), (void)!far->wait(d, 0, 0);
        printf("launch and wait: %.2f us\n", 1e6 * (os_now() - start) / 200);
        start = os_now();
        (void)to_device(d, a, host, SIZE), (void)!far->wait(d, 1, 0);
        double half = os_now();
        (void)to_host(d, host, a, SIZE), (void)!far->wait(d, 1, 0);
        printf("copies: %.2f GB/s to the device, %.2f GB/s to the host\n",
               1e-9 * SIZE / (half - start), 1e-9 * SIZE / (os_now() - half));
    }
    free(host);
    far->close(d);
}

static void test_settings(void) {
    sol_set_log_level(LOG_ERROR);
    void *d = open_far(0, "nonsense=1,memory=1,,latency=-5"), *none = NULL;
    sol_ptr a;
    CHECK(far->alloc(d, 0, (1 << 20) + 1, &a) == SOL_ENOMEM); /* valid words count */
    far->close(d);
    setenv("SOL_VISIBLE_DEVICES", "5,1", 1);
    far->close(open_far(0, QUICK));
    CHECK(far->open(1, &none) == SOL_EDEVICE &&
          says("there is no far 1: SOL_VISIBLE_DEVICES=5,1 names 1 of 2"));
    unsetenv("SOL_VISIBLE_DEVICES");
    setenv("SOL_FAR", "devices=0", 1);
    CHECK(far->open(0, &none) == SOL_EDEVICE);
    setenv("SOL_CC", "none", 1);
    setenv("SOL_FAR", QUICK, 1);
    CHECK(far->open(0, &none) == SOL_EUNSUPPORTED && !none);
    unsetenv("SOL_CC");
}

static void test(const char *name, void (*function)(void)) {
    double start = os_now();
    function();
    if (getenv("TEST_TIMES")) printf("%-30s %.2f s\n", name, os_now() - start);
}

int main(int argc, char **argv) {
    if (check_is_emulated("far devices")) return check_done();
    compile_kernels();
    if (argc > 1 && !strcmp(argv[1], "time")) {
        print_times();
        return 0;
    }
#define TEST(name) test(#name, test_##name)
    TEST(descriptors);
    TEST(host_ends);
    TEST(results);
    TEST(scratch);
    TEST(host_functions);
    TEST(order);
    TEST(threads);
    TEST(overlap);
    TEST(device_pointer_on_host);
    TEST(host_pointer_on_device);
    TEST(bad_arguments);
    TEST(memory);
    TEST(faults);
    TEST(load_errors);
    TEST(kills);
    TEST(fork);
    TEST(ignored_signal);
    TEST(random);
    TEST(settings);
    jit_release(module);
    return check_done();
}

/*
 * src/device/ve: vector engines, by a libveda that this test compiles (fake_veda.c), and kernels that the host's compiler compiles.
 *
 * Each case that opens another library, or with other variables, runs in a child, as a process opens libveda once. What the fake does
 * not have, a process that is the device, is tested with the stand-in of test/veda. Needs a C compiler.
 */
#include "check.h"
#include "children.h"
#include "device/device.h"
#include "device/ve/ve.h"
#include "run/far.h"

#include <math.h>
#include <pthread.h>
#include <sol/queue.h>
#include <sol/sol.h>
#include <sys/stat.h>

#define SOL_FLAGS "-shared -fPIC -O1 -w -ldl "
#define GOOD "-DVERSION=\"2.3.0\" -DINIT=0"
#define N 1000

static const struct target *const ve = &ve_target;

/* ---- Compiling ---- */

EMBED_TEXT(fake_veda, EMBED_FILE("test/unit/fake_veda.c"));

static const char *folder(void) {
    static char path[64];
    if (!*path) {
        strcpy(path, "/tmp/sol-test-ve-XXXXXX");
        REQUIRE(mkdtemp(path));
    }
    return path;
}

static void write_file(const char *path, const void *data, size_t size, int mode) {
    FILE *file = fopen(path, "we");
    REQUIRE(file && fwrite(data, 1, size, file) == size && !fclose(file) && !chmod(path, mode));
}

/* Compiles the fake and lets libveda be this file. */
static void use_library(const char *name, const char *flags) {
    char path[128], all[256];
    struct jit_module *module;
    snprintf(path, sizeof path, "%s/%s.so", folder(), name);
    snprintf(all, sizeof all, SOL_FLAGS "%s", flags);
    REQUIRE(
        !jit_build(&jit_images, all, (const char *const[]){fake_veda}, 1, false, &module, NULL));
    const struct jit_image *image = jit_object(module, 0);
    write_file(path, image->data, image->size, 0755);
    jit_release(module);
    setenv("SOL_VEDA", path, 1);
}

/* A file of the kernel, with the entry behind it, as the device's link makes it. */
static struct jit_module *compile_kernel(const char *text, const struct jit_image **out) {
    static char all[32768];
    struct jit_module *module;
    char *entry;
    size_t size;
    REQUIRE(!os_read("src/device/ve/entry.h", &entry, &size));
    snprintf(all, sizeof all, "#define SOL_KERNEL kernel\n%s%s", text, entry);
    mem_free(entry);
    REQUIRE(!jit_build(&jit_images, "-shared -fPIC -O1 -fopenmp -w", (const char *const[]){all}, 1,
                       false, &module, NULL));
    *out = jit_object(module, 0);
    return module;
}

static bool says(const char *part) {
    bool found = strstr(sol_error(), part);
    if (!found) fprintf(stderr, "    message: %s\n    expected: %s\n", sol_error(), part);
    return found;
}

/* ---- Why it cannot be used ---- */

static struct {
    const char *flags, *variable, *value, *reason;
} unavailable[] = {
    {NULL, "SOL_VEDA", "/no/libveda.so", "libveda cannot be opened: /no/libveda.so"},
    {NULL, "SOL_VEDA", "libveda.so", "libveda cannot be opened: libveda.so is no absolute path"},
    {"-DVERSION=\"1.4\" -DINIT=0", NULL, NULL, "libveda 1.4 is too old: 2.0 is needed"},
    {GOOD " -DLACKS", NULL, NULL, "libveda cannot be used: it lacks vedaModuleUnload"},
    {"-DVERSION=\"2.0\" -DINIT=20", NULL, NULL,
     "libveda cannot be used: vedaInit: VEDA_ERROR_NO_DEVICES_FOUND"},
    {GOOD, "SOL_NCC", "none", "there is no compiler ncc: SOL_NCC=none"},
    {GOOD, "SOL_NCC", "/no/ncc", "SOL_NCC=/no/ncc: there is no such program"},
    {GOOD, "SOL_NCC", "",
     "there is no compiler ncc: none of ncc and /opt/nec/ve/bin/ncc works; set SOL_NCC"},
    {GOOD, "SOL_VISIBLE_DEVICES", "0,x", "SOL_VISIBLE_DEVICES=0,x: valid are"},
    {GOOD, "SOL_VISIBLE_DEVICES", "1,1", "SOL_VISIBLE_DEVICES=1,1: valid are"},
    {GOOD, "SOL_VISIBLE_DEVICES", "7", "there is no ve 0: SOL_VISIBLE_DEVICES=7 names 0 of 3"},
    {GOOD, "SOL_DISABLE", "ve", "disabled by SOL_DISABLE"},
    {"-DVERSION=\"2.0.1\" -DINIT=1", NULL, NULL, NULL}, /* another library has initialised it */
    {GOOD, "SOL_VISIBLE_DEVICES", "7,2", NULL},
    {GOOD, NULL, NULL, NULL},
};
static int row;

static bool is_as_expected(void) {
    char name[32];
    snprintf(name, sizeof name, "row%d", row);
    if (unavailable[row].flags) use_library(name, unavailable[row].flags);
    if (unavailable[row].variable) setenv(unavailable[row].variable, unavailable[row].value, 1);
    const char *is = device_unavailable_reason(&device_ve), *should = unavailable[row].reason;
    const bool good = is && should ? !strncmp(is, should, strlen(should)) : is == should;
    if (!good) fprintf(stderr, "    is:       %s\n    expected: %s\n", is, should);
    return good;
}

static void test_unavailable(void) {
    (void)folder();
    for (row = 0; row < COUNT(unavailable); row++) CHECK(child_does(is_as_expected, 60));
}

/* ---- The target ---- */

static void *open_ve(int number) {
    void *context = NULL;
    enum sol_status status = ve->open(number, &context);
    if (status) fprintf(stderr, "open: %s\n", sol_error());
    REQUIRE(!status && context);
    return context;
}

static sol_ptr alloc(void *d, size_t size) {
    sol_ptr at = 0;
    REQUIRE(!ve->alloc(d, 0, size, &at));
    CHECK(at && at % 64 == 0);
    return at;
}

static enum sol_status copy(void *d, enum transfer_kind kind, sol_ptr device, void *host,
                            size_t size, uint64_t *event) {
    struct transfer t = {kind, .to = kind ? 0 : device, .from = kind ? device : 0, .host = host,
                         .size = size};
    return ve->copy(d, 0, &t, event);
}

static struct launch kernel(uint64_t code, int64_t n_tasks, const sol_ptr *ptr, int n_ptr,
                            const int64_t *arg, size_t scratch) {
    return (struct launch){.kind = LAUNCH_KERNEL,
                           .name = "step",
                           .code = code,
                           .n_tasks = n_tasks,
                           .n_ptr = n_ptr,
                           .ptr = ptr,
                           .n_arg = 1,
                           .arg = arg,
                           .scratch = scratch};
}

/* out[i] = in[i] * arg[0] + i, by way of scratch; ptr[2] has to be NULL, and counts as an error otherwise. */
static const char scale_text[] =
    "#include <stdint.h>\n"
    "void kernel(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end) {\n"
    "    int64_t *out = ptr[0]; const int64_t *in = ptr[1];\n"
    "    volatile int64_t *own = (int64_t *)scratch;\n"
    "    for (int64_t i = begin; i < end; i++) {\n"
    "        own[i % 8] = in[i] * arg[0];\n"
    "        out[i] = own[i % 8] + i + (ptr[2] ? 1000000 : 0);\n"
    "    }\n"
    "}\n";

static uint64_t load_scale(void *d) {
    const struct jit_image *image;
    uint64_t code = 0;
    struct jit_module *module = compile_kernel(scale_text, &image);
    if (!CHECK(!ve->load(d, image->data, image->size, "kernel_ve", &code)))
        fprintf(stderr, "%s\n", sol_error());
    CHECK(ve->load(d, image->data, image->size, "none_ve", &(uint64_t){0}) == SOL_EDEVICE);
    CHECK(says("ve 0: vedaModuleGetFunction: VEDA_ERROR_FUNCTION_NOT_FOUND (none_ve)"));
    CHECK(ve->load(d, "no code", 7, "kernel_ve", &(uint64_t){0}) == SOL_EDEVICE);
    CHECK(says("ve 0: vedaModuleLoad: VEDA_ERROR_MODULE_NOT_FOUND (kernel_ve)"));
    jit_release(module);
    return code;
}

/* The arguments of a launch may be gone when it is computed. */
static void test_results(void) {
    static int64_t in[N], out[N];
    void *d = open_ve(0);
    const uint64_t code = load_scale(d);
    uint64_t event[3];
    sol_ptr a = alloc(d, sizeof in), b = alloc(d, 8 + sizeof in);
    for (int i = 0; i < N; i++) in[i] = 3 * i;
    CHECK(!copy(d, TRANSFER_TO_DEVICE, a, in, sizeof in, &event[0]));
    for (int k = 0; k < 40; k++) {
        sol_ptr ptr[] = {b + 8, a, 0};
        int64_t arg = k;
        struct launch l = kernel(code, N, ptr, 3, &arg, 64 * (size_t)(k + 1));
        CHECK(!ve->launch(d, 0, &l, &event[1]));
        ptr[0] = ptr[1] = 1, arg = -1;
    }
    CHECK(!copy(d, TRANSFER_TO_HOST, b + 8, out, sizeof out, &event[2]));
    CHECK(event[0] == 1 && event[1] == 41 && event[2] == 42 && !out[N - 1]);
    CHECK(!ve->wait(d, 0, event[2]));
    int wrong = 0;
    for (int i = 0; i < N; i++) wrong += out[i] != 3 * i * 39 + i;
    CHECK(!wrong && !ve->wait(d, 0, 0));

    struct transfer on_device = {TRANSFER_ON_DEVICE, a, b + 16, NULL, 80};
    struct launch fill = {.kind = LAUNCH_FILL,
                          .n_ptr = 1,
                          .ptr = (sol_ptr[]){a + 8},
                          .n_arg = 2,
                          .arg = (int64_t[]){1, 16}};
    CHECK(!ve->copy(d, 0, &on_device, NULL) && !ve->launch(d, 0, &fill, NULL));
    CHECK(!copy(d, TRANSFER_TO_HOST, a, in, sizeof in, NULL) && !ve->wait(d, 0, 0));
    CHECK(in[0] == out[1] && in[1] == 0x0101010101010101 && in[2] == in[1] && in[3] == out[4]);

    struct launch unload = {.kind = LAUNCH_UNLOAD, .code = code};
    CHECK(!ve->launch(d, 0, &unload, NULL) && !ve->free(d, 0, a) && !ve->free(d, 0, b));
    CHECK(!ve->wait(d, 0, 0));
    ve->close(d);
}

static void count_call(void *user) { ++*(int *)user; }

static void test_host_functions(void) {
    int calls = 0;
    void *d = open_ve(0);
    struct launch host = {
        .kind = LAUNCH_HOST, .name = "host", .function = count_call, .user = &calls};
    struct launch wait = {.kind = LAUNCH_WAIT, .n_arg = 2, .arg = (int64_t[]){0, 1}};
    uint64_t event = 0;
    for (int i = 0; i < 3; i++) CHECK(!ve->launch(d, 0, &host, &event));
    CHECK(!ve->launch(d, 0, &wait, NULL) && !calls && !ve->wait(d, 0, event) && calls == 3);
    CHECK(!ve->launch(d, 0, &host, &event));
    CHECK(!ve->wait(d, 0, event - 1) && calls == 3); /* it was seen to be done */
    CHECK(!ve->wait(d, 0, event) && calls == 4);
    ve->close(d);
}

static void test_devices(void) {
    void *none = NULL, *first, *second;
    setenv("SOL_VISIBLE_DEVICES", "2,0", 1);
    first = open_ve(0), second = open_ve(1);
    CHECK(((struct ve *)first)->device == 2 && ((struct ve *)second)->device == 0);
    CHECK(((struct ve *)first)->n_threads == 3);
    CHECK(ve->open(2, &none) == SOL_EDEVICE &&
          says("there is no ve 2: SOL_VISIBLE_DEVICES=2,0 names 2 of 3"));
    CHECK(alloc(first, 64) >> 59 == 2 && alloc(second, 64) >> 59 == 0);
    unsetenv("SOL_VISIBLE_DEVICES");
    CHECK(ve->open(0, &none) == SOL_EDEVICE &&
          says("ve 0: vedaCtxCreate: VEDA_ERROR_CANNOT_CREATE_CONTEXT"));
    CHECK(ve->open(3, &none) == SOL_EDEVICE && says("there is no ve 3, but 3 of them") && !none);
    ve->close(first), ve->close(second);
}

/* ---- Pieces ---- */

/* Pieces 1 to 63 have places in that of piece 0, which is long: had they not waited for it, it would overwrite them. Piece 7 has no
 * bytes. */
static void test_pieces(void) {
    enum { PIECES = 64, LONG = 1 << 20, ALL = LONG + PIECES };
    static int32_t block[ALL], out[ALL];
    int64_t size[PIECES] = {4 * LONG};
    void *d = open_ve(0);
    const sol_ptr to = alloc(d, 4 * LONG);
    sol_ptr ptr[1 + PIECES] = {alloc(d, sizeof block), to};
    int wrong = 0;
    for (int i = 1; i < PIECES; i++)
        size[i] = i == 7 ? 0 : 4, ptr[i + 1] = to + 4 * (sol_ptr)(LONG - PIECES + i);
    for (int i = 0; i < ALL; i++) block[i] = i;
    struct launch l = {.kind = LAUNCH_SCATTER, .n_ptr = PIECES + 1, .n_arg = PIECES, .ptr = ptr};
    l.arg = size;
    CHECK(!copy(d, TRANSFER_TO_DEVICE, ptr[0], block, sizeof block, NULL));
    CHECK(!ve->launch(d, 0, &l, NULL));
    CHECK(!copy(d, TRANSFER_TO_HOST, to, out, 4 * LONG, NULL) && !ve->wait(d, 0, 0));
    for (int i = 0; i < LONG; i++) {
        const int piece = i - (LONG - PIECES);
        wrong += out[i] != (piece < 1 || piece == 7 ? i : LONG + piece - 1 - (piece > 7));
    }
    CHECK(!wrong);
    l.kind = LAUNCH_GATHER;
    CHECK(!ve->launch(d, 0, &l, NULL));
    CHECK(!copy(d, TRANSFER_TO_HOST, ptr[0], out, sizeof out, NULL) && !ve->wait(d, 0, 0));
    for (int i = LONG; i < ALL - 2; i++) wrong += out[i] != i;
    CHECK(!wrong && out[LONG - 1] == ALL - 3 && out[ALL - 2] == ALL - 2);
    l.n_arg--;
    CHECK(ve->launch(d, 0, &l, NULL) == SOL_EINVAL && says("ve 0: a size for each piece"));
    CHECK(!ve->wait(d, 0, 0) && alloc(d, 64)); /* it is not broken */
    ve->close(d);
}

/* ---- Errors ---- */

static void test_memory(void) {
    char byte = 0;
    sol_ptr a;
    void *d = open_ve(0);
    CHECK(ve->alloc(d, 0, 0, &a) == SOL_EINVAL);
    CHECK(ve->alloc(d, 0, (size_t)1 << 29, &a) == SOL_ENOMEM &&
          says("at most 268435456 are possible"));
    a = alloc(d, 64);
    CHECK(ve->free(d, 0, a + 64) == SOL_EINVAL && says("OFFSETTED"));
    CHECK(!ve->free(d, 0, a) && !ve->wait(d, 0, 0));
    CHECK(ve->free(d, 0, alloc(d, 64) + ((sol_ptr)9 << 37)) == SOL_EINVAL &&
          says("ve 0: vedaMemFreeAsync: VEDA_ERROR_UNKNOWN_VPTR"));
    CHECK(!ve->wait(d, 0, 0)); /* it is not broken */
    sol_ptr large = alloc(d, (size_t)1 << 28);
    CHECK(!copy(d, TRANSFER_TO_DEVICE, large, &byte, 1, NULL));
    CHECK(ve->wait(d, 0, 0) == SOL_ENOMEM &&
          says("ve 0: vedaStreamSynchronize: VEDA_ERROR_OUT_OF_MEMORY"));
    CHECK(ve->alloc(d, 0, 64, &a) == SOL_ENOMEM && says("vedaStreamSynchronize"));
    ve->close(d);
}

static void test_kernel_fails(void) {
    void *d = open_ve(0);
    const uint64_t code = load_scale(d);
    const int64_t arg = 1;
    sol_ptr a = alloc(d, 64);
    struct launch l = kernel(code, 8, (sol_ptr[]){a, a + ((sol_ptr)1000 << 37), 0}, 3, &arg, 64);
    struct launch good = kernel(code, 8, (sol_ptr[]){a, a, 0}, 3, &arg, 64);
    CHECK(!ve->launch(d, 0, &good, NULL) && !ve->launch(d, 0, &l, NULL) &&
          !ve->launch(d, 0, &good, NULL));
    CHECK(ve->wait(d, 0, 0) == SOL_EINVAL &&
          says("ve 0: a kernel: VEDA_ERROR_UNKNOWN_VPTR (step)"));
    CHECK(ve->launch(d, 0, &good, NULL) == SOL_EINVAL && says("UNKNOWN_VPTR (step)"));
    CHECK(ve->wait(d, 0, 0) == SOL_EINVAL && ve->free(d, 0, a) == SOL_EINVAL);
    ve->close(d);
}

/* Memory that a kernel is the first to use, and that the device does not have. */
static void test_kernel_without_memory(void) {
    void *d = open_ve(0);
    const int64_t arg = 1;
    const sol_ptr a = alloc(d, (size_t)1 << 28), b = alloc(d, 4096);
    struct launch l = kernel(load_scale(d), 8, (sol_ptr[]){b + 8, b, a + 8}, 3, &arg, 64);
    CHECK(!ve->launch(d, 0, &l, NULL));
    CHECK(ve->wait(d, 0, 0) == SOL_ENOMEM &&
          says("ve 0: a kernel: VEDA_ERROR_OUT_OF_MEMORY (step)"));
    ve->close(d);
}

/* Pointers whose offset has 32 bits. */
static bool knows_short_offsets(void) {
    use_library("short", GOOD " -DBITS=32");
    struct ve *d = open_ve(1);
    sol_ptr a = alloc(d, 64);
    CHECK(a == ((sol_ptr)1 << 54 | (sol_ptr)1 << 32));
    d->size = (size_t)1 << 40;
    CHECK(ve->alloc(d, 0, (size_t)1 << 32, &a) == SOL_ENOMEM &&
          says("ve 1: an allocation of 4294967296 bytes: at most 4294967295 are possible"));
    ve->close(d);
    test_results();
    test_pieces();
    test_kernel_without_memory();
    return !atomic_load(&check_failed);
}

static void test_short_offsets(void) { CHECK(child_does(knows_short_offsets, 60)); }

static void *opened;

static bool is_refused_in_child(void) {
    void *none = NULL;
    sol_ptr a;
    bool good = ve->alloc(opened, 0, 64, &a) == SOL_EDEVICE && says("opened before a fork");
    good = good && ve->wait(opened, 0, 0) == SOL_EDEVICE && says("opened before a fork");
    good = good && ve->open(1, &none) == SOL_EDEVICE && says("a fork does not share");
    const char *reason = device_unavailable_reason(&device_ve);
    ve->close(opened);
    return good && reason && strstr(reason, "a fork does not share");
}

static void test_fork(void) {
    opened = open_ve(0);
    CHECK(child_does(is_refused_in_child, 60));
    CHECK(alloc(opened, 64) && !ve->wait(opened, 0, 0));
    ve->close(opened);
}

/* ---- Programs ---- */

static const char *const models[] = {
    "%2 = softmax %0 axis=3\n",
    "%2 = conv %0 %1 pad=[1,1,1,1]\n%3 = silu %2\n",
    "%2 = max_pool %0 kernel=[3,3] stride=[2,2] pad=[1,1,1,1]\n%3 = relu %2\n",
    "%2 = permute %0 axes=[0,2,3,1]\n%3 = exp %2\n",
    "%2 = argmax %0 axis=1\n%3 = gather %1 %2 axis=1\n",
};
static float in[8 * 3 * 9 * 11], weight[5 * 3 * 3 * 3], is[1 << 16], should[1 << 16];

static struct sol_program *compile(const char *device, const char *layers) {
    struct sol_options options = {.device = device};
    struct sol_program *program = NULL;
    struct sol_model *model = NULL;
    char text[512];
    int number = 1; /* of the last layer */
    for (const char *at = layers; (at = strchr(at, '\n')); at++) number++;
    snprintf(text, sizeof text,
             "model \"m\" {\nsymbol $0 \"n\"\n%%0 = input f32[$0,3,9,11] \"x\"\n"
             "%%1 = param f32[5,3,3,3] \"w\"\n%soutput %%%d \"y\"\n}\n",
             layers, number);
    if (!CHECK(!sol_model_parse(text, &model)) || !CHECK(!sol_compile(model, &options, &program)))
        fprintf(stderr, "%s%s\n", text, sol_error());
    sol_model_free(model);
    REQUIRE(program);
    return program;
}

static enum sol_status run(struct sol_program *program, int64_t batch, float *out) {
    struct sol_weights *weights = NULL;
    enum sol_status status = sol_weights_new(program, (const void *const[]){weight}, &weights);
    if (!status)
        status = sol_program_run(program, weights, &batch, (const void *const[]){in},
                                 (void *const[]){out});
    sol_weights_release(weights);
    return status;
}

static void test_programs(void) {
    for (int m = 0; m < COUNT(models); m++) {
        struct sol_program *program = compile("ve", models[m]), *other = compile("ref", models[m]);
        for (int64_t batch = 1; batch < 8; batch += 3) {
            if (!CHECK(!run(program, batch, is))) fprintf(stderr, "%s\n", sol_error());
            CHECK(!run(other, batch, should));
            int wrong = 0;
            for (int i = 0; i < COUNT(is); i++)
                wrong += !(fabsf(is[i] - should[i]) <= 1e-5f * (1 + fabsf(should[i])));
            if (!CHECK(!wrong)) fprintf(stderr, "%d values are wrong:\n%s", wrong, models[m]);
        }
        sol_program_release(program);
        sol_program_release(other);
    }
}

/* Calls on the device's own memory. */
static void test_queue(void) {
    const size_t size = sizeof(float) * 2 * 3 * 9 * 11;
    struct sol_program *program = compile("ve", models[0]);
    struct sol_queue *queue = NULL;
    struct sol_weights *weights = NULL;
    sol_ptr x = 0, y = 0;
    REQUIRE(!sol_queue_new("ve", 0, &queue) &&
            !sol_weights_new(program, (const void *const[]){weight}, &weights));
    CHECK(!sol_alloc(queue, size, &x) && !sol_alloc(queue, size, &y));
    CHECK(!sol_copy_to_device(queue, x, in, size));
    CHECK(!sol_program_enqueue(program, weights, queue, (int64_t[]){2}, &x, &y));
    CHECK(!sol_copy_to_host(queue, is, y, size) && !sol_queue_sync(queue));
    CHECK(!run(program, 2, should) && !memcmp(is, should, size));
    CHECK(!sol_free(queue, x) && !sol_free(queue, y) && !sol_queue_sync(queue));
    sol_queue_free(queue);
    sol_weights_release(weights);
    sol_program_release(program);
}

/* Calls of several threads share the device's stream. */
static void *run_often(void *program) {
    float own[2 * 3 * 9 * 11];
    intptr_t wrong = 0;
    for (int i = 0; i < 20; i++)
        wrong += run(program, 2, own) || memcmp(own, should, sizeof own) != 0;
    return (void *)wrong;
}

static void test_threads(void) {
    struct sol_program *program = compile("ve", models[0]);
    pthread_t threads[4];
    void *wrong;
    CHECK(!run(program, 2, should));
    for (int i = 0; i < COUNT(threads); i++)
        REQUIRE(!pthread_create(&threads[i], NULL, run_often, program));
    for (int i = 0; i < COUNT(threads); i++) CHECK(!pthread_join(threads[i], &wrong) && !wrong);
    sol_program_release(program);
}

/* Any command may fail: the call ends with an error, and the next program has a new device. */
static bool fails_at_any_command(void) {
    char number[16];
    int n_failed = 0;
    enum sol_status status = SOL_EDEVICE;
    for (int i = 1; status && i < 100; i++) {
        struct sol_program *program = compile("ve", models[1]);
        snprintf(number, sizeof number, "%d", i);
        setenv("FAKE_VEDA_FAIL", number, 1);
        status = run(program, 2, is);
        n_failed +=
            status == SOL_EDEVICE && strstr(sol_error(), "VEDA_ERROR_VEO_COMMAND_EXCEPTION");
        if (status && n_failed < i) fprintf(stderr, "command %d: %s\n", i, sol_error());
        setenv("FAKE_VEDA_FAIL", "0", 1);
        sol_program_release(program);
    }
    return n_failed > 5 && !status;
}

static void test_failures(void) { CHECK(child_does(fails_at_any_command, 120)); }

/* ---- The stand-in for VEDA, whose devices are processes ---- */

static void use_stand_in(const char *settings) {
    char path[1024];
    check_path("libveda.so", path, sizeof path);
    setenv("SOL_VEDA", path, 1);
    setenv("SOL_FAR", settings, 1);
}

static bool runs_in_a_process(void) {
    use_stand_in("latency=0,bandwidth=1000,threads=2");
    test_programs();
    test_queue();
    test_threads();
    return !atomic_load(&check_failed);
}

static bool runs_with_short_offsets(void) {
    setenv("SOL_VEDA_OFFSET_BITS", "32", 1);
    return runs_in_a_process();
}

/* The target itself packs nothing. */
static double time_alone(int n, size_t size, char *host) {
    void *d = open_ve(1);
    const sol_ptr to = alloc(d, (size_t)n * size);
    const double start = os_now();
    for (int i = 0; i < n; i++)
        CHECK(!copy(d, TRANSFER_TO_DEVICE, to + (size_t)i * size, host + (size_t)i * size, size,
                    NULL));
    CHECK(!ve->wait(d, 0, 0));
    const double seconds = os_now() - start;
    ve->close(d);
    return seconds;
}

/* The best of some times, as other processes may disturb a short one; the first one also loads the kernel. */
static double time_packed(int n, size_t size, const char *host) {
    struct sol_queue *queue;
    sol_ptr to;
    double best = 1;
    REQUIRE(!sol_queue_new("ve", 0, &queue) && !sol_alloc(queue, (size_t)n * size, &to));
    for (int k = 0; k < 10; k++) {
        const double start = os_now();
        for (int i = 0; i < n; i++)
            CHECK(!sol_copy_to_device(queue, to + (size_t)i * size, host + (size_t)i * size, size));
        CHECK(!sol_queue_sync(queue));
        best = fmin(best, os_now() - start);
    }
    CHECK(!sol_free(queue, to) && !sol_queue_sync(queue));
    sol_queue_free(queue);
    return best;
}

static bool packs_small_copies(void) {
    enum { COPIES = 1000, SMALL = 1024 };
    static char host[COPIES * SMALL];
    use_stand_in("latency=100");
    const double alone = time_alone(COPIES, SMALL, host), packed = time_packed(COPIES, SMALL, host);
    if (packed < alone / 10) return true;
    fprintf(stderr, "alone %.2f ms, packed %.2f ms\n", alone * 1e3, packed * 1e3);
    return false;
}

static bool is_second_in_a_process(void) {
    use_stand_in("latency=0");
    setenv("SOL_VISIBLE_DEVICES", "1", 1);
    void *first = open_ve(0), *none = NULL;
    const bool good = ((struct ve *)first)->device == 1 && ve->open(1, &none) == SOL_EDEVICE &&
                      says("SOL_VISIBLE_DEVICES=1 names 1 of 2");
    ve->close(first);
    return good;
}

/* The device's process ends: at any of its kernels, a call or the compile before it says so. */
static bool survives_its_end(const char *settings) {
    use_stand_in(settings);
    struct sol_program *program = compile("ve", models[1]);
    const enum sol_status status = run(program, 2, is);
    const bool good = status == SOL_EDEVICE && says("ve 0: veda") && says("VEDA_ERROR_VEO_COMMAND");
    sol_program_release(program);
    return good;
}

static bool survives_a_kill(void) { return survives_its_end("latency=0,die=16"); }
static bool survives_an_early_kill(void) { return survives_its_end("latency=0,die=2"); }
static bool survives_a_failure(void) { return survives_its_end("latency=0,fail=kernel:16"); }

static void test_stand_in(void) {
    CHECK(child_does(runs_in_a_process, 120));
    CHECK(child_does(runs_with_short_offsets, 120));
    CHECK(child_does(packs_small_copies, 60));
    CHECK(child_does(is_second_in_a_process, 60));
    CHECK(child_does(survives_a_kill, 60));
    CHECK(child_does(survives_an_early_kill, 60));
    CHECK(child_does(survives_a_failure, 60));
}

/* ---- Another compiler ---- */

/* clang, as a compiler for vector engines, reads each text before the host's compiler gets it. */
static bool is_read_by_clang(void) {
    const char *clang = getenv("CLANG") ? getenv("CLANG") : "/usr/lib/llvm-14/bin/clang";
    char path[128], script[1024];
    snprintf(path, sizeof path, "%s/ncc", folder());
    snprintf(
        script, sizeof script,
        "#!/bin/sh\nfor at in \"$@\"; do case $at in *.c) '%s' --target=ve-linux -std=gnu11 "
        "-fsyntax-only -fopenmp -ffreestanding -Wall -Werror -Wno-unused-function -isystem /usr/include "
        "-isystem /usr/include/x86_64-linux-gnu -D__x86_64__ $at || exit 1;; esac; done\n"
        "exec cc \"$@\"\n",
        clang);
    write_file(path, script, strlen(script), 0755);
    setenv("SOL_NCC", path, 1);
    for (int m = 0; m < COUNT(models); m++) sol_program_release(compile("ve", models[m]));
    test_queue(); /* compiles the kernels of pieces, too */
    return !atomic_load(&check_failed);
}

static void test_clang(void) {
    const char *clang = getenv("CLANG") ? getenv("CLANG") : "/usr/lib/llvm-14/bin/clang";
    if (access(clang, X_OK)) printf("no kernels are read by clang for ve: there is no %s\n", clang);
    else CHECK(child_does(is_read_by_clang, 120));
}

static void remove_folder(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder());
    CHECK(!system(command));
}

int main(void) {
    if (check_is_emulated("vector engines")) return check_done();
    for (int i = 0; i < COUNT(in); i++) in[i] = sinf((float)i) * 3;
    for (int i = 0; i < COUNT(weight); i++) weight[i] = cosf((float)i);
    unsetenv("SOL_VISIBLE_DEVICES");
    setenv("SOL_NCC", "cc", 1);
    test_unavailable();
    use_library("good", GOOD);
    test_failures();
    test_short_offsets();
    test_clang();
    test_stand_in();
    test_results();
    test_host_functions();
    test_devices();
    test_pieces();
    test_memory();
    test_kernel_fails();
    test_kernel_without_memory();
    test_fork();
    test_programs();
    test_queue();
    test_threads();
    remove_folder();
    return check_done();
}

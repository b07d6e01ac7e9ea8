/*
 * Events, functions of the host, and calls with a backward part or updates in queues; the memory that weights take on a device. On
 * the host, and on the far devices that can be used. test_queue.c has random operations.
 */
#include "check.h"
#include "device/device.h"
#include "device/far/far.h"
#include "run/far.h"

#include <pthread.h>
#include <sol/queue.h>
#include <sol/sol.h>
#include <time.h>

static const char *device;

static bool good(enum sol_status status) {
    if (CHECK(!status)) return true;
    puts(sol_error());
    return false;
}

static bool says(enum sol_status status, enum sol_status expected, const char *message) {
    const bool ok = status == expected && strstr(sol_error(), message);
    if (!ok) printf("status %d: %s; expected %d: %s\n", status, sol_error(), expected, message);
    return ok;
}

static struct sol_queue *new_queue(void) {
    struct sol_queue *q = NULL;
    if (sol_queue_new(device, 0, &q)) puts(sol_error());
    REQUIRE(q);
    return q;
}

static sol_ptr alloc(struct sol_queue *q, size_t size) {
    sol_ptr at = 0;
    REQUIRE(!sol_alloc(q, size, &at));
    return at;
}

/* Does the device compute commands later? The host does not. */
static bool is_far(void) {
    const struct device *found;
    REQUIRE(!device_find(device, &found));
    return found->target;
}

/* ---- Programs ---- */

static struct sol_program *program;
static struct sol_weights *weights;

static void start(const char *text, const void *const *params) {
    struct sol_options options = {.device = device, .no_autotune = true};
    struct sol_model *m = NULL;
    if (sol_model_parse(text, &m) || sol_compile(m, &options, &program) ||
        sol_weights_new(program, params, &weights))
        puts(sol_error());
    REQUIRE(m && program && weights);
    sol_model_free(m);
}

static void stop(void) {
    sol_weights_release(weights);
    sol_program_release(program);
    weights = NULL, program = NULL;
}

/* ---- Events ---- */

static void test_numbers(void) {
    struct sol_queue *q = new_queue(), *other = new_queue();
    uint64_t event = 9;
    char data[8] = {0};
    good(sol_queue_event(q, &event));
    CHECK(event == 0);
    good(sol_queue_sync_event(q, 0));
    good(sol_queue_wait(other, q, 0)); /* operation 1 of `other` */
    CHECK(says(sol_queue_sync_event(q, 1), SOL_EINVAL,
               "event 1 of a queue that has had 0 operations"));
    const sol_ptr at = alloc(q, 8);
    good(sol_copy_to_device(q, at, data, 0));
    good(sol_copy_to_device(q, at, data, 8));
    CHECK(sol_copy_to_device(q, at, data, 9) == SOL_EINVAL);
    good(sol_queue_event(q, &event));
    CHECK(event == 2);
    CHECK(says(sol_queue_wait(other, q, 3), SOL_EINVAL, "event 3 of a queue that has had 2"));
    CHECK(says(sol_queue_wait(q, q, 3), SOL_EINVAL, "event 3 of a queue that has had 2"));
    good(sol_queue_wait(other, q, 2));
    good(sol_queue_event(other, &event));
    CHECK(event == 2);
    good(sol_queue_sync_event(q, 1));
    good(sol_queue_sync_event(q, 2));
    good(sol_queue_sync_event(q, 1));
    good(sol_free(q, at));
    good(sol_queue_event(q, &event));
    CHECK(event == 3);
    sol_queue_free(q);
    sol_queue_free(other);
}

/* More events than a queue keeps, and each of them is exact: by then its copy is there. */
static void test_many(void) {
    enum { N = 1000 };
    static int32_t from[N], to[N];
    static uint64_t event[N];
    struct sol_queue *q = new_queue();
    const sol_ptr at = alloc(q, sizeof from);
    for (int i = 0; i < N; i++) from[i] = i + 1;
    good(sol_copy_to_device(q, at, from, sizeof from));
    for (int i = 0; i < N; i++) {
        good(sol_copy_to_host(q, &to[i], at + (uint64_t)i * 4, 4));
        good(sol_queue_event(q, &event[i]));
        CHECK(event[i] == (uint64_t)i + 3);
    }
    for (int i = 0; i < N; i += 7) {
        good(sol_queue_sync_event(q, event[i]));
        CHECK(!memcmp(to, from, ((size_t)i + 1) * 4));
    }
    good(sol_free(q, at));
    sol_queue_free(q);
}

struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool is_open, was_late;
};

/* Waits until the gate is open, but no longer than 10 s. */
static void pass(void *user) {
    struct gate *gate = user;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 10;
    pthread_mutex_lock(&gate->mutex);
    while (!gate->is_open && !gate->was_late)
        gate->was_late = pthread_cond_timedwait(&gate->changed, &gate->mutex, &end);
    pthread_mutex_unlock(&gate->mutex);
}

static void open_gate(struct gate *gate) {
    pthread_mutex_lock(&gate->mutex);
    gate->is_open = true;
    pthread_cond_signal(&gate->changed);
    pthread_mutex_unlock(&gate->mutex);
}

/* A function of the host holds the queue up. Neither the host nor another queue waits for it, but for what is in front of it. */
static void test_gate(void) {
    static struct gate gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};
    struct sol_queue *q = new_queue(), *other = new_queue();
    int32_t from = 7, to = 0, copied = 0;
    uint64_t event, of_other;
    const sol_ptr a = alloc(q, 4), b = alloc(q, 4);
    good(sol_copy_to_device(q, a, &from, 4));
    good(sol_copy_to_host(q, &to, a, 4));
    good(sol_queue_event(q, &event));
    good(sol_queue_call(q, pass, &gate));
    good(sol_queue_sync_event(q, event));
    CHECK(to == 7);
    good(sol_queue_wait(other, q, event));
    good(sol_copy_on_device(other, b, a, 4));
    good(sol_queue_event(other, &of_other));
    good(sol_queue_sync_event(other, of_other));
    open_gate(&gate);
    good(sol_queue_sync(q));
    CHECK(!gate.was_late);
    good(sol_copy_to_host(other, &copied, b, 4));
    good(sol_queue_sync(other));
    CHECK(copied == 7);
    good(sol_free(q, a));
    good(sol_free(q, b));
    sol_queue_free(q);
    sol_queue_free(other);
}

static void be_late(void *user) {
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    *(int32_t *)user = 7;
}

/* What one queue does late on one stream of the device, another queue finds done on the other one: a chain a -> b -> c, of which one
 * queue computes a, on the host, and c, on the device; the other one b and the result. */
static void test_order(void) {
    enum { N = 1 << 20 };
    static int32_t from[N], to[N];
    struct sol_queue *q = new_queue(), *other = new_queue();
    const sol_ptr a = alloc(q, N * 4), b = alloc(q, N * 4), c = alloc(q, N * 4);
    uint64_t event;
    from[0] = from[N - 1] = 0;
    good(sol_queue_call(q, be_late, &from[N - 1]));
    good(sol_copy_to_device(q, a, from, sizeof from));
    good(sol_queue_event(q, &event));
    good(sol_queue_wait(other, q, event));
    good(sol_copy_on_device(other, b, a, sizeof from));
    good(sol_queue_event(other, &event));
    good(sol_queue_wait(q, other, event));
    for (int i = 0; i < 20; i++) good(sol_copy_on_device(q, a, b, sizeof from));
    good(sol_copy_on_device(q, c, b, sizeof from));
    good(sol_queue_event(q, &event));
    good(sol_queue_wait(other, q, event));
    good(sol_copy_to_host(other, to, c, sizeof to));
    good(sol_queue_sync(other));
    CHECK(to[N - 1] == 7);
    good(sol_free(other, a));
    good(sol_free(other, b));
    good(sol_free(other, c));
    sol_queue_free(q);
    sol_queue_free(other);
}

/* One thread waits for events while another one adds operations. */
struct pipe {
    struct sol_queue *queue;
    sol_ptr at;
    _Atomic uint64_t event;
    int32_t to[2000];
};

static void *produce(void *user) {
    struct pipe *pipe = user;
    for (int i = 0; i < COUNT(pipe->to); i++) {
        uint64_t event;
        good(sol_copy_to_host(pipe->queue, &pipe->to[i], pipe->at, 4));
        if (i % 3) continue;
        good(sol_queue_event(pipe->queue, &event));
        atomic_store(&pipe->event, event);
    }
    return NULL;
}

static void test_threads(void) {
    static struct pipe pipe;
    pthread_t thread;
    const int32_t from = 5;
    pipe = (struct pipe){.queue = new_queue()};
    pipe.at = alloc(pipe.queue, 4);
    good(sol_copy_to_device(pipe.queue, pipe.at, &from, 4));
    REQUIRE(!pthread_create(&thread, NULL, produce, &pipe));
    for (uint64_t event = 0; event < 1999;) {
        if (event == atomic_load(&pipe.event)) continue;
        event = atomic_load(&pipe.event);
        good(sol_queue_sync_event(pipe.queue, event));
        if (event > 2) CHECK(pipe.to[event - 3] == 5);
    }
    pthread_join(thread, NULL);
    good(sol_queue_sync(pipe.queue));
    good(sol_free(pipe.queue, pipe.at));
    sol_queue_free(pipe.queue);
}

/* A copy of device 1 fails. The wait for its event says so, and from then on all functions do. The gate holds the copies back until all is
 * in the queue. */
static void test_failure(void) {
    static struct gate gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};
    static char data[1 << 15];
    struct sol_queue *q = NULL;
    uint64_t event = 0;
    sol_ptr at = 0;
    setenv("SOL_FAR", "latency=0,fail=copy:2", 1);
    good(sol_queue_new("far", 1, &q));
    setenv("SOL_FAR", "latency=0", 1);
    at = alloc(q, sizeof data);
    good(sol_queue_call(q, pass, &gate));
    for (int i = 0; i < 3; i++) good(sol_copy_to_device(q, at, data, sizeof data));
    good(sol_queue_event(q, &event));
    open_gate(&gate);
    for (int i = 0; i < 2; i++)
        CHECK(says(sol_queue_sync_event(q, event), SOL_EDEVICE, "SOL_FAR lets this copy fail"));
    CHECK(says(sol_queue_event(q, &event), SOL_EDEVICE, "SOL_FAR lets this copy fail"));
    CHECK(says(sol_queue_sync(q), SOL_EDEVICE, "SOL_FAR lets this copy fail"));
    sol_queue_free(q);
}

/* ---- Functions of the host ---- */

static void add_one(void *user) { ++*(int32_t *)user; }

/* There and back through the same memory of the host, with a function between: small and large copies. */
static void test_functions(void) {
    static int32_t large[50000];
    int32_t results[2];
    struct sol_queue *q = new_queue();
    large[0] = 0;
    const sol_ptr a = alloc(q, sizeof large), b = alloc(q, 4);
    good(sol_copy_to_device(q, a, large, sizeof large));
    good(sol_copy_to_device(q, b, large, 4));
    for (int i = 0; i < 20; i++) {
        good(sol_copy_to_host(q, large, a, sizeof large));
        good(sol_queue_call(q, add_one, large));
        good(sol_copy_to_device(q, a, large, sizeof large));
        good(sol_copy_to_host(q, &results[1], b, 4));
        good(sol_queue_call(q, add_one, &results[1]));
        good(sol_queue_call(q, add_one, &results[1]));
        good(sol_copy_to_device(q, b, &results[1], 4));
    }
    good(sol_copy_to_host(q, results, a, 4));
    good(sol_queue_sync(q));
    CHECK(results[0] == 20 && results[1] == 40);
    CHECK(says(sol_queue_call(q, NULL, NULL), SOL_EINVAL, "the function is NULL"));
    good(sol_free(q, a));
    good(sol_free(q, b));
    sol_queue_free(q);
}

/* ---- Updates ---- */

#define SUM                                                                                         \
    "model \"m\" {\n%0 = input f32[4] \"table\"\n%1 = input i64[1] \"index\"\n"                       \
    "%2 = param f32[1] \"s\"\n%3 = gather %0 %1 axis=0\n%4 = add %2 %3\noutput %3 \"y\"\nupdate %2 %4\n}"

/* s += table[index]: the host's s stays, until it is asked for. */
static void test_update(void) {
    float s = 1, table[4] = {10, 20, 30, 40};
    int64_t index[2] = {2, 9};
    uint64_t event;
    start(SUM, (const void *const[]){&s});
    struct sol_queue *q = new_queue();
    const sol_ptr in[2] = {alloc(q, 16), alloc(q, 8)}, y = alloc(q, 4);
    good(sol_copy_to_device(q, in[0], table, 16));
    good(sol_copy_to_device(q, in[1], index, 8));
    for (int i = 0; i < 3; i++) good(sol_program_enqueue(program, weights, q, NULL, in, &y));
    good(sol_queue_sync(q));
    CHECK(s == (is_far() ? 1 : 91));
    good(sol_weights_sync(weights, q));
    CHECK(s == 91);
    s = 5; /* this call begins with the host's value */
    good(sol_program_run(program, weights, NULL, (const void *const[]){table, index},
                         (void *const[]){&(float){0}}));
    CHECK(s == 35);
    good(sol_program_enqueue(program, weights, q, NULL, in, &y));
    good(sol_weights_sync(weights, q));
    CHECK(s == 65);
    good(sol_queue_event(q, &event));
    if (is_far()) { /* a wrong index is found by a wait behind it, not by one in front of it */
        good(sol_copy_to_device(q, in[1], index + 1, 8));
        good(sol_queue_event(q, &event));
        good(sol_program_enqueue(program, weights, q, NULL, in, &y));
        good(sol_queue_sync_event(q, event));
        good(sol_queue_event(q, &event));
        CHECK(sol_queue_sync_event(q, event) == SOL_EINDEX);
        CHECK(sol_queue_sync(q) == SOL_EINDEX);
        CHECK(sol_program_enqueue(program, weights, q, NULL, in, &y) == SOL_EINDEX);
        CHECK(sol_queue_event(q, &event) == SOL_EINDEX);
        CHECK(sol_weights_sync(weights, q) == SOL_EINDEX && s == 65);
        sol_queue_free(q);
        q = new_queue();
    }
    good(sol_free(q, in[0]));
    good(sol_free(q, in[1]));
    good(sol_free(q, y));
    sol_queue_free(q);
    stop();
}

/* ---- A backward part ---- */

/* y = tanh(x) (2 w) and its gradients for x and w. */
static void start_training(const float *w) {
    struct sol_options options = {.device = device, .no_autotune = true};
    struct sol_model *m = sol_model_new("train");
    sol_tensor x[2] = {sol_model_input(m, "x", SOL_F32, 2,
                                       (int64_t[]){sol_model_symbol(m, "n"), 8}),
                       sol_model_param(m, "w", SOL_F32, 2, (int64_t[]){8, 8})},
               dx[2];
    const sol_tensor t = sol_model_layer(m, "tanh", 1, x, "", NULL),
                     w2 = sol_model_layer(m, "mul", 2, (sol_tensor[]){x[1], sol_model_scalar(m, 2)},
                                          "", NULL),
                     y = sol_model_layer(m, "matmul", 2, (sol_tensor[]){t, w2}, "", NULL),
                     dy = sol_model_backward_input(m, "dy", y);
    sol_model_output(m, "y", y);
    sol_model_gradients(m, 1, &y, &dy, 2, x, dx);
    sol_model_backward_output(m, "dx", dx[0]);
    sol_model_backward_output(m, "dw", dx[1]);
    if (sol_compile(m, &options, &program) ||
        sol_weights_new(program, (const void *const[]){w}, &weights))
        puts(sol_error());
    REQUIRE(program && weights);
    sol_model_free(m);
}

/* n values of x, dy, y, dx, and those of dw: what both ways must agree in. */
enum { X, DY, Y, DX, DW, BUFFERS, ROWS = 6, SIZE = ROWS * 8 * 4 };

static void train_on_host(float data[BUFFERS][64]) {
    const int64_t n = ROWS;
    size_t size;
    REQUIRE(!sol_program_saved_size(program, &n, &size));
    void *saved = mem_alloc(size + 1, 64);
    const void *const in[] = {data[X], data[DY]};
    void *const out[] = {data[Y], data[DX], data[DW]};
    good(sol_program_forward(program, weights, &n, in, out, saved));
    good(sol_program_backward(program, weights, &n, in, out, saved));
    sol_program_saved_free(program, saved);
    mem_free(saved);
}

/* Two forward calls, then their backward calls: each has its own saved values. */
static void train_in_queue(float data[2][BUFFERS][64]) {
    const int64_t n = ROWS;
    struct sol_memory memory;
    struct sol_queue *q = new_queue();
    sol_ptr at[2][BUFFERS], saved[2];
    REQUIRE(!sol_program_memory(program, &n, &memory));
    CHECK(memory.saved > 0 || !strcmp(device, "ref")); /* which computes the first call again */
    for (int c = 0; c < 2; c++) {
        for (int i = 0; i < BUFFERS; i++) at[c][i] = alloc(q, 256);
        saved[c] = alloc(q, memory.saved);
        for (int i = X; i <= DY; i++) good(sol_copy_to_device(q, at[c][i], data[c][i], SIZE));
        const sol_ptr in[] = {at[c][X], 0}, out[] = {at[c][Y], 0, 0};
        CHECK(says(sol_program_enqueue(program, weights, q, &n, in, out), SOL_EUNSUPPORTED,
                   "sol_program_enqueue_forward"));
        if (memory.saved)
            CHECK(says(sol_program_enqueue_forward(program, weights, q, &n, in, out, saved[c] + 64),
                       SOL_EINVAL, "what the forward call saves"));
        good(sol_program_enqueue_forward(program, weights, q, &n, in, out, saved[c]));
    }
    for (int c = 0; c < 2; c++) {
        const sol_ptr in[] = {at[c][X], at[c][DY]}, out[] = {at[c][Y], at[c][DX], at[c][DW]},
                      less[] = {at[c][Y], at[c][DX], 0};
        CHECK(says(sol_program_enqueue_backward(program, weights, q, &n, in, less, saved[c]),
                   SOL_EINVAL, "output dw"));
        good(sol_program_enqueue_backward(program, weights, q, &n, in, out, saved[c]));
        for (int i = Y; i < BUFFERS; i++)
            good(sol_copy_to_host(q, data[c][i], at[c][i], i == DW ? 256 : SIZE));
        for (int i = 0; i < BUFFERS; i++) good(sol_free(q, at[c][i]));
        good(sol_free(q, saved[c]));
    }
    good(sol_queue_sync(q));
    sol_queue_free(q);
}

static void test_backward(void) {
    static float w[64], a[2][BUFFERS][64], b[2][BUFFERS][64];
    for (int i = 0; i < 64; i++) {
        w[i] = (float)(i % 7) - 3;
        for (int c = 0; c < 2; c++)
            a[c][X][i] = (float)((i + c) % 5) / 4, a[c][DY][i] = (float)((i * c) % 3);
    }
    memcpy(b, a, sizeof a);
    start_training(w);
    for (int version = 0; version < 2; version++) {
        for (int c = 0; c < 2; c++) train_on_host(a[c]);
        train_in_queue(b);
        CHECK(!memcmp(a, b, sizeof a) && a[1][DX][3] != 0 && a[1][DW][3] != 0);
        for (int i = 0; i < 64; i++) w[i] = -w[i];
        good(sol_weights_update(&weights, (const void *const[]){w}));
    }
    stop();
}

/* ---- Memory of weights ---- */

/* The device has parameters once, packed: 1 MiB. */
static void test_memory(void) {
    enum { MIB = 1 << 20 };
    static float w[512][512], x[512], y[512];
    struct sol_queue *q = new_queue();
    void *context = queue_device(q)->context;
    for (int i = 0; i < 512; i++) w[i][i] = x[i] = 1;
    const size_t before = far_used(context);
    start(
        "model \"m\" {\n%0 = input f32[1,512] \"x\"\n%1 = param f32[512,512] \"w\"\n%2 = add %1 %1\n"
        "%3 = matmul %0 %2\noutput %3 \"y\"\n}",
        (const void *const[]){w});
    const size_t after = far_used(context) - before;
    printf("weights of 1 MiB, packed: %zu bytes on the device\n", after);
    CHECK(after >= MIB && after < MIB + 4096);
    size_t running = 0;
    for (int version = 1; version <= 3; version++) {
        good(sol_program_run(program, weights, NULL, (const void *const[]){x}, (void *const[]){y}));
        for (int i = 0; i < 512; i++) CHECK(y[i] == (float)(2 * version));
        if (version == 1) running = far_used(context); /* with the memory of a call */
        for (int i = 0; i < 512; i++) w[i][i] = (float)version + 1;
        good(sol_weights_update(&weights, (const void *const[]){w}));
        CHECK(far_used(context) == running);
    }
    stop();
    sol_queue_free(q);
}

static void test_device(const struct device *d) {
    const char *reason = device_unavailable_reason(d), *name = d->name;
    if (getenv("TEST_RUNNER") && d->target) reason = "an emulator starts no other program";
    if (reason) {
        printf("device %s skipped: %s\n", name, reason);
        return;
    }
    device = name;
    test_numbers();
    test_many();
    if (d == &device_far) test_gate();
    test_order();
    test_threads();
    test_functions();
    test_update();
    test_backward();
    if (d == &device_far) test_memory();
    if (d == &device_far) test_failure();
}

int main(void) {
    setenv("SOL_FAR", "latency=0", 0);
    test_device(&device_ref);
    test_device(&device_cpu);
    for (int i = 0; devices[i]; i++)
        if (devices[i]->target) test_device(devices[i]);
    return check_done();
}

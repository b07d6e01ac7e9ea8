/*
 * Queues: random operations on four queues against a sequential model, bad pointers, and failures of the device. On all far devices, on
 * `ve` with the stand-in for VEDA, and on the host.
 */
#include "check.h"
#include "device/device.h"

#include <pthread.h>
#include <sol/queue.h>
#include <sol/sol.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define QUEUES  4
#define BUFFERS 24
#define FLOATS  8192 /* of a buffer, at most: 32 KiB, so that some copies are not collected */

static uint64_t seed = 1;

static int64_t draw(int64_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((seed >> 33) % (uint64_t)n);
}

/* y = 2 x + 1, of any number of elements. */
static struct sol_program *compile_on(const char *device, int number) {
    struct sol_program *p = NULL;
    struct sol_model *m = sol_model_new("line");
    const int64_t n = sol_model_symbol(m, "n");
    sol_tensor x = sol_model_input(m, "x", SOL_F32, 1, &n);
    sol_tensor twice[] = {x, sol_model_scalar(m, 2)}, sum[] = {0, sol_model_scalar(m, 1)};
    sum[0] = sol_model_layer(m, "mul", 2, twice, "", NULL);
    sol_model_output(m, "y", sol_model_layer(m, "add", 2, sum, "", NULL));
    struct sol_options options = {.device = device, .device_number = number, .no_autotune = true};
    if (!CHECK(!sol_compile(m, &options, &p))) puts(sol_error());
    sol_model_free(m);
    return p;
}

static struct sol_program *compile_line(const char *device) { return compile_on(device, 0); }
static struct sol_program *compile_line_on(int number) { return compile_on("far", number); }

/* ---- Random operations ---- */

/* A buffer of the device, and what it must hold. */
struct buffer {
    sol_ptr at;
    int64_t n;
    int queue;      /* that used it last */
    uint64_t event; /* of that use */
    float expected[FLOATS];
};

/* Memory of the host that a queue reads or writes up to an event. */
struct lent {
    struct lent *next;
    uint64_t event;
    bool is_result;
    int64_t n;
    float data[FLOATS], expected[FLOATS];
};

static struct {
    struct sol_queue *queue[QUEUES];
    uint64_t n_operations[QUEUES];
    struct lent *lent[QUEUES];
    struct buffer buffer[BUFFERS];
    struct sol_program *program;
    struct sol_weights *weights;
} world;

static bool good(enum sol_status status) {
    if (CHECK(!status)) return true;
    puts(sol_error());
    return false;
}

static void add(int queue, enum sol_status status) {
    good(status);
    world.n_operations[queue]++;
}

/* The queue waits for the last use of the buffer, not for what another queue has had since then. */
static void take(int queue, struct buffer *b) {
    if (b->queue != queue)
        add(queue, sol_queue_wait(world.queue[queue], world.queue[b->queue], b->event));
    b->queue = queue;
}

/* The queue used the buffer by its last operation. Half of such events are numbers that the queue was not asked for. */
static void leave(int queue, struct buffer *b) {
    b->event = world.n_operations[queue];
    if (draw(2)) return;
    good(sol_queue_event(world.queue[queue], &b->event));
    CHECK(b->event == world.n_operations[queue]);
}

/* For the next operation. */
static struct lent *lend(int queue, int64_t n) {
    struct lent *lent = calloc(1, sizeof *lent);
    lent->n = n;
    lent->next = world.lent[queue];
    lent->event = world.n_operations[queue] + 1;
    return world.lent[queue] = lent;
}

static void check_lent(void *lent) {
    const struct lent *l = lent;
    CHECK(!memcmp(l->data, l->expected, (size_t)l->n * sizeof(float)));
}

static void fill_lent(void *lent) {
    struct lent *l = lent;
    memcpy(l->data, l->expected, (size_t)l->n * sizeof(float));
}

/* The operations up to this event are done. */
static void give_back(int queue, uint64_t event) {
    for (struct lent **at = &world.lent[queue], *l; (l = *at);) {
        if (l->event > event) {
            at = &l->next;
            continue;
        }
        if (l->is_result) check_lent(l);
        *at = l->next;
        free(l);
    }
}

static void sync_queue(int queue) {
    good(sol_queue_sync(world.queue[queue]));
    give_back(queue, world.n_operations[queue]);
}

static void sync_event(int queue) {
    const uint64_t event = (uint64_t)draw((int64_t)world.n_operations[queue] + 1);
    good(sol_queue_sync_event(world.queue[queue], event));
    give_back(queue, event);
}

/* A function of the host may be what writes the memory, in front of the copy. */
static void upload(int queue, struct buffer *b, int64_t first, int64_t n) {
    struct lent *from = lend(queue, n);
    for (int64_t i = 0; i < n; i++) from->expected[i] = b->expected[first + i] = (float)draw(1000);
    if (draw(4)) fill_lent(from);
    else add(queue, sol_queue_call(world.queue[queue], fill_lent, from));
    from->event = world.n_operations[queue] + 1;
    add(queue, sol_copy_to_device(world.queue[queue], b->at + (uint64_t)first * sizeof(float),
                                  from->data, (size_t)n * sizeof(float)));
}

/* A function of the host, behind the copy, may read the memory, too. */
static void download(int queue, const struct buffer *b) {
    const int64_t first = draw(b->n), n = 1 + draw(b->n - first);
    struct lent *to = lend(queue, n);
    to->is_result = true;
    memcpy(to->expected, b->expected + first, (size_t)n * sizeof(float));
    add(queue,
        sol_copy_to_host(world.queue[queue], to->data, b->at + (uint64_t)first * sizeof(float),
                         (size_t)n * sizeof(float)));
    if (draw(4)) return;
    to->event = world.n_operations[queue] + 1;
    add(queue, sol_queue_call(world.queue[queue], check_lent, to));
}

static void renew(int queue, struct buffer *b) {
    if (b->at) add(queue, sol_free(world.queue[queue], b->at));
    b->n = 1 + draw(draw(4) ? 64 : FLOATS);
    add(queue, sol_alloc(world.queue[queue], (size_t)b->n * sizeof(float), &b->at));
    upload(queue, b, 0, b->n);
}

static void launch(int queue, const struct buffer *x, struct buffer *y) {
    const int64_t n = 1 + draw(x->n < y->n ? x->n : y->n);
    add(queue,
        sol_program_enqueue(world.program, world.weights, world.queue[queue], &n, &x->at, &y->at));
    for (int64_t i = 0; i < n; i++) {
        y->expected[i] = 2 * x->expected[i] + 1;
        if (y->expected[i] > 1e6f) y->expected[i] = 2 * x->expected[i] + 1;
    }
}

static void copy(int queue, const struct buffer *x, struct buffer *y) {
    const int64_t n = 1 + draw(x->n < y->n ? x->n : y->n);
    add(queue, sol_copy_on_device(world.queue[queue], y->at, x->at, (size_t)n * sizeof(float)));
    memmove(y->expected, x->expected, (size_t)n * sizeof(float));
}

/* Most operations are followed by the same one of another queue: then work collects on one stream of the device, and the other one has to
 * wait for it. */
static void do_something(void) {
    static int what;
    const int queue = (int)draw(QUEUES);
    struct buffer *x = &world.buffer[draw(BUFFERS)], *y = &world.buffer[draw(BUFFERS)];
    if (!draw(4)) what = (int)draw(100);
    if (what < 2) sync_queue(queue);
    else if (what < 6) sync_event(queue);
    if (what < 6) return;
    take(queue, y);
    if (!y->at || what < 11) renew(queue, y);
    else if (what < 35) {
        const int64_t first = draw(y->n);
        upload(queue, y, first, 1 + draw(y->n - first));
    } else if (what < 55) download(queue, y);
    else if (x != y && x->at) {
        take(queue, x);
        if (what < 75) launch(queue, x, y);
        else copy(queue, x, y);
        leave(queue, x);
    }
    leave(queue, y);
}

static void test_random(const char *device, int n) {
    memset(&world, 0, sizeof world);
    world.program = compile_line(device);
    if (!world.program || !good(sol_weights_new(world.program, NULL, &world.weights))) return;
    for (int q = 0; q < QUEUES; q++) good(sol_queue_new(device, 0, &world.queue[q]));
    for (int i = 0; i < n; i++) do_something();
    for (int i = 0; i < BUFFERS; i++) {
        struct buffer *b = &world.buffer[i];
        if (b->at) good(sol_free(world.queue[b->queue], b->at));
    }
    for (int q = 0; q < QUEUES; q++) sync_queue(q);
    for (int q = 0; q < QUEUES; q++) sol_queue_free(world.queue[q]);
    sol_weights_release(world.weights);
    sol_program_release(world.program);
}

/* ---- Bad input ---- */

static bool says(enum sol_status status, enum sol_status expected, const char *message) {
    const bool ok = status == expected && strstr(sol_error(), message);
    if (!ok) printf("status %d: %s; expected %d: %s\n", status, sol_error(), expected, message);
    return ok;
}

static void test_pointers(const char *device) {
    struct sol_queue *q;
    sol_ptr at = 0;
    char data[64] = {0};
    if (!good(sol_queue_new(device, 0, &q))) return;
    good(sol_alloc(q, 64, &at));
    CHECK(says(sol_copy_to_device(q, at + 1, data, 64), SOL_EINVAL, "64 bytes from byte 1 on"));
    CHECK(says(sol_copy_to_host(q, data, 16, 4), SOL_EINVAL, "not in memory that was allocated"));
    CHECK(says(sol_copy_to_host(q, NULL, at, 4), SOL_EINVAL, "pointer is NULL"));
    CHECK(says(sol_free(q, at + 8), SOL_EINVAL, "no allocation of the device begins"));
    good(sol_copy_to_device(q, at, data, 0));
    good(sol_copy_to_device(q, at + 63, data, 1));
    good(sol_free(q, at));
    CHECK(says(sol_free(q, at), SOL_EINVAL, "no allocation of the device begins"));
    CHECK(says(sol_copy_to_device(q, at, data, 4), SOL_EINVAL, "not in memory that was allocated"));
    good(sol_free(q, 0));
    good(sol_queue_sync(q));
    sol_queue_free(q);
    CHECK(says(sol_queue_new("nothing", 0, &q), SOL_EINVAL, "there is no device \"nothing\""));
    CHECK(says(sol_queue_new(device, 99, &q), strcmp(device, "ref") ? SOL_EDEVICE : SOL_EINVAL,
               "there is no"));
    CHECK(says(sol_queue_new(device, -1, &q), SOL_EINVAL, "there is no"));
}

static void test_enqueue(const char *device) {
    struct sol_program *p = compile_line(device), *other = compile_line("ref");
    struct sol_weights *w = NULL, *w_other = NULL;
    struct sol_queue *q;
    sol_ptr x = 0, y = 0;
    const int64_t n = 16, less = -1;
    if (!good(sol_weights_new(p, NULL, &w)) || !good(sol_queue_new(device, 0, &q))) return;
    good(sol_weights_new(other, NULL, &w_other));
    good(sol_alloc(q, 64, &x));
    good(sol_alloc(q, 60, &y));
    CHECK(says(sol_program_enqueue(p, w, q, &n, &x, &y), SOL_EINVAL, "output y: 64 bytes"));
    CHECK(says(sol_program_enqueue(p, w, q, &less, &x, &y), SOL_EINVAL, "symbol 0 is -1"));
    if (strcmp(device, "x86") && strcmp(device, "ref"))
        CHECK(says(sol_program_enqueue(other, w_other, q, &n, &x, &y), SOL_EINVAL, "not compiled"));
    good(sol_free(q, x));
    good(sol_free(q, y));
    sol_queue_free(q);
    sol_weights_release(w);
    sol_weights_release(w_other);
    sol_program_release(p);
    sol_program_release(other);
}

/* ---- A device with little memory ---- */

/* Two convolutions of 64 channels: the first one's results take 64 KiB per sample. */
static struct sol_program *compile_convs(void) {
    struct sol_program *p = NULL;
    struct sol_model *m = sol_model_new("convs");
    const int64_t n = sol_model_symbol(m, "n");
    sol_tensor x = sol_model_input(m, "x", SOL_F32, 4, (int64_t[]){n, 1, 16, 16});
    sol_tensor a = sol_model_param(m, "a", SOL_F32, 4, (int64_t[]){64, 1, 3, 3}),
               b = sol_model_param(m, "b", SOL_F32, 4, (int64_t[]){1, 64, 3, 3});
    sol_tensor y = sol_model_layer(m, "conv", 2, (sol_tensor[]){x, a}, "pad=[1,1,1,1]", NULL);
    sol_model_output(m, "y",
                     sol_model_layer(m, "conv", 2, (sol_tensor[]){y, b}, "pad=[1,1,1,1]", NULL));
    struct sol_options options = {.device = "far", .device_number = 1, .no_autotune = true};
    if (!CHECK(!sol_compile(m, &options, &p))) puts(sol_error());
    sol_model_free(m);
    return p;
}

/* Both convolutions add up ones: inside of the image 9 * 64 * 9. */
static void test_memory(int64_t n, bool fits) {
    static float ones[64 * 9];
    struct sol_program *p = compile_convs();
    struct sol_weights *w = NULL;
    float *x = malloc((size_t)n * 256 * sizeof *x), *y = calloc((size_t)n * 256, sizeof *y);
    for (int i = 0; i < COUNT(ones); i++) ones[i] = 1;
    for (int64_t i = 0; i < n * 256; i++) x[i] = 1;
    good(sol_weights_new(p, (const void *const[]){ones, ones}, &w));
    const enum sol_status status =
        sol_program_run(p, w, &n, (const void *const[]){x}, (void *const[]){y});
    if (fits) good(status);
    else CHECK(says(status, SOL_ENOMEM, "far 1"));
    for (int64_t i = 0; i < n && fits; i++) CHECK(y[i * 256 + 8 * 16 + 8] == 9 * 64 * 9);
    free(x);
    free(y);
    sol_weights_release(w);
    sol_program_release(p);
}

/* ---- A device that dies ---- */

/* Runs y = 2 x + 1 on a device. */
static enum sol_status run_line(const struct sol_program *p, const struct sol_weights *w) {
    const int64_t n = 100;
    float x[100], y[100] = {0};
    for (int i = 0; i < n; i++) x[i] = (float)i;
    enum sol_status status =
        sol_program_run(p, w, &n, (const void *const[]){x}, (void *const[]){y});
    for (int i = 0; i < n && !status; i++) CHECK(y[i] == 2 * x[i] + 1);
    return status;
}

/* Device 1 dies at its kernel number `at`; device 0 goes on, and device 1 works again once nothing of it is left. */
static void test_death(int at, const struct sol_program *alive, const struct sol_weights *w_alive) {
    char setting[64];
    (void)snprintf(setting, sizeof setting, "latency=0,die=%d", at);
    setenv("SOL_FAR", setting, 1);
    struct sol_program *p = compile_line_on(1);
    struct sol_weights *w = NULL;
    if (!good(sol_weights_new(p, NULL, &w))) return;
    for (int i = 1; i < at; i++) good(run_line(p, w));
    CHECK(says(run_line(p, w), SOL_EDEVICE, "far 1"));
    CHECK(strstr(sol_error(), "mul+add"));
    CHECK(says(run_line(p, w), SOL_EDEVICE, "far 1"));
    good(run_line(alive, w_alive));
    sol_weights_release(w);
    setenv("SOL_FAR", "latency=0", 1);
    sol_program_release(p);
}

static void test_deaths(void) {
    setenv("SOL_FAR", "latency=0", 1);
    struct sol_program *p = compile_line_on(0), *again;
    struct sol_weights *w = NULL, *w_again = NULL;
    if (!good(sol_weights_new(p, NULL, &w))) return;
    for (int i = 0; i < 50; i++) test_death(1 + i % 5, p, w);
    again = compile_line_on(1);
    good(sol_weights_new(again, NULL, &w_again));
    good(run_line(again, w_again));
    sol_weights_release(w);
    sol_weights_release(w_again);
    sol_program_release(p);
    sol_program_release(again);
}

/* ---- Threads and processes ---- */

static void *run_often(void *number) {
    struct sol_program *p = compile_line_on(*(int *)number);
    struct sol_weights *w = NULL;
    good(sol_weights_new(p, NULL, &w));
    for (int i = 0; i < 200; i++) good(run_line(p, w));
    sol_weights_release(w);
    sol_program_release(p);
    return NULL;
}

/* Two devices from two threads, and one device from two. */
static void test_threads(void) {
    static int number[] = {0, 1, 1};
    pthread_t thread[COUNT(number)];
    for (int i = 0; i < COUNT(number); i++)
        REQUIRE(!pthread_create(&thread[i], NULL, run_often, &number[i]));
    for (int i = 0; i < COUNT(number); i++) pthread_join(thread[i], NULL);
}

/* The exit status of a function in a child process. */
static int in_child(int (*function)(void *user), void *user) {
    int status = -1;
    fflush(stdout);
    const pid_t child = fork();
    if (!child) _exit(function(user));
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct line {
    struct sol_program *program;
    struct sol_weights *weights;
};

/* The device belongs to the parent. */
static int run_in_child(void *user) {
    const struct line *line = user;
    return says(run_line(line->program, line->weights), SOL_EDEVICE, "parent process") ? 0 : 1;
}

static void test_fork(void) {
    struct line line = {.program = compile_line_on(0)};
    good(sol_weights_new(line.program, NULL, &line.weights));
    good(run_line(line.program, line.weights));
    CHECK(in_child(run_in_child, &line) == 0);
    good(run_line(line.program, line.weights));
    sol_weights_release(line.weights);
    sol_program_release(line.program);
}

/* Ends the process by exit() while the device has work for 0.2 s. */
static int exit_early(void *user) {
    static float x[1000];
    const int64_t n = 1000;
    struct sol_program *p = compile_line_on(0);
    struct sol_weights *w;
    struct sol_queue *q;
    sol_ptr at;
    (void)user;
    if (sol_weights_new(p, NULL, &w) || sol_queue_new("far", 0, &q)) return 1;
    if (sol_alloc(q, sizeof x, &at) || sol_copy_to_device(q, at, x, sizeof x)) return 1;
    for (int i = 0; i < 1000; i++)
        if (sol_program_enqueue(p, w, q, &n, &at, &at)) return 1;
    exit(0);
}

/* The stand-in for VEDA, which the process opens once. */
static void find_veda(void) {
    char path[1024];
    check_path("libveda.so", path, sizeof path);
    setenv("SOL_VEDA", path, 0);
    setenv("SOL_NCC", "cc", 0);
    CHECK(!device_unavailable_reason(&device_ve));
}

static void test_other_far_devices(int n) {
    for (int i = 0; devices[i]; i++) {
        if (!devices[i]->target || devices[i] == &device_far) continue;
        const char *name = devices[i]->name, *reason = device_unavailable_reason(devices[i]);
        if (reason) {
            printf("device %s skipped: %s\n", name, reason);
            continue;
        }
        test_random(name, n);
        test_pointers(name);
        test_enqueue(name);
    }
}

int main(int argc, char **argv) {
    const int n = argc > 1 ? atoi(argv[1]) : 20000;
    setenv("SOL_FAR", "latency=0", 0);
    test_random("ref", 2000);
    test_pointers("ref");
    test_enqueue("ref");
    const char *reason = device_unavailable_reason(&device_far);
    if (getenv("TEST_RUNNER")) reason = "an emulator starts no other program";
    if (reason) {
        printf("device far skipped: %s\n", reason);
        return check_done();
    }
    test_random("far", n);
    find_veda();
    test_other_far_devices(n / 10);
    setenv("SOL_FAR", "latency=100", 1); /* the streams are apart */
    test_random("far", n / 20);
    setenv("SOL_FAR", "latency=0,memory=3", 1);
    test_memory(8, true);     /* 0.5 MiB */
    test_memory(300, true);   /* 19 MiB, if the batch is not divided */
    test_memory(3000, false); /* inputs and outputs alone do not fit */
    test_deaths();
    test_threads();
    if (!check_cannot_fork()) {
        test_fork();
        setenv("SOL_FAR", "latency=200", 1);
        CHECK(in_child(exit_early, NULL) == 0);
    }
    unsetenv("SOL_FAR");
    test_pointers("far");
    test_enqueue("far");
    return check_done();
}

/*
 * Queues on a far device: small copies alone and packed, also on `ve` if there is one, the host's time to enqueue a network, and copies
 * beside kernels.
 *
 *   bench_queue [MODEL]     MODEL: a model's text, as `sol dump` prints it
 *
 * Link it with all objects of the library, as bench/conv.c. SOL_FAR=trace=FILE also writes what the device did, for chrome://tracing.
 */
#include "base/base.h"
#include "device/device.h"
#include "device/far/far.h"
#include "device/ve/ve.h"

#include <math.h>
#include <sol/queue.h>
#include <sol/sol.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COPIES 1000
#define SMALL  1024

static void must(enum sol_status status) {
    if (!status) return;
    puts(sol_error());
    exit(1);
}

/* ---- Small copies ---- */

static double time_packed(sol_ptr to, const char *from, struct sol_queue *q) {
    const double start = os_now();
    for (int i = 0; i < COPIES; i++)
        must(sol_copy_to_device(q, to + (uint64_t)i * SMALL, from + i * SMALL, SMALL));
    must(sol_queue_sync(q));
    return os_now() - start;
}

/* The target itself packs nothing. */
static double time_alone(const struct target *target, const char *from) {
    const int stream = target->n_streams - 1;
    void *context;
    sol_ptr to;
    uint64_t event = 0;
    must(target->open(1, &context));
    must(target->alloc(context, stream, COPIES * SMALL, &to));
    const double start = os_now();
    for (int i = 0; i < COPIES; i++)
        must(target->copy(context, stream,
                          &(struct transfer){.kind = TRANSFER_TO_DEVICE,
                                             .to = to + (uint64_t)i * SMALL,
                                             .host = (void *)(uintptr_t)(from + i * SMALL),
                                             .size = SMALL},
                          &event));
    must(target->wait(context, stream, event));
    const double seconds = os_now() - start;
    target->close(context);
    return seconds;
}

static void compare_copies(const struct target *target) {
    struct sol_queue *q;
    char *from = calloc(COPIES, SMALL);
    double packed = 1e9, alone = 1e9;
    sol_ptr to;
    must(sol_queue_new(target->name, 0, &q));
    must(sol_alloc(q, COPIES * SMALL, &to));
    for (int i = 0; i < 5; i++) {
        packed = fmin(packed, time_packed(to, from, q));
        alone = fmin(alone, time_alone(target, from));
    }
    must(sol_free(q, to));
    sol_queue_free(q);
    printf("%s: %d copies of %d bytes: alone %.2f ms, packed %.2f ms, 1/%.1f\n", target->name,
           COPIES, SMALL, alone * 1e3, packed * 1e3, alone / packed);
    free(from);
}

/* ---- Memory ---- */

/* The device pays a latency for each command, but the host does not wait for it. */
static void time_alloc(struct sol_queue *q) {
    static sol_ptr at[COPIES];
    const double start = os_now();
    for (int i = 0; i < COPIES; i++) must(sol_alloc(q, SMALL, &at[i]));
    for (int i = 0; i < COPIES; i++) must(sol_free(q, at[i]));
    printf("alloc and free: %.2f us\n", (os_now() - start) / (2 * COPIES) * 1e6);
    must(sol_queue_sync(q));
}

/* ---- A network ---- */

static char *read_text(const char *path) {
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 16 << 20);
    if (!file || !text || !fread(text, 1, (16 << 20) - 1, file)) exit(2);
    fclose(file);
    return text;
}

static size_t port_size(const struct sol_port *port, int64_t batch) {
    size_t n = 4;
    for (int d = 0; d < port->rank; d++) n *= (size_t)(port->dim[d] < 0 ? batch : port->dim[d]);
    return n;
}

static struct sol_weights *make_weights(const struct sol_program *p) {
    struct sol_weights *w;
    void **params = calloc((size_t)sol_program_n_params(p) + 1, sizeof *params);
    for (int i = 0; i < sol_program_n_params(p); i++)
        params[i] = calloc(1, port_size(sol_program_param(p, i), 1));
    must(sol_weights_new(p, (const void *const *)params, &w));
    return w;
}

static void time_enqueue(const char *path, struct sol_queue *q) {
    const int64_t batch = 1;
    struct sol_model *m;
    struct sol_program *p;
    sol_ptr x, y;
    double best = 1e9;
    must(sol_model_parse(read_text(path), &m));
    must(sol_compile(m, &(struct sol_options){.device = "far"}, &p));
    struct sol_weights *w = make_weights(p);
    must(sol_alloc(q, port_size(sol_program_input(p, 0), 1), &x));
    must(sol_alloc(q, port_size(sol_program_output(p, 0), 1), &y));
    for (int i = 0; i < 10; i++) {
        const double start = os_now();
        must(sol_program_enqueue(p, w, q, &batch, &x, &y));
        best = fmin(best, os_now() - start);
        must(sol_queue_sync(q));
    }
    printf("enqueue of %s: %.3f ms of the host\n", path, best * 1e3);
    must(sol_free(q, x));
    must(sol_free(q, y));
    sol_weights_release(w);
    sol_program_release(p);
    sol_model_free(m);
}

/* ---- Overlap ---- */

/* Each call reads an image of 16 MiB, which is copied while the call before is computed. */
static void overlap(void) {
    enum { SIDE = 2048, CALLS = 8 };
    const int64_t batch = 1;
    struct sol_model *m = sol_model_new("pool");
    struct sol_program *p;
    struct sol_queue *queue[2];
    sol_ptr x[2], y[2];
    float *host = calloc(SIDE * SIDE, sizeof *host);
    sol_tensor in = sol_model_input(m, "x", SOL_F32, 4, (int64_t[]){1, 1, SIDE, SIDE});
    sol_model_output(m, "y",
                     sol_model_layer(m, "max_pool", 1, &in, "kernel=[3,3] stride=[2,2]", NULL));
    must(sol_compile(m, &(struct sol_options){.device = "far"}, &p));
    struct sol_weights *w = make_weights(p);
    const size_t in_size = SIDE * SIDE * 4, out_size = port_size(sol_program_output(p, 0), 1);
    for (int i = 0; i < 2; i++) {
        must(sol_queue_new("far", 0, &queue[i]));
        must(sol_alloc(queue[i], in_size, &x[i]));
        must(sol_alloc(queue[i], out_size, &y[i]));
    }
    double one = os_now();
    for (int i = 0; i < CALLS; i++) {
        must(sol_copy_to_device(queue[0], x[0], host, in_size));
        must(sol_program_enqueue(p, w, queue[0], &batch, &x[0], &y[0]));
        must(sol_queue_sync(queue[0]));
    }
    one = os_now() - one;
    double two = os_now();
    for (int i = 0; i < CALLS; i++) {
        must(sol_copy_to_device(queue[i % 2], x[i % 2], host, in_size));
        must(sol_program_enqueue(p, w, queue[i % 2], &batch, &x[i % 2], &y[i % 2]));
    }
    must(sol_queue_sync(queue[0]));
    must(sol_queue_sync(queue[1]));
    two = os_now() - two;
    printf("%d copies and calls: one after the other %.1f ms, on two queues %.1f ms\n", CALLS,
           one * 1e3, two * 1e3);
    for (int i = 0; i < 2; i++) {
        must(sol_free(queue[i], x[i]));
        must(sol_free(queue[i], y[i]));
        sol_queue_free(queue[i]);
    }
    sol_weights_release(w);
    sol_program_release(p);
    sol_model_free(m);
    free(host);
}

int main(int argc, char **argv) {
    struct sol_queue *q;
    compare_copies(&far_target);
    if (!device_unavailable_reason(&device_ve)) compare_copies(&ve_target);
    must(sol_queue_new("far", 0, &q));
    time_alloc(q);
    if (argc > 1) time_enqueue(argv[1], q);
    sol_queue_free(q);
    overlap();
    return 0;
}

/*
 * Times SOL's own kernels and those of vendors' libraries in turns, on the thread pool, as autotune does.
 *
 *   libraries [rounds] [isa]      least time of each implementation and its plan's estimate, in us; SOL_NUM_THREADS=n
 *
 * It is linked with all objects of libsol, as the tests are. Large weights are evicted from the caches between runs, as the
 * other layers of a network would do.
 */
#include "dnn/dnn.h"
#include "run/pool.h"
#include "run/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_IMPLS 8
#define MAX_ROUNDS 200
#define EVICT (48 << 20) /* bytes to read to evict other data from the caches */

struct shape {
    int c, k, size, kernel, stride, groups, batch;
    bool plain, residual;
};

/* Convolutions of ResNet-50 and MobileNet v2, then linear layers (size 0) of ResNet-50, VGG-16 and others. */
static const struct shape shapes[] = {
    {3, 64, 224, 7, 2, 1, 1, true, false},     {64, 64, 56, 3, 1, 1, 1, false, false},
    {64, 256, 56, 1, 1, 1, 1, false, true},    {256, 128, 56, 1, 1, 1, 1, false, false},
    {128, 128, 28, 3, 1, 1, 1, false, false},  {128, 128, 56, 3, 2, 1, 1, false, false},
    {256, 256, 14, 3, 1, 1, 1, false, false},  {1024, 256, 14, 1, 1, 1, 1, false, false},
    {512, 512, 7, 3, 1, 1, 1, false, false},   {512, 1024, 28, 1, 2, 1, 1, false, false},
    {3, 32, 224, 3, 2, 1, 1, true, false},     {32, 32, 112, 3, 1, 32, 1, false, false},
    {96, 96, 112, 3, 2, 96, 1, false, false},  {192, 192, 28, 3, 1, 192, 1, false, false},
    {960, 960, 7, 3, 1, 960, 1, false, false}, {16, 96, 112, 1, 1, 1, 1, false, false},
    {64, 384, 14, 1, 1, 1, 1, false, false},   {960, 320, 7, 1, 1, 1, 1, false, false},
    {64, 64, 56, 3, 1, 1, 8, false, false},    {512, 512, 7, 3, 1, 1, 8, false, false},
    {2048, 1000, 0, 0, 0, 1, 1, true, false},  {4096, 4096, 0, 0, 0, 1, 1, true, false},
    {2048, 1000, 0, 0, 0, 1, 32, true, false}, {4096, 4096, 0, 0, 0, 1, 8, true, false},
    {768, 3072, 0, 0, 0, 1, 128, true, false}, {784, 256, 0, 0, 0, 1, 64, true, false},
};

static float *new_floats(int64_t n) {
    float *at = mem_alloc((size_t)(n + 64) * sizeof(float), 4096);
    if (!at) exit(1);
    for (int64_t i = 0; i < n; i++) at[i] = (float)(i % 13 - 6) * 0.01f;
    return at;
}

static struct dnn_problem make_problem(const struct shape *s, const struct dnn_isa *isa) {
    struct dnn_problem p = {.kind = s->size ? DNN_CONV : DNN_LINEAR, .batch_hint = s->batch};
    p.lanes = isa->lanes, p.threads = pool_threads();
    p.c = p.c_model = s->c, p.k = p.k_model = s->k, p.groups = s->groups;
    p.h = p.w = p.oh = p.ow = p.kh = p.kw = p.sh = p.sw = p.dh = p.dw = 1;
    p.x_plain = s->plain, p.y_plain = !s->size, p.residual_plain = !s->size;
    p.bias = true, p.residual = s->residual, p.act = DNN_ACT_RELU;
    if (!s->size) return p;
    p.h = p.w = s->size, p.kh = p.kw = s->kernel, p.sh = p.sw = s->stride;
    p.pt = p.pl = s->kernel / 2;
    p.oh = p.ow = (s->size + 2 * p.pt - s->kernel) / s->stride + 1;
    return p;
}

struct trial {
    struct dnn_plan plan;
    struct dnn_call call;
    char *scratch;
    double seconds[MAX_ROUNDS];
};

static void run_task(void *user, int thread, int64_t begin, int64_t end) {
    struct trial *t = user;
    t->plan.impl->run(&t->plan, &t->call,
                      t->scratch + (size_t)thread * (t->plan.scratch_size + 4096) / 64 * 64, begin,
                      end);
}

static void prepare(struct trial *t, const float *weight) {
    const struct dnn_problem *p = &t->plan.problem;
    int64_t n = p->batch_hint, x = (int64_t)p->c * p->h * p->w, y = (int64_t)p->k * p->oh * p->ow;
    t->plan.impl->plan(&t->plan);
    float *packed = new_floats((int64_t)t->plan.packed_size / 4);
    if (t->plan.packed_size)
        for (int64_t i = t->plan.n_pack_tasks; i-- > 0;)
            t->plan.impl->pack(&t->plan, weight, packed, i);
    t->scratch = (char *)new_floats((int64_t)(t->plan.scratch_size / 4 + 1024) * pool_threads());
    t->call = (struct dnn_call){.x = new_floats(n * x), .y = new_floats(n * y)};
    t->call.packed = packed, t->call.weight = weight, t->call.bias = new_floats(p->k);
    t->call.residual = p->residual ? new_floats(n * y) : NULL;
    t->call.batch = n, t->call.x_stride = x, t->call.y_stride = t->call.residual_stride = y;
}

static double time_once(struct trial *t) {
    int64_t n = t->plan.impl->n_tasks(&t->plan, t->call.batch);
    double start = os_now();
    pool_run(n, max_i64(1, n / (4 * pool_threads())), run_task, t);
    return os_now() - start;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void evict(const float *memory) {
    volatile float sum = 0;
    for (size_t i = 0; i < EVICT / 4; i += 16) sum += memory[i];
}

static void time_shape(const struct shape *s, const struct dnn_isa *isa, int rounds,
                       const float *memory) {
    struct dnn_problem p = make_problem(s, isa);
    struct trial *t = calloc(MAX_IMPLS, sizeof *t);
    float *weight = new_floats((int64_t)p.k * (p.c / p.groups) * p.kh * p.kw);
    int n = 0;
    for (int i = 0; t && dnn_impls[i] && n < MAX_IMPLS; i++) {
        if (dnn_impls[i]->refuse(&p)) continue;
        t[n].plan = (struct dnn_plan){.impl = dnn_impls[i], .kernels = isa->kernels, .problem = p};
        prepare(&t[n++], weight);
    }
    for (int round = -2; round < rounds; round++)
        for (int i = 0; i < n; i++) {
            if ((int64_t)p.k * p.c / p.groups * p.kh * p.kw > 250000) evict(memory);
            t[i].seconds[round < 0 ? 0 : round] = time_once(&t[i]);
        }
    printf("%4d->%4d @%-3d %dx%d/%d g%-3d n%-3d", s->c, s->k, s->size, s->kernel, s->kernel,
           s->stride, s->groups, s->batch);
    for (int i = 0; i < n; i++) {
        qsort(t[i].seconds, (size_t)rounds, sizeof(double), compare);
        printf("  %s %.1f (%.1f)", t[i].plan.impl->name, t[i].seconds[0] * 1e6,
               t[i].plan.cost * 1e6);
    }
    printf("%s\n", exec_take_failure() ? " FAILED" : "");
    fflush(stdout);
    free(t); /* the tensors are not freed */
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 15;
    const struct dnn_isa *isa = dnn_isas;
    while (argc > 2 && isa->name && strcmp(isa->name, argv[2])) isa++;
    if (!isa->name || rounds < 1 || rounds > MAX_ROUNDS) return 1;
    const float *memory = new_floats(EVICT / 4);
    bool held = pool_begin();
    printf("%s, %d threads, least of %d in us (estimates)\n", isa->name, pool_threads(), rounds);
    for (int i = 0; i < COUNT(shapes); i++) time_shape(&shapes[i], isa, rounds, memory);
    if (held) pool_end();
    return 0;
}

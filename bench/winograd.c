/*
 * Checks and times Winograd and products (linear layers) alone, without the rest of SOL.
 *
 *   winograd check [n]              compares n random shapes per instruction set with naive loops in double
 *   winograd conv [isa [threads]]   rounding errors; then best of many runs, as percent of the measured peak, with the flops
 *                                   of a direct convolution. Plans are for `threads`, but all tasks run on one thread
 *   winograd linear [isa]           the same for linear layers
 *
 * Buffers have their exact sizes, so that -fsanitize=address finds each access outside a tensor.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dnn/dnn.h"
#include "dnn/list.h"

extern const struct dnn_impl dnn_winograd4, dnn_winograd2, dnn_product;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static uint64_t random_state = 88172645463325252u;

static uint32_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

static int pick(int low, int high) {
    return low + (int)(random_bits() % (uint32_t)(high - low + 1));
}
static float random_value(void) { return (float)random_bits() / 2147483648.0f - 1; }

static float *new_values(int64_t n) {
    void *memory = NULL;
    if (posix_memalign(&memory, 64, (size_t)max_i64(n, 1) * sizeof(float))) abort();
    float *values = memory;
    for (int64_t i = 0; i < n; i++) values[i] = random_value();
    return values;
}

static bool cpu_has(const struct dnn_isa *isa) {
#ifdef __x86_64__
    if (isa->lanes == 16)
        return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    if (isa->lanes == 8) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return isa->lanes == 4;
}

/* ---- One case: tensors of a problem ---- */

struct bench {
    const struct dnn_impl *impl;
    struct dnn_plan plan;
    struct dnn_call call;
    float *x, *y, *weight, *bias, *scale, *shift, *residual, *packed;
    char *scratch;
    int64_t split; /* tasks per call of run; 0: all at once */
};

static int64_t plane(const struct dnn_problem *p) {
    return p->kind == DNN_LINEAR ? 1 : (int64_t)p->oh * p->ow;
}

static void pack_weights(struct bench *b) {
    for (int64_t i = 0; i < b->plan.n_pack_tasks; i++)
        b->impl->pack(&b->plan, b->weight, b->packed, i);
}

static void make_bench(struct bench *b, const struct dnn_isa *isa, const struct dnn_impl *impl,
                       const struct dnn_problem *p, int64_t batch, int64_t gap) {
    *b = (struct bench){.impl = impl};
    b->plan.problem = *p;
    b->plan.impl = impl;
    b->plan.kernels = isa->kernels;
    const char *reason = impl->refuse(p);
    if (reason) {
        printf("%s refused: %s\n", impl->name, reason);
        exit(1);
    }
    impl->plan(&b->plan);
    const int64_t x_image = (int64_t)p->c * (p->kind == DNN_LINEAR ? 1 : p->h * p->w),
                  y_image = p->k * plane(p);
    const int64_t images = max_i64(batch, 1), taps = p->kind == DNN_LINEAR ? 1 : 9;
    b->x = new_values(x_image * images + gap * (images - 1));
    b->y = new_values(y_image * images + gap * (images - 1));
    b->residual = new_values(y_image * images + 2 * gap * (images - 1));
    b->weight = new_values((int64_t)p->k_model * p->c_model * taps);
    b->bias = new_values(p->k);
    b->scale = new_values(p->c);
    b->shift = new_values(p->c);
    b->packed = new_values((int64_t)b->plan.packed_size / 4);
    b->scratch = aligned_alloc(64, (size_t)round_up((int64_t)b->plan.scratch_size, 64) + 64);
    pack_weights(b);
    b->call = (struct dnn_call){.x = b->x,
                                .packed = b->packed,
                                .weight = b->weight,
                                .y = b->y,
                                .batch = batch,
                                .x_stride = x_image + gap,
                                .y_stride = y_image + gap,
                                .residual_stride = y_image + 2 * gap};
    if (p->bias) b->call.bias = b->bias;
    if (p->residual) b->call.residual = b->residual;
    if (p->prologue) b->call.scale = b->scale, b->call.shift = b->shift;
}

static void free_bench(struct bench *b) {
    float *all[] = {b->x, b->y, b->weight, b->bias, b->scale, b->shift, b->residual, b->packed};
    for (int i = 0; i < COUNT(all); i++) free(all[i]);
    free(b->scratch);
}

static void run_bench(struct bench *b) {
    const int64_t n = b->impl->n_tasks(&b->plan, b->call.batch),
                  step = b->split ? b->split : max_i64(n, 1);
    for (int64_t at = 0; at < n; at += step)
        b->impl->run(&b->plan, &b->call, b->scratch, at, min_i64(at + step, n));
}

/* ---- Check ---- */

static double activate(const struct dnn_problem *p, double value) {
    if (p->act == DNN_ACT_RELU) return value < 0 ? 0 : value;
    if (p->act == DNN_ACT_CLAMP)
        return value < p->act_min ? p->act_min : value > p->act_max ? p->act_max : value;
    return value;
}

/* x after the prologue at (i, j) of stored channel c; zero outside the image. */
static double input_at(const struct bench *b, int64_t n, int64_t c, int64_t i, int64_t j) {
    const struct dnn_problem *p = &b->plan.problem;
    if (p->kind == DNN_LINEAR) return b->x[n * b->call.x_stride + c];
    if (i < 0 || j < 0 || i >= p->h || j >= p->w) return 0;
    int64_t lanes = p->lanes, at = ((c / lanes * p->h + i) * p->w + j) * lanes + c % lanes;
    double value = b->x[n * b->call.x_stride + at];
    if (!p->prologue) return value;
    value = value * b->scale[c] + b->shift[c];
    return value < p->prologue_min ? p->prologue_min : value;
}

static double output_at(const struct bench *b, int64_t n, int64_t k, int64_t i, int64_t j,
                        int64_t at) {
    const struct dnn_problem *p = &b->plan.problem;
    const int taps = p->kind == DNN_LINEAR ? 1 : 3;
    double sum = 0;
    for (int64_t c = 0; c < p->c; c++) {
        int64_t cm = p->c_map ? p->c_map[c] : c, km = p->k_map ? p->k_map[k] : k;
        if (cm < 0 || km < 0) continue;
        for (int r = 0; r < taps; r++)
            for (int s = 0; s < taps; s++)
                sum += input_at(b, n, c, i + r - p->pt, j + s - p->pl) *
                       b->weight[((km * p->c_model + cm) * taps + r) * taps + s];
    }
    if (p->bias) sum += b->bias[k];
    if (p->residual) sum += b->residual[n * b->call.residual_stride + at];
    return activate(p, sum);
}

/* Largest error of y, divided by the expected magnitude of a sum of so many random terms. */
static double compare(const struct bench *b) {
    const struct dnn_problem *p = &b->plan.problem;
    const bool linear = p->kind == DNN_LINEAR;
    const int64_t oh = linear ? 1 : p->oh, ow = linear ? 1 : p->ow, lanes = linear ? 1 : p->lanes;
    double worst = 0;
    for (int64_t n = 0; n < b->call.batch; n++)
        for (int64_t k = 0; k < p->k; k++)
            for (int64_t i = 0; i < oh; i++)
                for (int64_t j = 0; j < ow; j++) {
                    int64_t at = ((k / lanes * oh + i) * ow + j) * lanes + k % lanes;
                    double want = output_at(b, n, k, i, j, at),
                           got = b->y[n * b->call.y_stride + at];
                    double error = fabs(got - want) / sqrt((linear ? 1.0 : 9.0) * (double)p->c);
                    if (!(error <= worst)) worst = isnan(error) ? INFINITY : error;
                }
    return worst;
}

/* The map stored -> model channel with padding at the end, as for a number of channels that does not fill its blocks. */
static int *new_map(int stored, int model) {
    int *map = malloc(sizeof(int) * (size_t)stored);
    for (int i = 0; i < stored; i++) map[i] = i < model ? i : -1;
    return map;
}

static struct dnn_problem random_problem(const struct dnn_isa *isa, enum dnn_kind kind) {
    struct dnn_problem p = {.kind = kind,
                            .batch_hint = pick(0, 3),
                            .lanes = isa->lanes,
                            .threads = pick(1, 16),
                            .groups = 1,
                            .sh = 1,
                            .sw = 1,
                            .dh = 1,
                            .dw = 1,
                            .kh = 3,
                            .kw = 3};
    p.bias = pick(0, 1), p.residual = pick(0, 1);
    p.act = (enum dnn_act)pick(0, 2);
    p.act_min = -0.5f, p.act_max = 1.5f;
    if (kind == DNN_LINEAR) {
        p.x_plain = p.y_plain = p.residual_plain = true;
        p.kh = p.kw = p.h = p.w = p.oh = p.ow = 1;
        p.c = p.c_model = pick(1, 3) == 1 ? pick(1, 700) : pick(1, 70);
        p.k = p.k_model = pick(1, 50);
        return p;
    }
    p.c_model = pick(1, 80), p.k_model = pick(1, 80);
    p.c = (int)round_up(p.c_model, p.lanes) + (pick(0, 3) ? 0 : p.lanes);
    p.k = (int)round_up(p.k_model, p.lanes);
    p.c_map = new_map(p.c, p.c_model), p.k_map = new_map(p.k, p.k_model);
    p.h = pick(1, 13), p.w = pick(1, 13);
    if (!pick(0, 9)) p.w = 56, p.h = 3;
    p.pt = pick(0, 2), p.pl = pick(0, 2);
    p.oh = pick(1, p.h + 2), p.ow = pick(1, p.w + 2);
    p.prologue = pick(0, 1);
    p.prologue_min = pick(0, 1) ? 0 : -INFINITY;
    return p;
}

/* Sets padding channels to zero, as kernels may assume. */
static void clear_padding(struct bench *b) {
    const struct dnn_problem *p = &b->plan.problem;
    for (int64_t c = 0; p->c_map && c < p->c; c++) {
        if (p->c_map[c] >= 0) continue;
        b->scale[c] = b->shift[c] = 0;
        for (int64_t n = 0; n < b->call.batch; n++)
            for (int64_t i = 0; i < (int64_t)p->h * p->w; i++)
                b->x[n * b->call.x_stride + (c / p->lanes * p->h * p->w + i) * p->lanes +
                     c % p->lanes] = 0;
    }
    for (int64_t k = 0; p->k_map && k < p->k; k++)
        if (p->k_map[k] < 0) b->bias[k] = 0;
}

/* True if running the tasks in ranges of 1 to 3 gives the same bits as all at once. */
static bool same_when_split(struct bench *b) {
    const int64_t size = b->call.batch ? b->call.y_stride * (b->call.batch - 1) +
                                             b->plan.problem.k * plane(&b->plan.problem)
                                       : 0;
    float *first = malloc((size_t)size * 4 + 4);
    memcpy(first, b->y, (size_t)size * 4);
    b->split = pick(1, 3);
    run_bench(b);
    bool same = !memcmp(first, b->y, (size_t)size * 4);
    free(first);
    return same;
}

static int64_t epilogue_pixels;

static void count_pixels(void *user, int64_t n, int64_t k_block, int64_t pixel, int n_pixels) {
    (void)user, (void)n, (void)k_block, (void)pixel;
    epilogue_pixels += n_pixels;
}

static int check_case(const struct dnn_isa *isa, const struct dnn_impl *impl, double limit) {
    struct dnn_problem p = random_problem(isa, impl == &dnn_product ? DNN_LINEAR : DNN_CONV);
    const int64_t batch = impl == &dnn_product ? pick(0, 40) : pick(0, 3);
    struct bench b;
    make_bench(&b, isa, impl, &p, batch, pick(0, 1) * 3);
    if (impl != &dnn_product) b.call.epilogue = count_pixels, b.call.epilogue_user = &b;
    epilogue_pixels = 0;
    clear_padding(&b);
    run_bench(&b);
    double error = compare(&b);
    bool wrong = !(error < limit);
    wrong |= b.call.epilogue && epilogue_pixels != batch * p.k / p.lanes * plane(&p);
    wrong |= !same_when_split(&b);
    if (wrong)
        printf("%s %s: c %d k %d h %d w %d oh %d ow %d pt %d pl %d batch %d act %d residual %d "
               "prologue %d: error %g\n",
               isa->name, impl->name, p.c, p.k, p.h, p.w, p.oh, p.ow, p.pt, p.pl, (int)batch,
               (int)p.act, p.residual, p.prologue, error);
    free_bench(&b);
    free((void *)p.c_map), free((void *)p.k_map);
    return wrong;
}

/* A NaN in x must give a NaN in y, also with relu and clamp. Returns 1 if it does not. */
static int check_nan(const struct dnn_isa *isa, const struct dnn_impl *impl) {
    int wrong = 0;
    for (int act = DNN_ACT_NONE; act <= DNN_ACT_CLAMP; act++) {
        struct dnn_problem p = random_problem(isa, impl == &dnn_product ? DNN_LINEAR : DNN_CONV);
        p.act = (enum dnn_act)act;
        p.prologue = false;
        p.oh = p.h, p.ow = p.w, p.pt = p.pl = p.kind == DNN_LINEAR ? 0 : 1;
        struct bench b;
        make_bench(&b, isa, impl, &p, 1, 0);
        b.x[0] = NAN;
        run_bench(&b);
        if (!isnan(b.y[0]))
            wrong = 1, printf("%s %s: NaN lost in act %d\n", isa->name, impl->name, act);
        free_bench(&b);
        free((void *)p.c_map), free((void *)p.k_map);
    }
    return wrong;
}

static int check(int n_cases) {
    static const struct dnn_impl *const impls[] = {&dnn_winograd4, &dnn_winograd2, &dnn_product};
    int n_wrong = 0;
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++)
        for (int i = 0; i < COUNT(impls) && cpu_has(isa); i++) {
            int wrong = check_nan(isa, impls[i]);
            for (int n = 0; n < n_cases; n++) wrong += check_case(isa, impls[i], 4e-6);
            printf("%-8s %-10s %d cases, %d wrong\n", isa->name, impls[i]->name, n_cases, wrong);
            n_wrong += wrong;
        }
    return n_wrong != 0;
}

/*
 * Prints the rms error against double, divided by that of a plain float sum over channels and kernel positions.
 */
static void print_accuracy(const struct dnn_isa *isa, const struct dnn_impl *impl) {
    struct dnn_problem p = {.kind = DNN_CONV,
                            .batch_hint = 1,
                            .lanes = isa->lanes,
                            .threads = 1,
                            .groups = 1,
                            .c = 128,
                            .k = 64,
                            .c_model = 128,
                            .k_model = 64,
                            .h = 12,
                            .w = 12,
                            .oh = 12,
                            .ow = 12,
                            .kh = 3,
                            .kw = 3,
                            .sh = 1,
                            .sw = 1,
                            .dh = 1,
                            .dw = 1,
                            .pt = 1,
                            .pl = 1};
    struct bench b;
    make_bench(&b, isa, impl, &p, 1, 0);
    run_bench(&b);
    double direct = 0, winograd = 0;
    for (int64_t k = 0; k < p.k; k++)
        for (int64_t i = 0; i < p.oh; i++)
            for (int64_t j = 0; j < p.ow; j++) {
                int64_t at = ((k / p.lanes * p.oh + i) * p.ow + j) * p.lanes + k % p.lanes;
                double want = output_at(&b, 0, k, i, j, at);
                float sum = 0;
                for (int64_t c = 0; c < p.c; c++)
                    for (int t = 0; t < 9; t++)
                        sum = fmaf((float)input_at(&b, 0, c, i + t / 3 - 1, j + t % 3 - 1),
                                   b.weight[(k * p.c + c) * 9 + t], sum);
                direct += (sum - want) * (sum - want);
                winograd += (b.y[at] - want) * (b.y[at] - want);
            }
    printf("%s %s: rms error %.2f x direct's\n", isa->name, impl->name, sqrt(winograd / direct));
    free_bench(&b);
}

/* ---- Time ---- */

#ifdef __x86_64__
typedef float wide __attribute__((vector_size(64)));

/* Flops per second of one core now: ten independent sums hide the latency of two multipliers. */
__attribute__((target("avx512f"))) static double measure_avx512(void) {
    enum { CHAINS = 10, WIDTH = sizeof(wide) / sizeof(float), TURNS = 20000 };
    double best = 1e9;
    for (int repeat = 0; repeat < 50; repeat++) {
        wide a = {1}, b = a + 1, c = b + 1, d = c + 1, e = d + 1, f = e + 1, g = f + 1, h = g + 1,
             i = h + 1;
        wide j = i + 1, m = a * 0 + 0.999f;
        double begin = now();
        for (int n = 0; n < TURNS; n++) {
            a = a * m + m, b = b * m + m, c = c * m + m, d = d * m + m, e = e * m + m;
            f = f * m + m, g = g * m + m, h = h * m + m, i = i * m + m, j = j * m + m;
        }
        a += b + c + d + e + f + g + h + i + j;
        __asm__ volatile("" : : "v"(a)); /* uses the sum, or else the compiler removes the loop */
        double time = now() - begin;
        if (time < best) best = time;
    }
    return 2.0 * CHAINS * WIDTH * TURNS / best;
}
#endif

/*
 * The peak of one core in flops per second, with the machine's best instruction set, even if another one is timed. Without
 * AVX-512 it is computed for 3 GHz instead of measured.
 */
static double peak_flops(void) {
    const struct dnn_isa *isa = dnn_isas;
    while (!cpu_has(isa)) isa++;
#ifdef __x86_64__
    if (isa->lanes == 16) return measure_avx512();
#endif
    return isa->flops_per_cycle * 3e9;
}

/* Seconds of the fastest of 5 to 200 runs, in about 0.7 s. */
static double time_bench(struct bench *b) {
    double best = 1e9, stop = now() + 0.7;
    for (int i = 0; i < 200 && (i < 5 || now() < stop); i++) {
        double begin = now();
        run_bench(b);
        double time = now() - begin;
        if (time < best) best = time;
    }
    return best;
}

static void time_convs(const struct dnn_isa *isa, int threads, double peak) {
    static const int shapes[][3] = {{64, 64, 56},   {128, 128, 28}, {256, 256, 14},  {512, 512, 7},
                                    {64, 64, 224},  {64, 128, 112}, {128, 128, 112}, {256, 256, 56},
                                    {512, 512, 28}, {512, 512, 14}, {128, 32, 56},   {32, 32, 112}};
    for (int i = 0; i < COUNT(shapes); i++)
        for (int out = 4; out >= 2; out -= 2) {
            const int c = shapes[i][0], k = shapes[i][1], size = shapes[i][2];
            struct dnn_problem p = {.kind = DNN_CONV,
                                    .batch_hint = 1,
                                    .lanes = isa->lanes,
                                    .threads = threads,
                                    .groups = 1,
                                    .c = c,
                                    .k = k,
                                    .c_model = c,
                                    .k_model = k,
                                    .h = size,
                                    .w = size,
                                    .oh = size,
                                    .ow = size,
                                    .kh = 3,
                                    .kw = 3,
                                    .sh = 1,
                                    .sw = 1,
                                    .dh = 1,
                                    .dw = 1,
                                    .pt = 1,
                                    .pl = 1,
                                    .bias = true,
                                    .act = DNN_ACT_RELU};
            struct bench b;
            make_bench(&b, isa, out == 4 ? &dnn_winograd4 : &dnn_winograd2, &p, 1, 0);
            double time = time_bench(&b), flops = 18.0 * c * k * size * size;
            printf(
                "%s %4d->%4d @%3d: %8.3f ms, cost model %8.3f ms, %6.1f GF/s = %3.0f%% of peak\n",
                b.impl->name, c, k, size, time * 1e3, b.plan.cost * 1e3, flops / time * 1e-9,
                100 * flops / time / peak);
            fflush(stdout);
            free_bench(&b);
        }
}

static void time_linears(const struct dnn_isa *isa, double peak) {
    static const int shapes[][3] = {
        {25088, 4096, 1},  {4096, 4096, 1}, {4096, 1000, 1},  {2048, 1000, 1},  {512, 1000, 1},
        {2048, 1000, 2},   {4096, 4096, 4}, {4096, 4096, 8},  {4096, 4096, 16}, {4096, 4096, 32},
        {25088, 4096, 16}, {768, 3072, 16}, {768, 3072, 128}, {512, 1000, 64}};
    for (int i = 0; i < COUNT(shapes); i++) {
        const int c = shapes[i][0], k = shapes[i][1], batch = shapes[i][2];
        struct dnn_problem p = {.kind = DNN_LINEAR,
                                .batch_hint = batch,
                                .lanes = isa->lanes,
                                .threads = 1,
                                .groups = 1,
                                .c = c,
                                .k = k,
                                .c_model = c,
                                .k_model = k,
                                .x_plain = true,
                                .y_plain = true,
                                .bias = true,
                                .h = 1,
                                .w = 1,
                                .oh = 1,
                                .ow = 1,
                                .kh = 1,
                                .kw = 1,
                                .sh = 1,
                                .sw = 1,
                                .dh = 1,
                                .dw = 1};
        struct bench b;
        make_bench(&b, isa, &dnn_product, &p, batch, 0);
        double time = time_bench(&b), flops = 2.0 * c * k * batch;
        printf("linear %5d->%4d batch %3d: %8.3f ms, cost model %8.3f ms, %5.1f GB/s of weights, "
               "%3.0f%% of peak\n",
               c, k, batch, time * 1e3, b.plan.cost * 1e3, 4.0 * c * k / time * 1e-9,
               100 * flops / time / peak);
        fflush(stdout);
        free_bench(&b);
    }
}

int main(int argc, char **argv) {
    if (argc >= 2 && !strcmp(argv[1], "check")) return check(argc > 2 ? atoi(argv[2]) : 300);
    const struct dnn_isa *isa = dnn_isas;
    while (isa->name && (!cpu_has(isa) || (argc > 2 && strcmp(argv[2], isa->name)))) isa++;
    if (!isa->name) return 1;
    double peak = peak_flops();
    printf("%s, one core %.1f GF/s\n", isa->name, peak * 1e-9);
    if (argc > 1 && !strcmp(argv[1], "linear")) {
        time_linears(isa, peak);
    } else {
        print_accuracy(isa, &dnn_winograd4);
        print_accuracy(isa, &dnn_winograd2);
        time_convs(isa, argc > 3 ? atoi(argv[3]) : 1, peak);
    }
    return 0;
}

/*
 * Checks and times the implementations `direct` and `grouped` of convolution alone, without the rest of SOL.
 *
 *   conv check [n] [seed]    compares n random problems per instruction set with a naive loop in double
 *   conv time [isa]          the least time of many runs on one thread, and its percentage of the measured peak;
 *                            THREADS=n plans for n threads, PROLOGUE=1 adds a prologue
 *
 * For `check`, buffers have the exact size of their tensors, so that -fsanitize=address detects each access outside.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dnn/dnn.h"
#include "dnn/list.h"

extern const struct dnn_impl dnn_direct, dnn_grouped;

/* Processor time of this thread, in seconds: time in which other work uses the core does not count. */
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
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
static bool one_in(int n) { return pick(1, n) == 1; }
static float random_value(void) { return (float)random_bits() / 2147483648.0f - 1; }

/* Whether new_values aligns to cache lines, as SOL's runtime does. `check` does not: kernels must not rely on it. */
static bool align_values;

static float *new_values(int64_t n) {
    const size_t size = (size_t)n * sizeof(float);
    float *values = align_values ? aligned_alloc(64, size / 64 * 64 + 64) : malloc(size + 1);
    if (!values) abort();
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

/* ---- One problem with its tensors ---- */

struct bench {
    struct dnn_plan plan;
    struct dnn_call call;
    float *x, *y, *weight, *bias, *scale, *shift, *residual, *packed;
    char *scratch;
    int *c_map, *k_map;
    int64_t x_size, y_size; /* values of one sample */
    int64_t n_pixels;       /* number of pixels for which the epilogue was called */
};

/* Values of a tensor whose samples have `image` values and lie `stride` values apart. */
static int64_t storage(int64_t image, int64_t stride, int64_t batch) {
    return batch ? image + stride * (batch - 1) : 0;
}

static void make_tensors(struct bench *b, int64_t batch, int64_t gap) {
    const struct dnn_problem *p = &b->plan.problem;
    b->x_size = (int64_t)p->c * p->h * p->w, b->y_size = (int64_t)p->k * p->oh * p->ow;
    b->call.batch = batch;
    b->call.x_stride = b->x_size + gap, b->call.y_stride = b->y_size + 2 * gap;
    b->call.residual_stride = b->y_size + 3 * gap;
    b->call.x = b->x = new_values(storage(b->x_size, b->call.x_stride, batch));
    b->call.y = b->y = new_values(storage(b->y_size, b->call.y_stride, batch));
    b->residual = new_values(storage(b->y_size, b->call.residual_stride, batch));
    b->weight = new_values((int64_t)p->k_model * (p->c_model / p->groups) * p->kh * p->kw);
    b->bias = new_values(p->k);
    b->scale = new_values(p->c), b->shift = new_values(p->c);
    b->call.bias = p->bias ? b->bias : NULL;
    b->call.residual = p->residual ? b->residual : NULL;
    if (p->prologue) b->call.scale = b->scale, b->call.shift = b->shift;
}

/* Sets pad lanes to zero: kernels may rely on that. */
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
    for (int64_t k = 0; p->k_map && k < p->k; k++) {
        if (p->k_map[k] >= 0) continue;
        b->bias[k] = 0;
        for (int64_t n = 0; n < b->call.batch; n++)
            for (int64_t i = 0; i < (int64_t)p->oh * p->ow; i++)
                b->residual[n * b->call.residual_stride +
                            (k / p->lanes * p->oh * p->ow + i) * p->lanes + k % p->lanes] = 0;
    }
}

static void count_pixels(void *user, int64_t n, int64_t k_block, int64_t pixel, int n_pixels) {
    struct bench *b = user;
    (void)n, (void)k_block, (void)pixel;
    b->n_pixels += n_pixels;
}

/* Plans and packs. Returns false if the implementation refuses the problem. */
static bool prepare(struct bench *b, const struct dnn_impl *impl, const struct dnn_isa *isa) {
    const char *reason = impl->refuse(&b->plan.problem);
    if (reason) return false;
    b->plan.impl = impl, b->plan.kernels = isa->kernels;
    impl->plan(&b->plan);
    b->packed = new_values((int64_t)b->plan.packed_size / 4);
    b->scratch = aligned_alloc(64, (size_t)round_up((int64_t)b->plan.scratch_size, 64) + 64);
    memset(b->scratch, 255, (size_t)round_up((int64_t)b->plan.scratch_size, 64) + 64);
    b->call.packed = b->packed, b->call.weight = b->weight;
    for (int64_t n = b->plan.n_pack_tasks; n-- > 0;) impl->pack(&b->plan, b->weight, b->packed, n);
    return true;
}

static void run_tasks(struct bench *b, int64_t step) {
    const int64_t n = b->plan.impl->n_tasks(&b->plan, b->call.batch);
    for (int64_t at = 0; at < n; at += step ? step : n)
        b->plan.impl->run(&b->plan, &b->call, b->scratch, at, step ? min_i64(at + step, n) : n);
}

static void free_bench(struct bench *b) {
    float *all[] = {b->x, b->y, b->weight, b->bias, b->scale, b->shift, b->residual, b->packed};
    for (int i = 0; i < COUNT(all); i++) free(all[i]);
    free(b->scratch), free(b->c_map), free(b->k_map);
}

/* ---- Check ---- */

/* Returns x after the prologue, zero outside of the image. `c` is a stored channel, with pad lanes. */
static double input_at(const struct bench *b, int64_t n, int64_t c, int64_t i, int64_t j) {
    const struct dnn_problem *p = &b->plan.problem;
    if (i < 0 || j < 0 || i >= p->h || j >= p->w) return 0;
    const int64_t lanes = p->x_plain ? 1 : p->lanes;
    double value =
        b->x[n * b->call.x_stride + ((c / lanes * p->h + i) * p->w + j) * lanes + c % lanes];
    if (!p->prologue) return value;
    value = value * b->scale[c] + b->shift[c];
    return value < p->prologue_min ? p->prologue_min : value;
}

static double activate(const struct dnn_problem *p, double value) {
    if (p->act == DNN_ACT_RELU) return value < 0 ? 0 : value;
    if (p->act == DNN_ACT_CLAMP)
        return value < p->act_min ? p->act_min : value > p->act_max ? p->act_max : value;
    return value;
}

static double sum_at(const struct bench *b, int64_t n, int64_t k_model, int64_t i, int64_t j) {
    const struct dnn_problem *p = &b->plan.problem;
    const int64_t c_group = p->c_model / p->groups, group = k_model / (p->k_model / p->groups);
    double sum = 0;
    for (int64_t c = 0; c < p->c; c++) {
        const int64_t c_model = p->c_map ? p->c_map[c] : c;
        if (c_model < 0 || c_model / c_group != group) continue;
        const float *weight = b->weight + (k_model * c_group + c_model % c_group) * p->kh * p->kw;
        for (int64_t r = 0; r < p->kh; r++)
            for (int64_t s = 0; s < p->kw; s++)
                sum += input_at(b, n, c, i * p->sh - p->pt + r * p->dh,
                                j * p->sw - p->pl + s * p->dw) *
                       weight[r * p->kw + s];
    }
    return sum;
}

static double output_at(const struct bench *b, int64_t n, int64_t k, int64_t i, int64_t j) {
    const struct dnn_problem *p = &b->plan.problem;
    const int64_t k_model = p->k_map ? p->k_map[k] : k;
    const int64_t at = ((k / p->lanes * p->oh + i) * p->ow + j) * p->lanes + k % p->lanes;
    double sum = k_model < 0 ? 0 : sum_at(b, n, k_model, i, j);
    if (p->bias) sum += b->bias[k];
    if (p->residual) sum += b->residual[n * b->call.residual_stride + at];
    return activate(p, sum);
}

/* Returns the difference, relative to the expected size of a sum of as many random terms. Pad lanes may be NaN if x is. */
static double error_at(const struct bench *b, int64_t n, int64_t at) {
    const struct dnn_problem *p = &b->plan.problem;
    const int64_t plane = (int64_t)p->oh * p->ow, pixel = at / p->lanes % plane;
    const int64_t k = at / p->lanes / plane * p->lanes + at % p->lanes;
    const double got = b->y[n * b->call.y_stride + at];
    const double want = output_at(b, n, k, pixel / p->ow, pixel % p->ow);
    if (isnan(got) && (isnan(want) || (p->k_map && p->k_map[k] < 0))) return 0;
    const double error = fabs(got - want) / sqrt((double)p->c / p->groups * p->kh * p->kw + 1);
    return isnan(error) ? INFINITY : error;
}

static double compare(const struct bench *b) {
    double worst = 0;
    for (int64_t n = 0; n < b->call.batch; n++)
        for (int64_t at = 0; at < b->y_size; at++) worst = fmax(worst, error_at(b, n, at));
    return worst;
}

/* Returns a map from stored channels to the model's (-1: pad lane), and the number of stored channels. The model's channels
 * are divided into random segments, each padded to whole blocks, as a concat does. */
static int *new_map(int lanes, int model, int *stored) {
    int *map = malloc(sizeof(int) * (size_t)(model * lanes));
    *stored = 0;
    for (int c = 0; c < model;) {
        for (int n = pick(1, model - c); n > 0; n--) map[(*stored)++] = c++;
        while (*stored % lanes) map[(*stored)++] = -1;
    }
    return map;
}

static void pick_channels(struct bench *b, const struct dnn_impl *impl) {
    struct dnn_problem *p = &b->plan.problem;
    p->groups = 1;
    if (impl == &dnn_grouped) {
        const int in_group = 1 << pick(0, p->lanes == 16 ? 3 : p->lanes == 8 ? 2 : 1);
        p->groups = pick(1, 5) * pick(1, 9);
        p->c_model = p->k_model = p->c = p->k = p->groups * in_group;
        p->c = p->k = (int)round_up(p->c, p->lanes);
        b->c_map = malloc(sizeof(int) * (size_t)p->c);
        for (int c = 0; c < p->c; c++) b->c_map[c] = c < p->c_model ? c : -1;
        p->c_map = p->k_map = b->c_map;
        if (p->c == p->c_model && one_in(2)) p->c_map = p->k_map = NULL;
    } else if (one_in(4)) {
        p->groups = pick(2, 3);
        p->c_model = p->c = p->groups * p->lanes * pick(1, 2);
        p->k_model = p->k = p->groups * p->lanes * pick(1, 3);
    } else {
        p->c_model = pick(1, 80), p->k_model = pick(1, 80);
        p->x_plain = one_in(3);
        if (p->x_plain) p->c = p->c_model;
        else p->c_map = b->c_map = new_map(p->lanes, p->c_model, &p->c);
        p->k_map = b->k_map = new_map(p->lanes, p->k_model, &p->k);
    }
}

static void pick_window(int *image, int *out, int *kernel, int *stride, int *padding,
                        int *dilation) {
    *image = one_in(8) ? 1 : one_in(12) ? pick(30, 70) : pick(1, 16);
    *kernel = one_in(3) ? 1 : pick(1, 5);
    *stride = one_in(2) ? 1 : pick(1, 4);
    *dilation = one_in(3) ? pick(1, 3) : 1;
    *padding = one_in(3) ? 0 : pick(0, *kernel * *dilation);
    const int last = *image + *padding + pick(0, 3) - (*kernel - 1) * *dilation - 1;
    *out = max_i64(1, last / *stride + 1);
    if (one_in(3) && *kernel == 1) *stride = 1, *padding = 0, *out = *image;
}

static struct bench random_bench(const struct dnn_impl *impl, const struct dnn_isa *isa) {
    struct bench b = {0};
    struct dnn_problem *p = &b.plan.problem;
    *p = (struct dnn_problem){.kind = DNN_CONV,
                              .lanes = isa->lanes,
                              .batch_hint = pick(0, 3),
                              .threads = pick(1, 16),
                              .bias = one_in(2),
                              .residual = one_in(2),
                              .act = (enum dnn_act)pick(0, 2),
                              .act_min = -0.5f,
                              .act_max = 1.5f};
    p->prologue = one_in(2) && impl != &dnn_grouped;
    p->prologue_min = one_in(2) ? 0 : -INFINITY;
    pick_channels(&b, impl);
    pick_window(&p->h, &p->oh, &p->kh, &p->sh, &p->pt, &p->dh);
    pick_window(&p->w, &p->ow, &p->kw, &p->sw, &p->pl, &p->dw);
    return b;
}

static void print_case(const struct bench *b, const char *text) {
    const struct dnn_problem *p = &b->plan.problem;
    printf(
        "%s: c %d/%d k %d/%d groups %d, %dx%d -> %dx%d, kernel %dx%d, stride %dx%d, padding %d %d, "
        "dilation %dx%d, "
        "batch %d hint %d threads %d%s%s%s%s act %d\n",
        text, p->c_model, p->c, p->k_model, p->k, p->groups, p->h, p->w, p->oh, p->ow, p->kh, p->kw,
        p->sh, p->sw, p->pt, p->pl, p->dh, p->dw, (int)b->call.batch, (int)p->batch_hint,
        p->threads, p->x_plain ? " plain" : "", p->bias ? " bias" : "",
        p->residual ? " residual" : "", p->prologue ? " prologue" : "", (int)p->act);
}

/* Whether another division of the tasks into ranges computes the same bits. */
static bool is_same_when_split(struct bench *b) {
    const int64_t size = storage(b->y_size, b->call.y_stride, b->call.batch) * 4;
    float *first = malloc((size_t)size + 1);
    memcpy(first, b->y, (size_t)size);
    run_tasks(b, pick(1, 3));
    const bool same = !memcmp(first, b->y, (size_t)size);
    free(first);
    return same;
}

static bool check_case(const struct dnn_impl *impl, const struct dnn_isa *isa) {
    struct bench b = random_bench(impl, isa);
    const bool nan = one_in(4);
    make_tensors(&b, pick(0, 3), one_in(2) ? 5 : 0);
    clear_padding(&b);
    if (!prepare(&b, impl, isa))
        return print_case(&b, impl->refuse(&b.plan.problem)), free_bench(&b), false;
    const int lanes = isa->lanes; /* the first lane of a block is never a pad lane */
    if (nan && b.call.batch) b.x[pick(0, (int)(b.x_size / lanes)) * lanes % b.x_size] = NAN;
    b.call.epilogue = count_pixels, b.call.epilogue_user = &b;
    run_tasks(&b, 0);
    const double error = compare(&b);
    const bool counted = b.n_pixels * b.plan.problem.lanes == b.y_size * b.call.batch;
    const bool right = error < 5e-6 && counted && is_same_when_split(&b);
    if (!right)
        printf("%s error %g pixels %d: ", isa->name, error, (int)counted),
            print_case(&b, impl->name);
    free_bench(&b);
    return right;
}

static int check(int n, int seed) {
    static const struct dnn_impl *const impls[] = {&dnn_direct, &dnn_grouped};
    int n_wrong = 0;
    for (int s = 0; s < seed; s++) random_bits();
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++)
        for (int i = 0; i < COUNT(impls) && cpu_has(isa); i++) {
            int wrong = 0;
            for (int c = 0; c < n; c++) wrong += !check_case(impls[i], isa);
            printf("%-8s %-8s %d of %d wrong\n", isa->name, impls[i]->name, wrong, n);
            n_wrong += wrong;
        }
    return n_wrong != 0;
}

/* ---- Time ---- */

/* c, k, groups, image size, kernel, stride, padding, dilation (0 means 1). x is plain if c < 4. */
static const int shapes[][8] = {
    {3, 64, 1, 224, 7, 2, 3},         {3, 32, 1, 224, 3, 2, 1},
    {64, 64, 1, 56, 3, 1, 1},         {128, 128, 1, 28, 3, 1, 1},
    {256, 256, 1, 14, 3, 1, 1},       {512, 512, 1, 7, 3, 1, 1},
    {64, 128, 1, 56, 3, 2, 1},        {256, 512, 1, 14, 3, 2, 1},
    {64, 256, 1, 56, 1, 1, 0},        {256, 64, 1, 56, 1, 1, 0},
    {128, 512, 1, 28, 1, 1, 0},       {1024, 256, 1, 14, 1, 1, 0},
    {512, 2048, 1, 7, 1, 1, 0},       {2048, 512, 1, 7, 1, 1, 0},
    {256, 512, 1, 56, 1, 2, 0},       {32, 192, 1, 112, 1, 1, 0},
    {96, 16, 1, 112, 1, 1, 0},        {384, 384, 1, 8, 3, 1, 1},
    {192, 64, 1, 35, 5, 1, 2},        {256, 256, 1, 28, 3, 1, 2},
    {512, 512, 2, 14, 3, 1, 1},       {2048, 256, 1, 28, 3, 1, 12, 12},
    {2048, 256, 1, 28, 3, 1, 36, 36}, {3, 64, 1, 224, 3, 1, 1},
    {3, 96, 1, 224, 4, 4, 0},         {64, 64, 1, 224, 3, 1, 1},
    {1024, 128, 1, 14, 1, 1, 0},      {384, 384, 1, 8, 1, 1, 0},
    {512, 512, 1, 4, 3, 1, 1},        {256, 512, 1, 2, 3, 1, 1},
    {2048, 1024, 1, 1, 1, 1, 0},      {64, 64, 64, 112, 3, 1, 1},
    {96, 96, 96, 112, 3, 2, 1},       {144, 144, 144, 56, 3, 1, 1},
    {384, 384, 384, 14, 3, 1, 1},     {960, 960, 960, 7, 3, 1, 1},
    {96, 96, 96, 56, 7, 1, 3},        {240, 240, 240, 28, 5, 2, 2},
    {128, 128, 32, 56, 3, 1, 1},      {256, 256, 32, 28, 3, 1, 1},
    {256, 256, 32, 56, 3, 2, 1},      {1024, 1024, 32, 7, 3, 1, 1},
};

/* Returns the least time of many short runs, in seconds: other work on the machine can only add time. */
static double best_time(struct bench *b) {
    double best = 1e9, total = 0;
    for (int i = 0; i < 300 && (total < 0.3 || i < 8); i++) {
        const double start = now();
        run_tasks(b, 0);
        const double seconds = now() - start;
        if (seconds < best) best = seconds;
        total += seconds;
    }
    return best;
}

static struct dnn_problem make_problem(const struct dnn_isa *isa, int c, int k, int groups, int h,
                                       int w, int kernel, int stride, int padding, int dilation) {
    const char *threads = getenv("THREADS");
    const int reach = (kernel - 1) * dilation + 1;
    return (struct dnn_problem){.kind = DNN_CONV,
                                .batch_hint = 1,
                                .lanes = isa->lanes,
                                .threads = threads ? atoi(threads) : 1,
                                .c = c,
                                .k = k,
                                .c_model = c,
                                .k_model = k,
                                .groups = groups,
                                .h = h,
                                .w = w,
                                .oh = (h + 2 * padding - reach) / stride + 1,
                                .ow = (w + 2 * padding - reach) / stride + 1,
                                .kh = kernel,
                                .kw = kernel,
                                .sh = stride,
                                .sw = stride,
                                .pt = padding,
                                .pl = padding,
                                .dh = dilation,
                                .dw = dilation,
                                .x_plain = c < 4,
                                .bias = true,
                                .prologue = getenv("PROLOGUE") && groups == 1,
                                .act = DNN_ACT_RELU};
}

static double n_flops(const struct dnn_problem *p) {
    return 2.0 * p->c / p->groups * p->k * p->kh * p->kw * p->oh * p->ow;
}

/* Returns flops per second of a 1x1 convolution with many channels whose data fits L2: within a few percent of the peak. */
static double measure_peak(const struct dnn_isa *isa) {
    struct bench b = {0};
    b.plan.problem = make_problem(isa, 2048, 2 * isa->lanes, 1, 1, 42, 1, 1, 0, 1);
    make_tensors(&b, 1, 0);
    prepare(&b, &dnn_direct, isa);
    const double rate = n_flops(&b.plan.problem) / best_time(&b);
    free_bench(&b);
    return rate;
}

static void time_shape(const struct dnn_isa *isa, const int *s, double peak) {
    struct bench b = {0};
    struct dnn_problem *p = &b.plan.problem;
    *p = make_problem(isa, s[0], s[1], s[2], s[3], s[3], s[4], s[5], s[6], s[7] ? s[7] : 1);
    make_tensors(&b, 1, 0);
    if (!prepare(&b, &dnn_grouped, isa) && !prepare(&b, &dnn_direct, isa)) abort();
    const double seconds = best_time(&b), rate = n_flops(p) / seconds;
    const double bytes = sizeof(float) * (double)(b.x_size + b.y_size);
    printf("%-8s %4d->%4d /%-4d %dx%d/%d dilation %-2d @%-3d %7.3f ms (%7.3f estimated) %6.1f GF/s "
           "%3.0f%% %5.1f GB/s, %d tasks\n",
           b.plan.impl->name, p->c, p->k, p->groups, p->kh, p->kw, p->sh, p->dh, p->h,
           seconds * 1e3, b.plan.cost * 1e3, rate * 1e-9, 100 * rate / peak, bytes / seconds * 1e-9,
           (int)b.plan.impl->n_tasks(&b.plan, 1));
    fflush(stdout);
    free_bench(&b);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "check"))
        return check(argc > 2 ? atoi(argv[2]) : 300, argc > 3 ? atoi(argv[3]) : 0);
    align_values = true;
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++) {
        if (!cpu_has(isa) || (argc > 2 ? strcmp(argv[2], isa->name) : isa != dnn_isas)) continue;
        const double peak = measure_peak(isa);
        printf("%s: peak %.1f GF/s\n", isa->name, peak * 1e-9);
        for (int i = 0; i < COUNT(shapes); i++) time_shape(isa, shapes[i], peak);
    }
    return 0;
}

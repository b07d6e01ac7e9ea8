/*
 * Conformance of the gradients of convolutions' weights in the DNN module, with every instruction set, against a naive loop.
 *
 *   random problem -> refuse? -> plan -> run, twice, in ranges of tasks -> join, if there are partial results -> compare
 *
 * Memory that a kernel must not read holds NaN, memory that it must not write a mark; buffers end after their last value. Plans for
 * other numbers of threads must give the same bits.
 */
#include "../unit/check.h"
#include "channels.h"
#include "device/cpu/cpu.h"
#include "dnn/list.h"
#include "random.h"

#include <math.h>

#define N_CASES   200
#define MAX_TRIES 200000
#define MAX_CHANNELS 1024

struct test {
    struct dnn_problem p;
    int c_map[MAX_CHANNELS], k_map[MAX_CHANNELS];
    int64_t batch, x_stride, dy_stride, n_x, n_dy, n_y; /* floats */
    float *x, *dy, *y, *again;
    double *expected, size;
};

static float *new_floats(int64_t n, float value) {
    float *at = malloc((size_t)n * sizeof *at + 1);
    REQUIRE(at);
    for (int64_t i = 0; i < n; i++) at[i] = value;
    return at;
}

/* ---- Problems ---- */

static int store_channels(struct random *r, int model, int lanes, bool is_plain, int *map,
                          const int **out) {
    const int n = is_plain ? model : map_channels(r, model, lanes, map);
    *out = n == model ? NULL : map;
    return n;
}

/* Channels in groups, of which each begins a block, as layouts do. */
static int pad_groups(int size, int groups, int lanes, int *map, const int **out) {
    int n = 0;
    for (int i = 0; i < size * groups; i++) {
        while (i % size == 0 && n % lanes) map[n++] = -1;
        map[n++] = i;
    }
    while (n % lanes) map[n++] = -1;
    *out = n == size * groups ? NULL : map;
    return n;
}

static void choose_groups(struct random *r, struct test *t) {
    struct dnn_problem *p = &t->p;
    p->x_plain = p->y_plain = false;
    p->groups = random_int(r, 2, 4);
    const int c = random_int(r, 1, 40), k = random_one_in(r, 2) ? c : random_int(r, 1, 40);
    p->c_model = c * p->groups, p->k_model = k * p->groups;
    p->c = pad_groups(c, p->groups, p->lanes, t->c_map, &p->c_map);
    p->k = pad_groups(k, p->groups, p->lanes, t->k_map, &p->k_map);
}

static void choose_channels(struct random *r, struct test *t) {
    static const int counts[] = {1, 3, 4, 7, 8, 16, 17, 24, 32, 58, 64, 100, 144},
                     sizes[] = {1, 1, 1, 2, 4, 8};
    struct dnn_problem *p = &t->p;
    p->groups = 1;
    p->c_model = RANDOM_PICK(r, counts), p->k_model = RANDOM_PICK(r, counts);
    p->x_plain = random_one_in(r, 4), p->y_plain = random_one_in(r, 20);
    if (random_one_in(r, 2)) {
        const int size = RANDOM_PICK(r, sizes);
        p->groups = size == 1 ? RANDOM_PICK(r, counts) : random_int(r, 1, 20);
        p->c_model = p->k_model = p->groups * size;
        if (random_one_in(r, 10)) p->k_model *= 2;
    }
    p->c = store_channels(r, p->c_model, p->lanes, p->x_plain, t->c_map, &p->c_map);
    p->k = store_channels(r, p->k_model, p->lanes, p->y_plain, t->k_map, &p->k_map);
    if (p->groups == 1 || p->c != p->k || p->k_model != p->c_model) return;
    memcpy(t->k_map, t->c_map, sizeof t->k_map);
    p->k_map = p->c_map ? t->k_map : NULL;
}

/* So many channels that no tasks have to share pixels; of small images. */
static bool choose_many(struct random *r, struct test *t) {
    struct dnn_problem *p = &t->p;
    const bool is_grouped = random_one_in(r, 2);
    p->groups = is_grouped ? 512 + random_int(r, 0, 40) : 1;
    p->c_model = is_grouped ? p->groups : 260, p->k_model = is_grouped ? p->groups : 300;
    p->x_plain = p->y_plain = false;
    p->c = store_channels(r, p->c_model, p->lanes, false, t->c_map, &p->c_map);
    p->k = store_channels(r, p->k_model, p->lanes, false, t->k_map, &p->k_map);
    if (is_grouped) p->k = p->c, p->k_map = p->c_map;
    p->h = random_int(r, 1, 3), p->w = random_int(r, 1, 3), p->kh = p->kw = 3;
    p->sh = p->sw = p->dh = p->dw = p->pt = p->pl = 1, p->oh = p->h, p->ow = p->w;
    return true;
}

static bool choose_image(struct random *r, struct test *t) {
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 14, 17, 28, 31, 70},
                     kernels[] = {1, 1, 2, 3, 3, 3, 5, 7, 9};
    struct dnn_problem *p = &t->p;
    p->h = RANDOM_PICK(r, sizes), p->w = RANDOM_PICK(r, sizes);
    if (random_one_in(r, 10)) p->h = 2, p->w = random_int(r, 100, 300);
    p->kh = p->kw = RANDOM_PICK(r, kernels);
    if (random_one_in(r, 4)) p->kw = RANDOM_PICK(r, kernels);
    p->sh = p->sw = random_int(r, 1, 2);
    if (random_one_in(r, 6)) p->sw = random_int(r, 1, 4);
    p->dh = random_one_in(r, 5) ? 2 : 1, p->dw = random_one_in(r, 5) ? 3 : 1;
    const bool even = random_one_in(r, 2);
    p->pt = even ? p->kh / 2 * p->dh : random_int(r, 0, 4);
    p->pl = even ? p->kw / 2 * p->dw : random_int(r, 0, 4);
    const int rows = p->h + p->pt + random_int(r, 0, p->pt) - p->dh * (p->kh - 1) - 1,
              columns = p->w + p->pl + random_int(r, 0, p->pl) - p->dw * (p->kw - 1) - 1;
    p->oh = rows / p->sh + 1, p->ow = columns / p->sw + 1;
    return rows >= 0 && columns >= 0;
}

static int64_t group_size(const struct dnn_problem *p) { return p->c_model / p->groups; }

static int64_t count_products(const struct test *t) {
    const struct dnn_problem *p = &t->p;
    return max_i64(1, t->batch) * p->k_model * group_size(p) * p->kh * p->kw * p->oh * p->ow;
}

static void make_problem(struct random *r, const struct dnn_isa *isa, struct test *t) {
    static const int batches[] = {0, 1, 1, 2, 3, 5, 40};
    bool fits;
    do {
        *t = (struct test){.p = {.kind = DNN_CONV_WEIGHT, .lanes = isa->lanes}};
        choose_channels(r, t);
        if (random_one_in(r, 6)) choose_groups(r, t);
        fits = random_one_in(r, 20) ? choose_many(r, t) : choose_image(r, t);
        t->batch = RANDOM_PICK(r, batches);
    } while (!fits || count_products(t) > 6000000);
    t->p.batch_hint = random_one_in(r, 2) ? 1 : 32;
    t->p.open = random_one_in(r, 4);
    if (random_one_in(r, 50)) t->p.x_type = SOL_F64;
}

/* ---- Tensors ---- */

/* Samples with NaN between them, and zeros in padding. */
static float *new_images(struct random *r, const struct test *t, int channels, const int *map,
                         bool plain, int64_t pixels, int64_t stride, int64_t size) {
    float *at = new_floats(size, NAN);
    const struct images images = {t->batch, stride, pixels, channels, t->p.lanes, map, plain};
    fill_images(r, &images, at);
    return at;
}

static void make_tensors(struct random *r, struct test *t) {
    const struct dnn_problem *p = &t->p;
    const int64_t in = (int64_t)p->h * p->w, out = (int64_t)p->oh * p->ow;
    t->x_stride = p->c * in + random_int(r, 0, 1) * in * p->lanes;
    t->dy_stride = p->k * out + random_int(r, 0, 1) * out * p->lanes;
    t->n_x = t->batch ? (t->batch - 1) * t->x_stride + p->c * in : 0;
    t->n_dy = t->batch ? (t->batch - 1) * t->dy_stride + p->k * out : 0;
    t->n_y = p->k_model * group_size(p) * p->kh * p->kw;
    t->x = new_images(r, t, p->c, p->c_map, p->x_plain, in, t->x_stride, t->n_x);
    t->dy = new_images(r, t, p->k, p->k_map, p->y_plain, out, t->dy_stride, t->n_dy);
    t->y = new_floats(t->n_y, NAN);
    t->again = new_floats(t->n_y, NAN);
}

/* ---- The naive loop ---- */

static int64_t find_stored(const int *map, int64_t channel) {
    int64_t i = 0;
    while (map && map[i] != channel) i++;
    return map ? i : channel;
}

static double sum_pixels(const struct test *t, int64_t k, int64_t c, int r, int s,
                         double *squares) {
    const struct dnn_problem *p = &t->p;
    const int64_t in = (int64_t)p->h * p->w, out = (int64_t)p->oh * p->ow;
    double sum = 0;
    for (int64_t n = 0; n < t->batch; n++)
        for (int64_t i = 0; i < out; i++) {
            const int64_t row = i / p->ow * p->sh - p->pt + r * p->dh,
                          column = i % p->ow * p->sw - p->pl + s * p->dw;
            if (row < 0 || row >= p->h || column < 0 || column >= p->w) continue;
            const double product =
                (double)t->x[n * t->x_stride +
                             locate_pixel(p->lanes, p->x_plain, in, c, row * p->w + column)] *
                (double)t->dy[n * t->dy_stride + locate_pixel(p->lanes, p->y_plain, out, k, i)];
            sum += product, *squares += product * product;
        }
    return sum;
}

/* t->size: the typical size of a sum. */
static void compute_expected(struct test *t) {
    const struct dnn_problem *p = &t->p;
    const int64_t taps = (int64_t)p->kh * p->kw, size = group_size(p);
    t->expected = calloc((size_t)t->n_y + 1, sizeof *t->expected);
    REQUIRE(t->expected);
    for (int64_t i = 0; i < t->n_y; i++) {
        const int64_t k = i / taps / size,
                      c = k / (p->k_model / p->groups) * size + i / taps % size;
        double squares = 0;
        t->expected[i] = sum_pixels(t, find_stored(p->k_map, k), find_stored(p->c_map, c),
                                    (int)(i % taps / p->kw), (int)(i % p->kw), &squares);
        t->size = fmax(t->size, sqrt(squares));
    }
}

/* ---- Running ---- */

static void *new_aligned(size_t size) {
    void *at = NULL;
    REQUIRE(!posix_memalign(&at, 64, size + 1));
    memset(at, 0xff, size); /* NaN */
    return at;
}

/* Runs the plan for some number of threads, in ranges of tasks, forwards or backwards. */
static void run(struct random *r, const struct dnn_impl *impl, const struct dnn_isa *isa,
                struct test *t, int threads, bool backwards, float *y) {
    struct dnn_plan plan = {.impl = impl, .kernels = isa->kernels, .problem = t->p};
    plan.problem.threads = threads;
    impl->plan(&plan);
    CHECK(isfinite(plan.cost) && plan.cost > 0);
    void *scratch = new_aligned(plan.scratch_size), *partial = new_aligned(plan.partial_size);
    struct dnn_call call = {.x = t->x,
                            .weight = t->dy,
                            .y = plan.partial_size ? partial : y,
                            .batch = t->batch,
                            .x_stride = t->x_stride,
                            .y_stride = t->dy_stride};
    const int64_t n = impl->n_tasks(&plan, t->batch), step = random_int(r, 1, 3),
                  ranges = ceil_div(n, step), parts = plan.partial_size ? impl->n_parts(&plan) : 0;
    for (int64_t i = 0; i < ranges; i++) {
        const int64_t begin = (backwards ? ranges - 1 - i : i) * step;
        impl->run(&plan, &call, scratch, begin, min_i64(n, begin + step));
    }
    for (int64_t i = 0; i < parts; i++)
        impl->join(&plan, t->batch, partial, y, backwards ? parts - 1 - i : i);
    free(scratch), free(partial);
}

static double measure_error(const struct test *t) {
    double worst = 0;
    for (int64_t i = 0; i < t->n_y; i++) {
        const double error = fabs((double)t->y[i] - t->expected[i]);
        if (!(error <= worst)) worst = isnan(error) ? INFINITY : error;
    }
    return worst / fmax(t->size, 1e-30);
}

static void print_test(const struct test *t) {
    const struct dnn_problem *p = &t->p;
    printf("  batch %d, c %d (%d)%s, k %d (%d), groups %d, image %dx%d -> %dx%d, window %dx%d ",
           (int)t->batch, p->c, p->c_model, p->x_plain ? " plain" : "", p->k, p->k_model, p->groups,
           p->h, p->w, p->oh, p->ow, p->kh, p->kw);
    printf("stride %d,%d pad %d,%d dilation %d,%d\n", p->sh, p->sw, p->pt, p->pl, p->dh, p->dw);
}

/* Sums of n products that are added pixel by pixel in chunks have errors of far less than sqrt(n); Winograd's transforms add theirs. */
static void test_case(struct random *r, const struct dnn_impl *impl, const struct dnn_isa *isa,
                      struct test *t, double *worst) {
    make_tensors(r, t);
    compute_expected(t);
    run(r, impl, isa, t, 1, false, t->y);
    run(r, impl, isa, t, random_int(r, 2, 16), true, t->again);
    const double error = measure_error(t);
    bool ok = CHECK(error <= (impl->approximate ? 2e-5 : 5e-6));
    ok &= CHECK(!memcmp(t->y, t->again, (size_t)t->n_y * sizeof *t->y));
    if (!ok) printf("  %s %s: error %g\n", impl->name, isa->name, error), print_test(t);
    *worst = fmax(*worst, error);
    free(t->x), free(t->dy), free(t->y), free(t->again), free(t->expected);
}

static void test_implementation(const struct dnn_impl *impl, const struct dnn_isa *isa,
                                uint64_t seed) {
    static struct test t;
    struct random r = random_start(seed);
    double worst = 0;
    int n = 0, n_shared = 0, n_refused = 0;
    for (int i = 0; i < MAX_TRIES && n < N_CASES; i++) {
        make_problem(&r, isa, &t);
        if (dnn_refuse(impl, &t.p)) {
            n_refused++;
            continue;
        }
        struct dnn_plan plan = {.impl = impl, .kernels = isa->kernels, .problem = t.p};
        impl->plan(&plan);
        n++, n_shared += plan.partial_size > 0;
        test_case(&r, impl, isa, &t, &worst);
    }
    CHECK(n == N_CASES && n_shared > 0 && n_shared < n);
    printf("%-20s %-8s accepted %4d, %d with partial results, worst error %.1e, refused %d\n",
           impl->name, isa->name, n, n_shared, worst, n_refused);
}

/* ---- Long sums ---- */

/* The mean of x is far from 0, so that the sum grows all the time: its error must not grow with it. */
static void test_long(const struct dnn_impl *impl, const struct dnn_isa *isa) {
    const int window = impl->approximate ? 3 : 1;
    struct test t = {.p = {.kind = DNN_CONV_WEIGHT,
                           .lanes = isa->lanes,
                           .batch_hint = 32,
                           .groups = 1,
                           .threads = 2,
                           .h = 181,
                           .w = 181,
                           .oh = 181,
                           .ow = 181,
                           .kh = window,
                           .kw = window,
                           .pt = window / 2,
                           .pl = window / 2,
                           .sh = 1,
                           .sw = 1,
                           .dh = 1,
                           .dw = 1},
                     .batch = 32};
    struct random r = random_start(1);
    t.p.c = t.p.k = t.p.c_model = t.p.k_model = isa->lanes;
    make_tensors(&r, &t);
    for (int64_t i = 0; i < t.n_x; i++) t.x[i] += 1;
    for (int64_t i = 0; i < t.n_dy; i++) t.dy[i] += 1;
    compute_expected(&t);
    run(&r, impl, isa, &t, 2, false, t.y);
    double worst = 0;
    for (int64_t i = 0; i < t.n_y; i++)
        worst = fmax(worst, fabs((double)t.y[i] / t.expected[i] - 1));
    CHECK(worst <= 1e-6);
    printf("%-20s %-8s sums of %d values: relative error %.1e\n", impl->name, isa->name,
           32 * 181 * 181, worst);
    free(t.x), free(t.dy), free(t.y), free(t.again), free(t.expected);
}

/* Arguments: [seed [implementation]] */
int main(int argc, char **argv) {
    static const struct dnn_impl *const impls[] = {&dnn_conv_weight, &dnn_conv_weight_grouped,
                                                   &dnn_winograd_weight};
    const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    printf("seed %llu\n", (unsigned long long)seed);
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++) {
        if (!cpu_has(isa)) {
            printf("skipped %s: this CPU lacks it\n", isa->name);
            continue;
        }
        for (int i = 0; i < COUNT(impls); i++)
            if (argc < 3 || !strcmp(argv[2], impls[i]->name))
                test_implementation(impls[i], isa, seed);
        test_long(&dnn_conv_weight, isa);
        test_long(&dnn_winograd_weight, isa);
    }
    return check_done();
}

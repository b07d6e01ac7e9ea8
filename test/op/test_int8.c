/*
 * Conformance of quantized products in the DNN module: exact integer loops against every instruction set, with and without an
 * instruction for quads (int8.h).
 *
 *   random problem -> plan -> pack -> run, in two orders of tasks -> compare
 *
 * Scales are powers of two, so all results are exact, and must be equal. Buffers end exactly after their last value, so ASan finds
 * accesses beyond it; padding channels of x hold garbage, as kernels must not depend on it, and those of y must become 0.
 */
#include "../unit/check.h"
#include "channels.h"
#include "device/cpu/cpu.h"
#include "dnn/dnn.h"
#include "dnn/list.h"

#include <math.h>

#define N_JOBS       150
#define MAX_CHANNELS 512

struct job {
    struct dnn_problem p;
    int c_map[MAX_CHANNELS], k_map[MAX_CHANNELS];
    int64_t batch, x_gap, y_gap;
    int32_t zero;
    float range[3];
};

struct data {
    uint8_t *x, *y, *again, *packed, *scratch;
    int8_t *weight;
    float *scale, *bias;
};

/* Memory of exactly this many bytes, with random ones. */
static void *new_bytes(struct random *r, int64_t n) {
    uint8_t *at = malloc(n ? (size_t)n : 1);
    REQUIRE(at);
    for (int64_t i = 0; i < n; i++) at[i] = (uint8_t)random_int(r, 0, 255);
    return at;
}

static int element(enum sol_dtype type) { return type == SOL_F32 ? 4 : 1; }

/* ---- Problems ---- */

static void set_linear(struct random *r, struct dnn_problem *p) {
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 16, 17, 31, 32, 33, 64, 100, 257};
    p->kind = DNN_LINEAR;
    p->x_plain = p->y_plain = true;
    p->h = p->w = p->oh = p->ow = p->kh = p->kw = p->sh = p->sw = p->dh = p->dw = 1;
    p->c = p->c_model = RANDOM_PICK(r, sizes);
    p->k = p->k_model = RANDOM_PICK(r, sizes);
}

/* Channels of a convolution of few channels per group, which are stored in and out alike. */
static void set_grouped(struct random *r, struct job *j) {
    static const int counts[] = {1, 2, 3, 5, 16, 17};
    struct dnn_problem *p = &j->p;
    int size = 1;
    while (2 * size < p->lanes && random_one_in(r, 2)) size *= 2;
    p->groups = RANDOM_PICK(r, counts);
    p->c_model = p->k_model = p->groups * size;
    p->c = p->k = (int)round_up(p->c_model, p->lanes);
    for (int i = 0; i < p->c; i++) j->c_map[i] = i < p->c_model ? i : -1;
    p->c_map = p->k_map = p->c == p->c_model ? NULL : j->c_map;
}

static void set_channels(struct random *r, struct job *j) {
    static const int counts[] = {1, 3, 5, 8, 16, 17, 32, 40, 64};
    struct dnn_problem *p = &j->p;
    p->groups = random_one_in(r, 6) ? 2 : 1;
    p->c_model = p->groups * (p->groups > 1 ? p->lanes : RANDOM_PICK(r, counts));
    p->k_model = p->groups * (p->groups > 1 ? 2 * p->lanes : RANDOM_PICK(r, counts));
    p->x_plain = p->groups == 1 && random_one_in(r, 4);
    p->c = p->x_plain ? p->c_model
                      : map_channels(r, p->c_model, p->groups > 1 ? 1 : p->lanes, j->c_map);
    p->k = map_channels(r, p->k_model, p->groups > 1 ? 1 : p->lanes, j->k_map);
    p->c_map = p->c == p->c_model ? NULL : j->c_map;
    p->k_map = p->k == p->k_model ? NULL : j->k_map;
}

static bool set_conv(struct random *r, struct job *j, bool grouped) {
    static const int sizes[] = {1, 2, 3, 5, 7, 9, 14, 17, 30};
    struct dnn_problem *p = &j->p;
    p->kind = DNN_CONV;
    (grouped ? set_grouped : set_channels)(r, j);
    p->h = RANDOM_PICK(r, sizes), p->w = RANDOM_PICK(r, sizes);
    p->kh = random_int(r, 1, 4), p->kw = random_int(r, 1, 4);
    p->sh = random_int(r, 1, 3), p->sw = random_int(r, 1, 3);
    p->dh = p->dw = random_one_in(r, 4) ? 2 : 1;
    if (random_one_in(r, 3)) p->kh = p->kw = p->sh = p->sw = 1;
    else if (random_one_in(r, 3)) p->kw = 3 + 2 * random_int(r, 0, 2), p->sw = p->dw = 1;
    p->pt = random_int(r, 0, p->kh), p->pl = random_int(r, 0, p->kw);
    const int rows = p->h + 2 * p->pt - p->dh * (p->kh - 1) - 1;
    const int columns = p->w + 2 * p->pl - p->dw * (p->kw - 1) - 1;
    p->oh = rows / p->sh + 1, p->ow = columns / p->sw + 1;
    j->x_gap = random_int(r, 0, 1) * p->lanes;
    j->y_gap = random_int(r, 0, 1) * p->lanes;
    return rows >= 0 && columns >= 0;
}

static void make_job(struct random *r, const struct dnn_isa *isa, const struct dnn_impl *impl,
                     struct job *j) {
    static const enum sol_dtype types[] = {SOL_U8, SOL_I8, SOL_F32};
    static const int threads[] = {1, 2, 16};
    const bool is_conv = impl != &dnn_linear_int8;
    do {
        memset(j, 0, sizeof *j);
        j->p.lanes = isa->lanes;
        j->p.groups = 1;
        if (!is_conv) set_linear(r, &j->p);
    } while (is_conv && !set_conv(r, j, impl == &dnn_grouped));
    struct dnn_problem *p = &j->p;
    p->x_type = types[random_int(r, 0, 1)];
    p->y_type = types[random_int(r, 0, 2)];
    p->w_type = SOL_I8;
    p->bias = p->residual_plain = true;
    p->threads = RANDOM_PICK(r, threads);
    j->batch = is_conv ? random_int(r, 0, 3) : random_int(r, 0, 40);
    p->batch_hint = random_one_in(r, 2) ? 1 : 32;
    const int first = p->x_type == SOL_I8 ? -128 : 0, low = p->y_type == SOL_I8 ? -128 : 0;
    j->zero = random_int(r, first, first + 255);
    j->range[0] = (float)random_int(r, low, low + 255);
    j->range[1] = (float)random_int(r, low, low + 100);
    j->range[2] = (float)random_int(r, low + 100, low + 255);
}

/* ---- The exact loop ---- */

static int64_t locate(const struct dnn_problem *p, bool plain, int64_t pixels, int channel,
                      int64_t pixel) {
    if (p->kind == DNN_LINEAR) return channel;
    return locate_pixel(p->lanes, plain, pixels, channel, pixel);
}

static int32_t read_byte(enum sol_dtype type, const uint8_t *at) {
    return type == SOL_I8 ? (int8_t)*at : *at;
}

/* The sum for stored channel k of pixel `at` of sample n. */
static int64_t add_products(const struct job *j, const struct data *d, int64_t n, int k,
                            int64_t at) {
    const struct dnn_problem *p = &j->p;
    const int64_t pixels = (int64_t)p->h * p->w;
    const int per_group = p->c_model / p->groups, model = p->k_map ? p->k_map[k] : k,
              first = model / (p->k_model / p->groups) * per_group;
    int64_t sum = 0;
    for (int c = 0; c < p->c; c++) {
        const int from = p->c_map ? p->c_map[c] : c;
        if (from < first || from >= first + per_group) continue;
        for (int i = 0; i < p->kh * p->kw; i++) {
            int64_t row = at / p->ow * p->sh - p->pt + i / p->kw * p->dh;
            int64_t column = at % p->ow * p->sw - p->pl + i % p->kw * p->dw;
            if (row < 0 || row >= p->h || column < 0 || column >= p->w) continue;
            const uint8_t *x = d->x + n * (p->c * pixels + j->x_gap) +
                               locate(p, p->x_plain, pixels, c, row * p->w + column);
            sum += (read_byte(p->x_type, x) - j->zero) *
                   d->weight[((int64_t)model * per_group + from - first) * p->kh * p->kw + i];
        }
    }
    return sum;
}

static double expect(const struct job *j, const struct data *d, int64_t n, int k, int64_t at) {
    if (j->p.k_map && j->p.k_map[k] < 0) return 0;
    double f = (double)add_products(j, d, n, k, at) * (double)d->scale[k] + (double)d->bias[k];
    if (j->p.y_type == SOL_F32) return f;
    return fmin(fmax(nearbyint(f) + (double)j->range[0], (double)j->range[1]), (double)j->range[2]);
}

/* ---- Running and comparing ---- */

static void run_tasks(const struct dnn_plan *plan, const struct job *j, const struct data *d,
                      uint8_t *y, int64_t step, bool backwards) {
    const struct dnn_problem *p = &j->p;
    struct dnn_call call = {.x = (float *)d->x,
                            .packed = (float *)d->packed,
                            .bias = d->bias,
                            .scale = d->scale,
                            .zero = &j->zero,
                            .range = j->range,
                            .y = (float *)y,
                            .batch = j->batch,
                            .x_stride = (int64_t)p->c * p->h * p->w + j->x_gap,
                            .y_stride = (int64_t)p->k * p->oh * p->ow + j->y_gap};
    const int64_t n = j->batch ? plan->impl->n_tasks(plan, j->batch) : 0,
                  ranges = ceil_div(n, step);
    for (int64_t i = 0; i < ranges; i++) {
        const int64_t begin = (backwards ? ranges - 1 - i : i) * step;
        plan->impl->run(plan, &call, d->scratch, begin, min_i64(n, begin + step));
    }
}

static bool is_right(const struct job *j, const struct data *d, const uint8_t *y) {
    const struct dnn_problem *p = &j->p;
    const int64_t pixels = (int64_t)p->oh * p->ow, stride = p->k * pixels + j->y_gap;
    for (int64_t n = 0; n < j->batch; n++)
        for (int k = 0; k < p->k; k++)
            for (int64_t i = 0; i < pixels; i++) {
                const uint8_t *at =
                    y + (n * stride + locate(p, p->y_plain, pixels, k, i)) * element(p->y_type);
                float f;
                memcpy(&f, at, p->y_type == SOL_F32 ? sizeof f : 1);
                double is = p->y_type == SOL_F32 ? (double)f : read_byte(p->y_type, at);
                double expected = expect(j, d, n, k, i);
                if (is == expected) continue;
                printf("  sample %d, channel %d, pixel %d is %g, expected %g\n", (int)n, k, (int)i,
                       is, expected);
                return false;
            }
    return true;
}

static void print_job(const struct dnn_plan *plan, const struct dnn_isa *isa, const struct job *j) {
    struct arena arena;
    struct text text;
    arena_init(&arena);
    text_init(&text, &arena);
    dnn_print_problem(&text, &j->p);
    printf("  %s %s, %s, batch %d: %s\n", plan->impl->name, isa->name,
           dnn_without_dot ? "by pairs" : "by quads", (int)j->batch, text.at);
    arena_fini(&arena);
}

static struct data make_data(struct random *r, const struct job *j, const struct dnn_plan *plan) {
    const struct dnn_problem *p = &j->p;
    const int64_t x = (int64_t)p->c * p->h * p->w, y = (int64_t)p->k * p->oh * p->ow,
                  batch = max_i64(1, j->batch);
    struct data d = {.x = new_bytes(r, batch * (x + j->x_gap) - j->x_gap)};
    d.weight = new_bytes(r, (int64_t)p->k_model * (p->c_model / p->groups) * p->kh * p->kw);
    d.y = new_bytes(r, (batch * (y + j->y_gap) - j->y_gap) * element(p->y_type));
    d.again = new_bytes(r, (batch * (y + j->y_gap) - j->y_gap) * element(p->y_type));
    d.packed = new_bytes(r, (int64_t)plan->packed_size);
    d.scratch = new_bytes(r, (int64_t)plan->scratch_size);
    d.scale = new_bytes(r, p->k * 4);
    d.bias = new_bytes(r, p->k * 4);
    for (int k = 0; k < p->k; k++) {
        d.scale[k] = p->k_map && p->k_map[k] < 0 ? 0 : ldexpf(1, -random_int(r, 6, 14));
        d.bias[k] = p->k_map && p->k_map[k] < 0 ? 0 : (float)random_int(r, -99, 99);
    }
    return d;
}

static void test_job(struct random *r, const struct dnn_impl *impl, const struct dnn_isa *isa,
                     struct job *j) {
    struct dnn_plan plan = {.impl = impl, .kernels = isa->kernels, .problem = j->p};
    const char *reason = dnn_refuse(impl, &j->p);
    if (!CHECK(!reason)) printf("  refused: %s\n", reason);
    if (reason) return;
    impl->plan(&plan);
    struct data d = make_data(r, j, &plan);
    for (int64_t i = plan.n_pack_tasks - 1; i >= 0; i--)
        impl->pack(&plan, (const float *)d.weight, (float *)d.packed, i);
    run_tasks(&plan, j, &d, d.y, 1 << 20, false);
    run_tasks(&plan, j, &d, d.again, random_int(r, 1, 3), true);
    bool ok = CHECK(is_right(j, &d, d.y));
    ok &= CHECK(is_right(j, &d, d.again));
    ok &= CHECK(isfinite(plan.cost) && plan.cost > 0);
    if (!ok) print_job(&plan, isa, j);
    free(d.x), free(d.weight), free(d.y), free(d.again), free(d.packed), free(d.scratch);
    free(d.scale), free(d.bias);
}

int main(int argc, char **argv) {
    const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    static struct job job;
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++) {
        if (!cpu_has(isa)) continue;
        static const struct dnn_impl *const impls[] = {&dnn_direct, &dnn_linear_int8, &dnn_grouped};
        for (int way = 0; way < 6; way++) {
            struct random r = random_start(seed);
            dnn_without_dot = way % 2;
            for (int i = 0; i < N_JOBS; i++) {
                make_job(&r, isa, impls[way / 2], &job);
                test_job(&r, impls[way / 2], isa, &job);
            }
        }
    }
    return check_done();
}

/*
 * Conformance of matmuls in the DNN module, with every instruction set, against a naive loop.
 *
 *   random sizes and strides -> plan -> run, twice, in ranges of tasks -> compare
 *
 * Operands are transposed, broadcast over products, or have gaps between rows, columns and products. Memory that a kernel must
 * not read holds NaN, memory that it must not write a mark; buffers end after their last value.
 */
#include "../unit/check.h"
#include "device/cpu/cpu.h"
#include "dnn/dnn.h"
#include "random.h"

#include <math.h>

#define N_CASES 400
#define MARK 12345.0f
#define N_GUARD 16384 /* floats behind scratch that must stay as they are: more than a panel */

extern const struct dnn_impl dnn_matmul;

/* A matrix of each product: its memory, and the strides of rows, columns and dims of products. */
struct operand {
    float *at;
    int64_t size, row, column, dim[2];
};

struct test {
    struct dnn_problem p;
    int64_t m, n_dims, size[2], products;
    struct operand a, b, y;
    float *residual;
    bool negated;
};

static float *new_floats(int64_t n, float value) {
    float *at = malloc((size_t)n * sizeof *at + 1);
    REQUIRE(at);
    for (int64_t i = 0; i < n; i++) at[i] = value;
    return at;
}

/* Position of the matrix of product i. */
static int64_t find_matrix(const struct test *t, const struct operand *o, int64_t i) {
    if (t->n_dims < 2) return t->n_dims ? i * o->dim[0] : 0;
    return i / t->size[1] * o->dim[0] + i % t->size[1] * o->dim[1];
}

/* Chooses strides: transposed or not, dims in any order, gaps, and dims without strides if it may be shared. */
static void make_operand(struct random *r, struct test *t, int64_t rows, int64_t columns,
                         bool is_shared, bool is_output, float value, struct operand *o) {
    const bool transposed = !is_output && random_one_in(r, 2),
               odd = !is_output && random_one_in(r, 8);
    int64_t *first = transposed ? &o->row : &o->column, *second = transposed ? &o->column : &o->row;
    int64_t n = transposed ? rows : columns, m = transposed ? columns : rows, at = 1;
    const bool between = t->n_dims == 2 && random_one_in(r, 2);
    *first = at = odd ? 2 : 1;
    at = at * n + random_int(r, 0, 1) * random_int(r, 0, 9);
    if (between) o->dim[1] = at, at *= t->size[1]; /* as [batch, rows, heads, columns] */
    *second = at;
    at *= m;
    for (int64_t d = t->n_dims; d-- > 0;) {
        if (d == 1 && between) continue;
        at += random_int(r, 0, 1) * random_int(r, 0, 5);
        o->dim[d] = at, at *= t->size[d];
    }
    for (int64_t d = 0; d < t->n_dims; d++)
        if (is_shared && random_one_in(r, 3)) o->dim[d] = 0;
    o->size = 0;
    for (int64_t i = 0; i < t->products; i++) {
        const int64_t last = (rows - 1) * o->row + (columns - 1) * o->column;
        const int64_t end = find_matrix(t, o, i) + last + 1;
        if (rows && columns && end > o->size) o->size = end;
    }
    o->at = new_floats(o->size, value);
}

static void fill_operand(struct random *r, const struct test *t, const struct operand *o,
                         int64_t rows, int64_t columns) {
    for (int64_t p = 0; p < t->products; p++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++)
                o->at[find_matrix(t, o, p) + i * o->row + j * o->column] = random_float(r, -1, 1);
}

static void set_matrix(struct test *t) {
    int64_t *matrix = t->p.matrix;
    matrix[DNN_A_ROW] = t->a.row, matrix[DNN_A_COLUMN] = t->a.column;
    matrix[DNN_B_ROW] = t->b.row, matrix[DNN_B_COLUMN] = t->b.column;
    matrix[DNN_Y_ROW] = t->y.row, matrix[DNN_ROWS] = t->m;
    for (int64_t d = 0; d < t->n_dims; d++) {
        int64_t *dim = matrix + DNN_DIMS + d * DNN_DIM_FIELDS;
        dim[DNN_DIM_SIZE] = t->size[d], dim[DNN_DIM_A] = t->a.dim[d];
        dim[DNN_DIM_B] = t->b.dim[d], dim[DNN_DIM_Y] = t->y.dim[d];
    }
}

/* Do all products have the same b? */
static bool shares_b(const struct test *t) {
    bool shares = true;
    for (int64_t d = 0; d < t->n_dims; d++) shares &= !t->b.dim[d];
    return shares;
}

static void make_test(struct random *r, const struct dnn_isa *isa, struct test *t) {
    static const int sizes[] = {1,  2,  3,  5,   8,   13,  16,  17,  31,   32,
                                33, 49, 64, 100, 140, 257, 300, 600, 1000, 1500};
    static const int threads[] = {1, 2, 4, 16};
    struct dnn_problem *p = &t->p;
    *t = (struct test){.n_dims = random_int(r, 0, 2), .products = 1};
    do {
        t->m = RANDOM_PICK(r, sizes), p->k = RANDOM_PICK(r, sizes), p->c = RANDOM_PICK(r, sizes);
        t->products = 1;
        for (int64_t d = 0; d < t->n_dims; d++) t->products *= t->size[d] = random_int(r, 1, 4);
    } while (t->products * t->m * p->k * p->c > 4000000);
    p->kind = DNN_MATMUL, p->lanes = isa->lanes, p->threads = RANDOM_PICK(r, threads);
    p->batch_hint = t->products * t->m;
    p->residual = random_one_in(r, 3), p->act = (enum dnn_act)random_int(r, 0, 2);
    p->act_min = -0.5f, p->act_max = 0.75f;
    t->negated = random_one_in(r, 3);
    make_operand(r, t, t->m, p->c, true, false, NAN, &t->a);
    make_operand(r, t, p->c, p->k, true, false, NAN, &t->b);
    make_operand(r, t, t->m, p->k, false, true, MARK, &t->y);
    p->packs_b = shares_b(t) && random_one_in(r, 2);
    fill_operand(r, t, &t->a, t->m, p->c);
    fill_operand(r, t, &t->b, p->c, p->k);
    t->residual = new_floats(t->products * t->m * p->k, 0);
    for (int64_t i = 0; i < t->products * t->m * p->k; i++) t->residual[i] = random_float(r, -1, 1);
    set_matrix(t);
}

/* The epilogue: detects a region without a call, or with two. */
static void negate(void *user, int64_t n, int64_t k_block, int64_t pixel, int n_pixels) {
    const struct test *t = user;
    float *y = t->y.at + find_matrix(t, &t->y, n / t->m) + n % t->m * t->y.row;
    CHECK(!k_block && pixel >= 0 && pixel + n_pixels <= t->p.k);
    for (int64_t i = pixel; i < pixel + n_pixels; i++) y[i] = -y[i];
}

/* Packs b, if the plan says so, in memory that ends after its last value. */
static float *pack(const struct dnn_plan *plan, const struct test *t) {
    float *packed = new_floats((int64_t)(plan->packed_size / sizeof(float)), NAN);
    CHECK(!plan->packed_size || shares_b(t));
    for (int64_t i = 0; i < plan->n_pack_tasks; i++)
        plan->impl->pack(plan, t->b.at, packed, plan->n_pack_tasks - 1 - i);
    return packed;
}

static float *new_scratch(int64_t n) {
    float *scratch = NULL;
    REQUIRE(!posix_memalign((void **)&scratch, 64, (size_t)(n + N_GUARD) * sizeof *scratch));
    for (int64_t i = 0; i < N_GUARD; i++) scratch[n + i] = MARK;
    return scratch;
}

static bool is_guard_whole(const float *guard) {
    int64_t n_marks = 0;
    for (int64_t i = 0; i < N_GUARD; i++) n_marks += guard[i] == MARK;
    return n_marks == N_GUARD;
}

static void run(struct random *r, const struct dnn_isa *isa, struct test *t, bool backwards) {
    struct dnn_plan plan = {.impl = &dnn_matmul, .kernels = isa->kernels, .problem = t->p};
    CHECK(!plan.impl->refuse(&t->p));
    plan.impl->plan(&plan);
    const int64_t n_scratch = (int64_t)(plan.scratch_size / sizeof(float));
    float *scratch = new_scratch(n_scratch), *packed = pack(&plan, t);
    struct dnn_call call = {.x = t->a.at,
                            .packed = packed,
                            .weight = plan.packed_size ? NULL : t->b.at,
                            .residual = t->p.residual ? t->residual : NULL,
                            .y = t->y.at,
                            .batch = t->products * t->m,
                            .residual_stride = t->p.k};
    if (t->negated) call.epilogue = negate, call.epilogue_user = t;
    const int64_t n = plan.impl->n_tasks(&plan, call.batch), step = random_int(r, 1, 3);
    for (int64_t i = 0; i < ceil_div(n, step); i++) {
        const int64_t begin = (backwards ? ceil_div(n, step) - 1 - i : i) * step;
        plan.impl->run(&plan, &call, scratch, begin, min_i64(n, begin + step));
    }
    CHECK(is_guard_whole(scratch + n_scratch));
    free(scratch), free(packed);
}

static double expect(const struct test *t, int64_t product, int64_t i, int64_t k) {
    const float *a = t->a.at + find_matrix(t, &t->a, product) + i * t->a.row;
    const float *b = t->b.at + find_matrix(t, &t->b, product) + k * t->b.column;
    double sum = 0;
    for (int64_t c = 0; c < t->p.c; c++)
        sum += (double)a[c * t->a.column] * (double)b[c * t->b.row];
    if (t->p.residual) sum += (double)t->residual[(product * t->m + i) * t->p.k + k];
    if (t->p.act != DNN_ACT_NONE) sum = fmax(sum, t->p.act == DNN_ACT_RELU ? 0 : -0.5);
    if (t->p.act == DNN_ACT_CLAMP) sum = fmin(sum, 0.75);
    return t->negated ? -sum : sum;
}

/* Compares y with the naive loop, and replaces it by marks, so that marks are all that is left. */
static double compare(struct test *t) {
    double worst = 0;
    for (int64_t p = 0; p < t->products; p++)
        for (int64_t i = 0; i < t->m; i++)
            for (int64_t k = 0; k < t->p.k; k++) {
                float *y = t->y.at + find_matrix(t, &t->y, p) + i * t->y.row + k;
                const double error = fabs((double)*y - expect(t, p, i, k));
                if (!(error <= worst)) worst = error;
                *y = MARK;
            }
    int64_t n_marks = 0;
    for (int64_t i = 0; i < t->y.size; i++) n_marks += t->y.at[i] == MARK;
    CHECK(n_marks == t->y.size);
    return worst;
}

static void test_case(struct random *r, const struct dnn_isa *isa, double *worst) {
    struct test t;
    make_test(r, isa, &t);
    float *first = new_floats(t.y.size, 0);
    run(r, isa, &t, false);
    memcpy(first, t.y.at, (size_t)t.y.size * sizeof *first);
    for (int64_t i = 0; i < t.y.size; i++) t.y.at[i] = MARK;
    run(r, isa, &t, true);
    bool ok = CHECK(!memcmp(first, t.y.at, (size_t)t.y.size * sizeof *first));
    const double error = compare(&t), allowed = 1.5e-6 * sqrt(t.p.c) + 1e-6;
    ok &= CHECK(error <= allowed);
    if (!ok)
        printf("  %s: %d products, m %d, k %d, c %d: error %g\n", isa->name, (int)t.products,
               (int)t.m, t.p.k, t.p.c, error);
    if (error / allowed > *worst) *worst = error / allowed;
    free(t.a.at), free(t.b.at), free(t.y.at), free(t.residual), free(first);
}

/* A result that is written past the caches; its rows do not end with a vector, and gaps follow them. */
static void test_large(struct random *r, const struct dnn_isa *isa) {
    struct test t = {.m = 2051, .products = 1};
    t.p = (struct dnn_problem){
        .kind = DNN_MATMUL, .k = 4099, .c = 3, .lanes = isa->lanes, .threads = 2};
    t.a = (struct operand){.row = t.p.c, .column = 1, .size = t.m * t.p.c};
    t.b = (struct operand){.row = t.p.k, .column = 1, .size = t.p.c * t.p.k};
    t.y = (struct operand){.row = 4112, .column = 1, .size = (t.m - 1) * 4112 + t.p.k};
    t.a.at = new_floats(t.a.size, NAN), t.b.at = new_floats(t.b.size, NAN);
    t.y.at = new_scratch(t.y.size);
    for (int64_t i = 0; i < t.y.size; i++) t.y.at[i] = MARK;
    fill_operand(r, &t, &t.a, t.m, t.p.c), fill_operand(r, &t, &t.b, t.p.c, t.p.k);
    set_matrix(&t);
    run(r, isa, &t, false);
    CHECK(is_guard_whole(t.y.at + t.y.size));
    CHECK(compare(&t) <= 4e-6);
    free(t.a.at), free(t.b.at), free(t.y.at);
}

int main(int argc, char **argv) {
    struct random r = random_start(argc > 1 ? strtoull(argv[1], NULL, 10) : 1);
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++) {
        double worst = 0;
        if (!cpu_has(isa)) {
            printf("skipped %s: this CPU lacks it\n", isa->name);
            continue;
        }
        for (int i = 0; i < N_CASES; i++) test_case(&r, isa, &worst);
        test_large(&r, isa);
        printf("%-8s %d cases, worst error %.2f of what is allowed\n", isa->name, N_CASES, worst);
    }
    return check_done();
}

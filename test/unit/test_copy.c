/* Copies by forms, and resampling, against their definitions; also without the instructions of this machine. */
#include "check.h"
#include "run/program.h"

#include <stdlib.h>
#include <string.h>

void plain_copy_form_run(const struct copy_form *form, int element, const void *in, void *out,
                         int64_t begin, int64_t end);
int64_t plain_copy_form_n_tasks(const struct copy_form *form);
extern const struct step_kind plain_resample;

#define WITHOUT_AVX2
#define copy_form_run     plain_copy_form_run
#define copy_form_n_tasks plain_copy_form_n_tasks
#include "../../src/run/copy_move.c"
#undef copy_form_run
#undef copy_form_n_tasks
#undef HAS_AVX2
#define step_resample plain_resample
#include "../../src/run/resample.c"
#undef step_resample

static struct arena arena;
static uint64_t seed = 1;

static int64_t draw(int64_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((seed >> 33) % (uint64_t)n);
}

/* ---- Copies ---- */

struct movement {
    int n_dims;
    int64_t dim[5], in_dim[5], order[5]; /* order: of the dims in the input */
    int64_t *index[5];                   /* by dim and index: index in the input, or -1 */
};

/* The index in the input of index `i` of `n`: the same, turned, shifted, repeated, mirrored, padded, anywhere. */
static int64_t draw_index(int64_t kind, int64_t i, int64_t n, int64_t in) {
    switch (kind) {
    case 1: return in - 1 - i % in;
    case 2: return (i + 3) % in;
    case 3: return i / 2 % in;
    case 4: return i < in ? i : max_i64(0, 2 * in - 2 - i);
    case 5: return i < 2 || i > n - 2 ? -1 : i % in;
    case 6: return draw(in);
    default: return i % in;
    }
}

static struct movement draw_movement(void) {
    static const int64_t sizes[] = {1, 2, 3, 7, 8, 9, 16, 17, 31, 40};
    struct movement m = {.n_dims = (int)draw(4) + 1};
    int64_t left = 6000;
    for (int d = 0; d < m.n_dims; d++) {
        do m.dim[d] = sizes[draw(COUNT(sizes))];
        while (m.dim[d] > left);
        left /= m.dim[d];
        m.order[d] = d;
        const int64_t kind = draw(3) ? 0 : draw(7);
        m.in_dim[d] = max_i64(1, kind == 3 ? m.dim[d] / 2 : m.dim[d] - draw(3));
        m.index[d] = ARENA_ARRAY(&arena, int64_t, m.dim[d]);
        for (int64_t i = 0; i < m.dim[d]; i++)
            m.index[d][i] = draw_index(kind, i, m.dim[d], m.in_dim[d]);
    }
    for (int d = 0; d < m.n_dims && draw(2); d++) {
        const int64_t other = draw(m.n_dims), swap = m.order[d];
        m.order[d] = m.order[other];
        m.order[other] = swap;
    }
    return m;
}

static int64_t find_source(const struct movement *m, int64_t i) {
    int64_t stride[5], at = 0, n = 1;
    for (int d = m->n_dims - 1; d >= 0; d--) {
        stride[m->order[d]] = n;
        n *= m->in_dim[m->order[d]];
    }
    for (int d = m->n_dims - 1; d >= 0; d--) {
        const int64_t index = m->index[d][i % m->dim[d]];
        if (index < 0) return -1;
        at += index * stride[d];
        i /= m->dim[d];
    }
    return at;
}

typedef void form_run(const struct copy_form *form, int element, const void *in, void *out,
                      int64_t begin, int64_t end);

/* Each task on its own, and in and out without a byte more than needed, so that a sanitizer sees what is beyond. */
static void check_form(const struct copy_form *form, form_run *run, int element,
                       const int64_t *source, int64_t n, int64_t n_in) {
    char *in = malloc((size_t)(n_in * element)), *out = malloc((size_t)(n * element));
    const char zero[8] = {0};
    bool right = true;
    for (int64_t i = 0; i < n_in * element; i++) in[i] = (char)(draw(255) + 1);
    memset(out, 0x55, (size_t)(n * element));
    for (int64_t task = 0; task < copy_form_n_tasks(form); task++)
        run(form, element, in, out, task, task + 1);
    for (int64_t i = 0; i < n; i++)
        right = right && !memcmp(out + i * element, source[i] < 0 ? zero : in + source[i] * element,
                                 (size_t)element);
    CHECK(right);
    free(in);
    free(out);
}

static void test_form(int element, int *seen) {
    const struct movement m = draw_movement();
    struct copy_source s = {.n_dims = m.n_dims, .n_in = 1, .element = element};
    struct copy_form form;
    int64_t n = 1, *at;
    for (int d = 0; d < m.n_dims; d++) {
        n *= s.dim[d] = m.dim[d];
        s.n_in *= m.in_dim[d];
    }
    at = ARENA_ARRAY(&arena, int64_t, n);
    for (int64_t i = 0; i < n; i++) at[i] = find_source(&m, i);
    s.at = at;
    if (!copy_form_find(&arena, &s, &form)) return;
    seen[form.kind]++;
    check_form(&form, copy_form_run, element, at, n, s.n_in);
    check_form(&form, plain_copy_form_run, element, at, n, s.n_in);
}

/* All kinds occur. Where dims depend on each other, there is no form. */
static void test_forms(void) {
    int seen[4] = {0};
    for (int round = 0; round < 1500; round++)
        for (int element = 1; element <= 8; element *= 2) test_form(element, seen);
    for (int kind = 0; kind < COUNT(seen); kind++) CHECK(seen[kind] > 20);
    const int64_t at[] = {0, 1, 2, 4};
    struct copy_form form;
    CHECK(!copy_form_find(
        &arena,
        &(struct copy_source){.at = at, .n_dims = 2, .dim = {2, 2}, .n_in = 5, .element = 4},
        &form));
}

/* Parts of few rows and many columns are several tasks. */
static void test_few_rows(int64_t rows, int64_t columns) {
    struct copy_source s = {
        .n_dims = 3, .dim = {2, rows, columns}, .n_in = 2 * rows * columns, .element = 4};
    struct copy_form form;
    int64_t *at = ARENA_ARRAY(&arena, int64_t, s.n_in);
    for (int64_t i = 0; i < s.n_in; i++)
        at[i] = (i / columns / rows * columns + i % columns) * rows + i / columns % rows;
    s.at = at;
    for (s.element = 1; s.element <= 8; s.element *= 2) {
        CHECK(copy_form_find(&arena, &s, &form));
        CHECK(rows < 4 || form.kind == COPY_TURNED);
        check_form(&form, copy_form_run, s.element, at, s.n_in, s.n_in);
        check_form(&form, plain_copy_form_run, s.element, at, s.n_in, s.n_in);
    }
}

/* Rows that are reversed or doubled, of all lengths around a vector's width. */
static void test_regular(int64_t n, bool doubled) {
    struct copy_source s = {.n_dims = 2, .dim = {3, n}, .n_in = 3 * n, .element = 4};
    struct copy_form form;
    int64_t *at = ARENA_ARRAY(&arena, int64_t, s.n_in);
    for (int64_t i = 0; i < s.n_in; i++) at[i] = i / n * n + (doubled ? i % n / 2 : n - 1 - i % n);
    s.at = at;
    CHECK(copy_form_find(&arena, &s, &form));
    CHECK(n != 64 || (form.kind == COPY_WINDOWS && form.is_regular));
    check_form(&form, copy_form_run, 4, at, s.n_in, s.n_in);
    check_form(&form, plain_copy_form_run, 4, at, s.n_in, s.n_in);
}

/* ---- Resampling ---- */

struct image {
    int64_t arg[RESAMPLE_N_ARGS];
    void *ptr[RESAMPLE_N_POINTERS];
};

static void *allocate(int64_t n, int64_t size) {
    return arena_alloc(&arena, (size_t)(n * size) + 1);
}

/* Taps near each other, or anywhere. */
static void draw_taps(struct image *image, int dim, int64_t taps, int64_t n, int64_t size) {
    int64_t *index = allocate(taps * n, 8);
    float *weight = allocate(taps * n, 4);
    const bool is_near = draw(4) > 0;
    for (int64_t i = 0; i < taps * n; i++) {
        index[i] = is_near ? min_i64(i % n * size / n + i / n, size - 1) : draw(size);
        weight[i] = (float)draw(9) - 4;
    }
    image->ptr[2 + 2 * dim] = index;
    image->ptr[3 + 2 * dim] = weight;
}

static struct image draw_image(void) {
    struct image m = {.arg = {[RESAMPLE_INDEX_SIZE] = 8}};
    const int which = (int)draw(3) + 1;
    int64_t *a = m.arg;
    a[RESAMPLE_PLANES] = draw(3) + 1;
    a[RESAMPLE_OUTER] = (draw(2) + 1) * a[RESAMPLE_PLANES];
    a[RESAMPLE_ROWS_IN] = draw(20) + 1;
    a[RESAMPLE_COLUMNS_IN] = draw(40) + 1;
    a[RESAMPLE_ROWS] = which & 1 ? draw(70) + 1 : a[RESAMPLE_ROWS_IN];
    a[RESAMPLE_COLUMNS] = which & 2 ? draw(60) + 1 : a[RESAMPLE_COLUMNS_IN];
    a[RESAMPLE_ROW_TAPS] = which & 1 ? draw(draw(3) ? 4 : RESAMPLE_TAPS) + 1 : 0;
    a[RESAMPLE_COLUMN_TAPS] = which & 2 ? draw(draw(3) ? 4 : RESAMPLE_TAPS) + 1 : 0;
    a[RESAMPLE_INNER] = draw(2) ? 1 : draw(20) + 1;
    if (which & 1) draw_taps(&m, 0, a[RESAMPLE_ROW_TAPS], a[RESAMPLE_ROWS], a[RESAMPLE_ROWS_IN]);
    if (which & 2)
        draw_taps(&m, 1, a[RESAMPLE_COLUMN_TAPS], a[RESAMPLE_COLUMNS], a[RESAMPLE_COLUMNS_IN]);
    return m;
}

/* Small integers, so that sums are exact in any order. */
static double resample_point(const struct image *m, const float *x, int64_t r, int64_t c) {
    const int64_t *a = m->arg, *row = m->ptr[2], *column = m->ptr[4];
    const float *row_weight = m->ptr[3], *column_weight = m->ptr[5];
    double sum = 0;
    for (int64_t j = 0; j < max_i64(1, a[RESAMPLE_ROW_TAPS]); j++)
        for (int64_t k = 0; k < max_i64(1, a[RESAMPLE_COLUMN_TAPS]); k++) {
            const int64_t at = (row ? row[j * a[RESAMPLE_ROWS] + r] : r) * a[RESAMPLE_COLUMNS_IN] +
                               (column ? column[k * a[RESAMPLE_COLUMNS] + c] : c);
            sum += (double)x[at * a[RESAMPLE_INNER]] *
                   (double)(row ? row_weight[j * a[RESAMPLE_ROWS] + r] : 1) *
                   (double)(column ? column_weight[k * a[RESAMPLE_COLUMNS] + c] : 1);
        }
    return sum;
}

static void check_image(struct image *m, const float *x, const float *y) {
    const int64_t *a = m->arg, planes = a[RESAMPLE_PLANES], inner = a[RESAMPLE_INNER];
    bool right = true;
    for (int64_t o = 0; o < a[RESAMPLE_OUTER]; o++)
        for (int64_t i = 0; i < a[RESAMPLE_ROWS] * a[RESAMPLE_COLUMNS] * inner; i++) {
            const float *in = x + o / planes * a[RESAMPLE_IN_STRIDE] +
                              o % planes * a[RESAMPLE_ROWS_IN] * a[RESAMPLE_COLUMNS_IN] * inner;
            const float *out = y + o / planes * a[RESAMPLE_OUT_STRIDE] +
                               o % planes * a[RESAMPLE_ROWS] * a[RESAMPLE_COLUMNS] * inner;
            const int64_t c = i / inner % a[RESAMPLE_COLUMNS], r = i / inner / a[RESAMPLE_COLUMNS];
            right = right && (double)out[i] == resample_point(m, in + i % inner, r, c);
        }
    CHECK(right);
}

static void test_image(void) {
    struct image m = draw_image();
    int64_t *a = m.arg, samples = a[RESAMPLE_OUTER] / a[RESAMPLE_PLANES];
    const struct step step = {.layers = "resample"};
    a[RESAMPLE_IN_STRIDE] =
        a[RESAMPLE_PLANES] * a[RESAMPLE_ROWS_IN] * a[RESAMPLE_COLUMNS_IN] * a[RESAMPLE_INNER];
    a[RESAMPLE_OUT_STRIDE] =
        a[RESAMPLE_PLANES] * a[RESAMPLE_ROWS] * a[RESAMPLE_COLUMNS] * a[RESAMPLE_INNER] + 5;
    const int64_t n = samples * a[RESAMPLE_IN_STRIDE], size = n * (int64_t)sizeof(float);
    float *x = malloc((size_t)size),
          *y = malloc((size_t)(samples * a[RESAMPLE_OUT_STRIDE]) * sizeof *y);
    for (int64_t i = 0; i < n; i++) x[i] = (float)draw(9) - 4;
    m.ptr[0] = x;
    m.ptr[1] = y;
    for (int64_t task = 0; task < step_resample.n_tasks(&step, a); task++)
        step_resample.run(&step, m.ptr, a, NULL, task, task + 1);
    check_image(&m, x, y);
    plain_resample.run(&step, m.ptr, a, NULL, 0, plain_resample.n_tasks(&step, a));
    check_image(&m, x, y);
    CHECK(!exec_take_failure());
    free(x);
    free(y);
}

/* An index outside of the dim fails the call. */
static void test_bad_index(void) {
    for (int64_t bad = -1; bad <= 3; bad += 4) {
        float x[3] = {1, 2, 3}, y[2], weight[2] = {1, 1};
        int64_t index[2] = {0, bad}, arg[RESAMPLE_N_ARGS] = {1, 1, 3, 2, 1, 1, 0, 3, 2, 1, 1, 8};
        const struct step step = {.layers = "resample"};
        void *ptr[RESAMPLE_N_POINTERS] = {x, y, NULL, NULL, index, weight};
        resample_run(&step, ptr, arg, NULL, 0, 1);
        CHECK(exec_take_failure() == SOL_EINDEX);
        CHECK(strstr(sol_error(), "but there are 3 elements"));
    }
}

int main(void) {
    jmp_buf boundary;
    arena_init(&arena);
    arena.boundary = &boundary;
    if (setjmp(boundary)) return 1;
    test_forms();
    for (int64_t rows = 3; rows < 70; rows += 22)
        for (int64_t columns = 500; columns < 1600; columns += 523) test_few_rows(rows, columns);
    for (int64_t n = 1; n < 70; n++) test_regular(n, false), test_regular(n, true);
    for (int round = 0; round < 400; round++) test_image();
    test_bad_index();
    arena_fini(&arena);
    return check_done();
}

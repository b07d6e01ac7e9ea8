/*
 * Convolutions, linear layers, matmuls and gradients of convolutions' weights on plain tensors: C99 text for far devices.
 *
 *   defines of device/far_emit.c, [this file] -> device_queue_kernel -> SOL_KERNEL
 *
 * Each of them is a product of matrices, y[i, j] = act(sum over t of a[i, t] * b[t, j] + bias + residual[i, j]):
 *
 *                    rows i           terms t                        columns j
 *   KERNEL_CONV      output channels  input channel, window's point  pixels of an image
 *   KERNEL_MATRIX    rows             terms                          columns; of a linear layer: rows of x, inputs, outputs
 *   KERNEL_WEIGHT    output channels  pixels of all images           input channel, window's point
 *
 * A unit of work is GROUP rows and WIDTH columns of y. TERMS terms of b at a time are copied to the stack, with the columns side by side and
 * zero for what is outside of an image. a is read in place: element (i, t) is at a[i * row_step + offset[t]]. The sums of ROWS rows stay in
 * registers, as all sizes of their array are constants. Between two parts of the terms, y has the sums. So they have one order, whatever
 * the division into tasks.
 *
 * far_emit.c defines the positions of pointers and arguments, and MIN and MAX, the range of the activation, if there is one.
 */
#include <math.h>
#include <stdint.h>

#ifdef __ve__
#define WIDTH 256 /* floats of a vector */
#else
#define WIDTH 32
#endif
enum { ROWS = 8, GROUP = 64, TERMS = 128 };

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t parts(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* The part of the work that is left to divide: *rest modulo n. */
static inline int64_t take(int64_t *rest, int64_t n) {
    const int64_t at = *rest % n;
    *rest /= n;
    return at;
}

/* Rows and columns of y, and what makes them. Pointers are those of the unit's first row and column; NULL: none. */
struct unit {
    int64_t n_rows, n_columns, n_terms;
    const float *a;
    int64_t row_step;
    const float *x;               /* from which fill_terms copies b */
    int64_t first, first_channel; /* the first column of y, and channel of x's group */
    float *y;
    int64_t y_step; /* from row to row */
    const float *row_bias, *column_bias, *residual;
    int64_t residual_step;
};

/* ---- Images ---- */

#if defined KERNEL_CONV || defined KERNEL_WEIGHT
typedef struct {
    int64_t batch, x_stride, y_stride, h, w, oh, ow, c, k, groups, kh, kw, sh, sw, dh, dw, pt, pl;
    const float *scale, *shift; /* of the prologue */
} problem;

/* c and k are those of one group. If a point of y depends on the point of x at its place, an image is one row. */
static problem read_problem(void *const *ptr, const int64_t *arg) {
    const int64_t *side = arg + SIZES, *more = arg + IMAGES;
    problem m = {arg[BATCH], arg[X_STRIDE], arg[Y_STRIDE], side[0], side[1], side[2], side[3]};
    m.c = more[0], m.k = more[1], m.groups = more[2], m.kh = more[3], m.kw = more[4];
    m.sh = more[5], m.sw = more[6], m.dh = more[7], m.dw = more[8], m.pt = more[9], m.pl = more[10];
    m.scale = (const float *)ptr[SCALE], m.shift = (const float *)ptr[SHIFT];
    if (m.kh == 1 && m.kw == 1 && m.sh == 1 && m.sw == 1 && !m.pt && !m.pl && m.h == m.oh &&
        m.w == m.ow)
        m.w = m.ow = m.h * m.w, m.h = m.oh = 1;
    return m;
}

/* A point of the window, in a channel of x. */
struct point {
    int64_t channel, row, column; /* the latter: at y's pixel (0, 0) */
};

static inline struct point find_point(const problem *m, int64_t at) {
    struct point p;
    p.column = at % m->kw * m->dw - m->pl;
    p.row = at / m->kw % m->kh * m->dh - m->pt;
    p.channel = at / (m->kw * m->kh);
    return p;
}

/* Copies the values that n pixels of y, from `column` on in one row, have at a point: to[0], to[step], .. */
static inline void copy_row(const problem *m, const struct unit *u, const float *x, struct point p,
                            int64_t row, int64_t column, int64_t n, float *to, int64_t step) {
    const int64_t y = row * m->sh + p.row, first = column * m->sw + p.column;
    const int64_t channel = u->first_channel + p.channel;
    const float *from = x + (channel * m->h + y) * m->w + first;
    int64_t low = first < 0 ? least(n, (-first + m->sw - 1) / m->sw) : 0, high = n, j;
    if (first + (n - 1) * m->sw >= m->w) high = first >= m->w ? 0 : (m->w - 1 - first) / m->sw + 1;
    if (y < 0 || y >= m->h || high < low) low = high = n;
    for (j = 0; j < low; j++) to[j * step] = 0;
#ifdef PROLOGUE
    const float scale = m->scale[channel], shift = m->shift[channel];
    for (j = low; j < high; j++) {
        const float v = from[j * m->sw] * scale + shift;
        to[j * step] = v < PROLOGUE ? PROLOGUE : v;
    }
#else
    for (j = low; j < high; j++) to[j * step] = from[j * m->sw];
#endif
    for (j = high; j < n; j++) to[j * step] = 0;
}

/* The same for n pixels, which may be in several rows. */
static inline void copy_pixels(const problem *m, const struct unit *u, const float *x,
                               struct point p, int64_t pixel, int64_t n, float *to, int64_t step) {
    int64_t row = pixel / m->ow, column = pixel % m->ow, run;
    for (int64_t j = 0; j < n; j += run, row++, column = 0) {
        run = least(n - j, m->ow - column);
        copy_row(m, u, x, p, row, column, run, to + j * step, step);
    }
}
#endif

/* ---- Terms of a unit ---- */

#ifdef KERNEL_CONV
/* Terms [t, t + n). The weight's row is as long as there are terms. */
static void fill_terms(const problem *m, const struct unit *u, int64_t t, int64_t n,
                       int64_t *offset, float *b) {
    for (int64_t i = 0; i < n; i++) {
        offset[i] = t + i;
        copy_pixels(m, u, u->x, find_point(m, t + i), u->first, u->n_columns, b + i * WIDTH, 1);
    }
}
#endif

#ifdef KERNEL_WEIGHT
/* Terms of several images. The offset of a term is that of its pixel in dy. */
static void fill_terms(const problem *m, const struct unit *u, int64_t t, int64_t n,
                       int64_t *offset, float *b) {
    const int64_t pixels = m->oh * m->ow;
    int64_t run;
    for (int64_t i = 0; i < n; i += run) {
        const int64_t image = (t + i) / pixels, pixel = (t + i) % pixels;
        run = least(n - i, pixels - pixel);
        for (int64_t k = 0; k < run; k++) offset[i + k] = image * m->y_stride + pixel + k;
        for (int64_t j = 0; j < u->n_columns; j++)
            copy_pixels(m, u, u->x + image * m->x_stride, find_point(m, u->first + j), pixel, run,
                        b + i * WIDTH + j, WIDTH);
    }
}
#endif

#ifdef KERNEL_MATRIX
typedef struct {
    int64_t a_row, a_column, b_row, b_column, y_row, rows, columns, terms;
    int64_t n_products;
} problem;

/* Reads b along the dim in which it is dense. */
static void fill_terms(const problem *p, const struct unit *u, int64_t t, int64_t n,
                       int64_t *offset, float *b) {
    const float *from = u->x + t * p->b_row + u->first * p->b_column;
    int64_t i, j;
    for (i = 0; i < n; i++) offset[i] = (t + i) * p->a_column;
    if (p->b_column == 1)
        for (i = 0; i < n; i++)
            for (j = 0; j < u->n_columns; j++) b[i * WIDTH + j] = from[i * p->b_row + j];
    else
        for (j = 0; j < u->n_columns; j++)
            for (i = 0; i < n; i++) b[i * WIDTH + j] = from[i * p->b_row + j * p->b_column];
}
#endif

/* ---- Sums ---- */

/* Rows behind the last one are computed as if they were that one, and not stored. */
static void sum_tile(const struct unit *u, int64_t first, const int64_t *offset, const float *b,
                     int64_t n, float *sum) {
    const float *row[ROWS];
    float part[ROWS][WIDTH];
    for (int i = 0; i < ROWS; i++) {
        row[i] = u->a + least(first + i, u->n_rows - 1) * u->row_step;
        for (int j = 0; j < WIDTH; j++) part[i][j] = 0;
    }
    for (int64_t t = 0; t < n; t++) {
        const int64_t at = offset[t];
        for (int i = 0; i < ROWS; i++) {
            const float factor = row[i][at];
            for (int j = 0; j < WIDTH; j++) part[i][j] += factor * b[t * WIDTH + j];
        }
    }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < WIDTH; j++) sum[i * WIDTH + j] = part[i][j];
}

/* A NaN stays one. */
static inline float activate(float v) {
#ifdef MIN
    v = v < MIN ? MIN : v;
    v = v > MAX ? MAX : v;
#endif
    return v;
}

static void finish_row(const struct unit *u, int64_t i, float *y) {
    const float *residual = u->residual ? u->residual + i * u->residual_step : 0;
    const float bias = u->row_bias ? u->row_bias[i] : 0;
    int64_t j;
    if (u->column_bias)
        for (j = 0; j < u->n_columns; j++) y[j] += u->column_bias[j];
    if (residual)
        for (j = 0; j < u->n_columns; j++) y[j] += residual[j];
    for (j = 0; j < u->n_columns; j++) y[j] = activate(y[j] + bias);
}

static void store_tile(const struct unit *u, int64_t first, const float *sum, int is_first,
                       int is_last) {
    for (int64_t i = first; i < least(first + ROWS, u->n_rows); i++, sum += WIDTH) {
        float *y = u->y + i * u->y_step;
        for (int64_t j = 0; j < u->n_columns; j++) y[j] = is_first ? sum[j] : y[j] + sum[j];
        if (is_last) finish_row(u, i, y);
    }
}

/* Without terms, as without samples for the gradient of a weight, the sums are 0. */
static void run_unit(const problem *p, const struct unit *u) {
    float b[TERMS * WIDTH] = {0}, sum[ROWS * WIDTH];
    int64_t offset[TERMS];
    for (int64_t t = 0; !t || t < u->n_terms; t += TERMS) {
        const int64_t n = least(TERMS, u->n_terms - t);
        fill_terms(p, u, t, n, offset, b);
        for (int64_t i = 0; i < u->n_rows; i += ROWS) {
            sum_tile(u, i, offset, b, n, sum);
            store_tile(u, i, sum, !t, t + n >= u->n_terms);
        }
    }
}

/* ---- Kernels ---- */

/* Sets the rows and columns of a unit: parts of y that has `rows` rows and `columns` columns. */
static void place(struct unit *u, int64_t *rest, int64_t rows, int64_t columns,
                  int64_t *first_row) {
    u->first = take(rest, parts(columns, WIDTH)) * WIDTH;
    *first_row = take(rest, parts(rows, GROUP)) * GROUP;
    u->n_columns = least(WIDTH, columns - u->first);
    u->n_rows = least(GROUP, rows - *first_row);
}

static inline int64_t count_units(int64_t rows, int64_t columns) {
    return parts(rows, GROUP) * parts(columns, WIDTH);
}

#ifdef KERNEL_CONV
static int64_t count_all(const problem *m) {
    return m->batch * m->groups * count_units(m->k, m->oh * m->ow);
}

static struct unit find_unit(const problem *m, void *const *ptr, const int64_t *arg, int64_t rest) {
    const int64_t terms = m->c * m->kh * m->kw, pixels = m->oh * m->ow;
    struct unit u = {0};
    int64_t row;
    (void)arg;
    place(&u, &rest, m->k, pixels, &row);
    const int64_t group = take(&rest, m->groups), channel = group * m->k + row;
    u.n_terms = u.row_step = terms;
    u.a = (const float *)ptr[WEIGHT] + channel * terms;
    u.x = (const float *)ptr[X] + rest * m->x_stride;
    u.first_channel = group * m->c;
    u.y = (float *)ptr[Y] + rest * m->y_stride + channel * pixels + u.first;
    u.y_step = pixels;
    if (ptr[BIAS]) u.row_bias = (const float *)ptr[BIAS] + channel;
    return u;
}
#endif

#ifdef KERNEL_WEIGHT
static int64_t count_all(const problem *m) {
    return m->groups * count_units(m->k, m->c * m->kh * m->kw);
}

static struct unit find_unit(const problem *m, void *const *ptr, const int64_t *arg, int64_t rest) {
    const int64_t columns = m->c * m->kh * m->kw, pixels = m->oh * m->ow;
    struct unit u = {0};
    int64_t row;
    (void)arg;
    place(&u, &rest, m->k, columns, &row);
    const int64_t channel = rest * m->k + row;
    u.n_terms = m->batch * pixels;
    u.a = (const float *)ptr[WEIGHT] + channel * pixels;
    u.row_step = pixels;
    u.x = (const float *)ptr[X];
    u.first_channel = rest * m->c;
    u.y = (float *)ptr[Y] + channel * columns + u.first;
    u.y_step = columns;
    return u;
}
#endif

#ifdef KERNEL_MATRIX
static int64_t count_all(const problem *p) {
    return p->n_products * count_units(p->rows, p->columns);
}

/* The number of products, or of rows if there is one product only, follows from the rows of all. */
static problem read_problem(void *const *ptr, const int64_t *arg) {
    const int64_t *m = arg + SIZES;
    problem p = {m[A_ROW],     m[A_COLUMN],      m[B_ROW], m[B_COLUMN], m[Y_ROW], m[N_ROWS],
                 arg[COLUMNS], arg[COLUMNS + 1], 1};
    (void)ptr;
    if (!m[DIMS]) p.rows = arg[BATCH];
    else p.n_products = p.rows ? arg[BATCH] / p.rows : 0;
    return p;
}

/* Dim 0 is the outermost one, whose size is not looked at. */
static struct unit find_unit(const problem *p, void *const *ptr, const int64_t *arg, int64_t rest) {
    struct unit u = {0};
    int64_t row, a = 0, b = 0, y = 0, n_dims = 0;
    place(&u, &rest, p->rows, p->columns, &row);
    const int64_t dense = (rest * p->rows + row) * p->columns + u.first, *dim = arg + SIZES + DIMS;
    while (n_dims < MAX_DIMS && dim[n_dims * DIM_FIELDS]) n_dims++;
    for (dim += (n_dims - 1) * DIM_FIELDS; n_dims; dim -= DIM_FIELDS) {
        const int64_t at = --n_dims ? take(&rest, dim[0]) : rest;
        a += at * dim[1], b += at * dim[2], y += at * dim[3];
    }
    u.n_terms = p->terms;
    u.a = (const float *)ptr[X] + a + row * p->a_row;
    u.row_step = p->a_row;
    u.x = (const float *)ptr[WEIGHT] + b;
    u.y = (float *)ptr[Y] + y + row * p->y_row + u.first;
    u.y_step = p->y_row;
    if (ptr[BIAS]) u.column_bias = (const float *)ptr[BIAS] + u.first;
    if (ptr[RESIDUAL]) u.residual = (const float *)ptr[RESIDUAL] + dense;
    u.residual_step = p->columns;
    return u;
}
#endif

#ifndef LIBRARY
void SOL_KERNEL(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end) {
    const problem p = read_problem(ptr, arg);
    const int64_t n = count_all(&p);
    (void)scratch;
    for (int64_t i = n * begin / TASKS; i < n * end / TASKS; i++) {
        const struct unit u = find_unit(&p, ptr, arg, i);
        run_unit(&p, &u);
    }
}
#else
/* Another text follows, which calls a library for all products or images, in one task. It returns 0 and leaves the rest to `finish`, bias,
 * residual and activation; or not 0 where the library cannot compute it, which may be known only now, and has stored nothing that counts. */
static int run_library(const problem *p, void *const *ptr, const int64_t *arg);
static void finish(const problem *p, void *const *ptr, const int64_t *arg);

static void run_units(const problem *p, void *const *ptr, const int64_t *arg) {
    const int64_t n = count_all(p);
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < n; i++) {
        const struct unit u = find_unit(p, ptr, arg, i);
        run_unit(p, &u);
    }
}

void SOL_KERNEL(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end) {
    const problem p = read_problem(ptr, arg);
    (void)scratch;
    if (begin == end) return;
    if (arg[BATCH] && !run_library(&p, ptr, arg)) finish(&p, ptr, arg);
    else run_units(&p, ptr, arg);
}
#endif

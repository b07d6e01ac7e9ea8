/*
 * The resample step: weighted sums of few elements along one or two dims, such as resized images.
 *
 *   plan/build.c makes the step -> resample_run: a task is a piece of one plane
 *
 * x is [outer][rows][columns][inner]. A row of the input is resampled along its columns once, into a ring of as many rows as an output row
 * reads. Output rows are then weighted sums of rows in the ring, with vectors over all columns.
 *
 * The columns of an output row in groups of GROUP read a few neighbors of the input: where these are in one window of GROUP elements,
 * a vector loads the window once, and each tap is a permutation of it. Indices and weights of groups are prepared once per call of
 * resample_run.
 *
 * Invariant: indices are untrusted, so each is checked. One outside of the dim fails the call.
 */
#include "run/program.h"

#include <string.h>
#if defined __x86_64__ && defined __GNUC__ && \
    !defined WITHOUT_AVX2 /* a test compiles this file twice */
#include <immintrin.h>
#define HAS_AVX2 (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#define AVX2 __attribute__((target("avx2,fma")))
#else
#define HAS_AVX2 0
#endif

#define GROUP 8
#define PIECE 32 /* output rows of a task */

static int64_t resample_n_tasks(const struct step *step, const int64_t *arg) {
    (void)step;
    return arg[RESAMPLE_OUTER] * ceil_div(arg[RESAMPLE_ROWS], PIECE);
}

/* What a call of resample_run prepares. */
struct resampling {
    const int64_t *arg;
    int taps[2]; /* of rows and columns; 0: the dim stays as it is */
    int32_t *index
        [2]; /* [tap][n], in elements of the dim; columns in groups: [group][tap][GROUP], relative to the window */
    float *weight;       /* of columns, like index[1] */
    int32_t *window;     /* by group: its first element; -1: indices are relative to the row */
    int64_t row, stride; /* elements of an output row, and from row to row in the ring */
    float *ring, *narrow;
    int64_t in_ring[RESAMPLE_TAPS]; /* by place in the ring: number of the input row, or -1 */
};

/* ---- Preparation ---- */

/* Reads the indices of a dim of `size` elements: [taps][n]. */
static bool read_indices(const void *numbers, int64_t element, int64_t n, int64_t size,
                         int32_t *out) {
    for (int64_t i = 0; i < n; i++) {
        const int64_t at =
            element == 8 ? ((const int64_t *)numbers)[i] : (int64_t)((const int32_t *)numbers)[i];
        if (at < 0 || at >= size) {
            exec_fail(
                fail(SOL_EINDEX, "resample: " TAP_NUMBER_MESSAGE, (long long)at, (long long)size));
            return false;
        }
        out[i] = (int32_t)at;
    }
    return true;
}

/* The window of a group: its first element, or -1 if its elements are further apart. */
static int32_t find_window(const int32_t *index, int n, int64_t size) {
    int32_t low = index[0], high = index[0];
    for (int i = 1; i < n; i++) {
        if (index[i] < low) low = index[i];
        if (index[i] > high) high = index[i];
    }
    low = (int32_t)max_i64(0, min_i64(low, size - GROUP));
    return high - low < GROUP ? low : -1;
}

/* Brings the indices and weights of columns into groups. Columns beyond the last one repeat it. */
static void make_groups(struct resampling *r, const int32_t *index, const float *weight) {
    const int64_t n = r->arg[RESAMPLE_COLUMNS], taps = r->taps[1];
    for (int64_t g = 0; g * GROUP < n; g++) {
        int32_t *to = r->index[1] + g * taps * GROUP;
        for (int64_t i = 0; i < taps * GROUP; i++) {
            const int64_t from = i / GROUP * n + min_i64(g * GROUP + i % GROUP, n - 1);
            to[i] = index[from];
            r->weight[g * taps * GROUP + i] = weight[from];
        }
        r->window[g] = find_window(to, (int)(taps * GROUP), r->arg[RESAMPLE_COLUMNS_IN]);
        for (int64_t i = 0; i < taps * GROUP && r->window[g] >= 0; i++) to[i] -= r->window[g];
    }
}

/* ---- Vectors ---- */

typedef float vec4 __attribute__((vector_size(16), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))

/* out[i] = sum over taps of weight[tap] * row[tap][i]; T is a vector or a float. */
#define SUM_ROWS(T)                                                                           \
    INLINE int64_t sum_rows_##T(int taps, int64_t i, int64_t n, const float *const *row,      \
                                const float *weight, float *out) {                            \
        for (; i + (int64_t)(sizeof(T) / sizeof(float)) <= n; i += sizeof(T) / sizeof(float)) { \
            T sum = weight[0] * *(const T *)(row[0] + i);                                     \
            for (int k = 1; k < taps; k++) sum += weight[k] * *(const T *)(row[k] + i);       \
            *(T *)(out + i) = sum;                                                            \
        }                                                                                     \
        return i;                                                                             \
    }
SUM_ROWS(vec4)
SUM_ROWS(float)

static void sum_rows(int taps, int64_t n, const float *const *row, const float *weight,
                     float *out) {
    int64_t i = taps == 2   ? sum_rows_vec4(2, 0, n, row, weight, out)
                : taps == 4 ? sum_rows_vec4(4, 0, n, row, weight, out)
                            : sum_rows_vec4(taps, 0, n, row, weight, out);
    sum_rows_float(taps, i, n, row, weight, out);
}

static void sum_group(const struct resampling *r, int64_t g, const float *in, float *out) {
    const int taps = r->taps[1];
    const int32_t *index = r->index[1] + g * taps * GROUP;
    const float *weight = r->weight + g * taps * GROUP;
    if (r->window[g] >= 0) in += r->window[g];
    for (int l = 0; l < GROUP; l++) {
        float sum = weight[l] * in[index[l]];
        for (int k = 1; k < taps; k++) sum += weight[k * GROUP + l] * in[index[k * GROUP + l]];
        out[l] = sum;
    }
}

static void sum_groups(const struct resampling *r, const float *in, float *out) {
    for (int64_t g = 0; g * GROUP < r->row; g++) sum_group(r, g, in, out + g * GROUP);
}

#ifdef AVX2
typedef float vec8 __attribute__((vector_size(32), aligned(4), may_alias));

/* As sum_rows; `taps` is a constant where this is inlined. Copies of rows and weights stay in registers. */
AVX2 INLINE void sum_rows8(int taps, int64_t n, const float *const *row, const float *weights,
                           float *out) {
    const float *from[RESAMPLE_TAPS];
    float weight[RESAMPLE_TAPS];
    int64_t i = 0;
    _Pragma("GCC unroll 4") for (int k = 0; k < taps; k++) {
        from[k] = row[k];
        weight[k] = weights[k];
    }
    for (; i + 8 <= n; i += 8) {
        vec8 sum = weight[0] * *(const vec8 *)(from[0] + i);
        _Pragma("GCC unroll 4") for (int k = 1; k < taps; k++) sum +=
            weight[k] * *(const vec8 *)(from[k] + i);
        *(vec8 *)(out + i) = sum;
    }
    sum_rows_float(taps, i, n, from, weight, out);
}

AVX2 static void sum_rows_avx2(int taps, int64_t n, const float *const *row, const float *weight,
                               float *out) {
    if (taps == 2) sum_rows8(2, n, row, weight, out);
    else if (taps == 4) sum_rows8(4, n, row, weight, out);
    else sum_rows8(taps, n, row, weight, out);
}

/* The sums of a group whose elements are in one window. */
AVX2 INLINE void sum_window(int taps, __m256 x, const int32_t *index, const float *weight,
                            float *out) {
    __m256 sum = _mm256_setzero_ps();
    _Pragma("GCC unroll 4") for (int k = 0; k < taps; k++) {
        const __m256i lanes = _mm256_loadu_si256((const __m256i *)(index + k * GROUP));
        sum = _mm256_fmadd_ps(_mm256_loadu_ps(weight + k * GROUP),
                              _mm256_permutevar8x32_ps(x, lanes), sum);
    }
    _mm256_storeu_ps(out, sum);
}

AVX2 static void sum_groups_avx2(const struct resampling *r, const float *in, float *out) {
    const int taps = r->taps[1];
    const int32_t *index = r->index[1];
    const float *weight = r->weight;
    for (int64_t g = 0; g * GROUP < r->row; g++, out += GROUP) {
        if (r->window[g] < 0) sum_group(r, g, in, out);
        else if (taps == 2) sum_window(2, _mm256_loadu_ps(in + r->window[g]), index, weight, out);
        else if (taps == 4) sum_window(4, _mm256_loadu_ps(in + r->window[g]), index, weight, out);
        else sum_window(taps, _mm256_loadu_ps(in + r->window[g]), index, weight, out);
        index += taps * GROUP, weight += taps * GROUP;
    }
}
#endif

/* ---- Rows ---- */

static void add_rows(int taps, int64_t n, const float *const *row, const float *weight,
                     float *out) {
#ifdef AVX2
    if (HAS_AVX2) {
        sum_rows_avx2(taps, n, row, weight, out);
        return;
    }
#endif
    sum_rows(taps, n, row, weight, out);
}

/* Columns of several elements each, such as the channels of a pixel. */
static void resample_pixels(const struct resampling *r, const float *in, float *out) {
    const int64_t inner = r->arg[RESAMPLE_INNER], columns = r->arg[RESAMPLE_COLUMNS];
    const int taps = r->taps[1];
    const float *from[RESAMPLE_TAPS];
    float weight[RESAMPLE_TAPS];
    for (int64_t c = 0; c < columns; c++) {
        const int64_t at = c / GROUP * taps * GROUP + c % GROUP, first = r->window[c / GROUP];
        for (int k = 0; k < taps; k++) {
            from[k] = in + (r->index[1][at + k * GROUP] + max_i64(0, first)) * inner;
            weight[k] = r->weight[at + k * GROUP];
        }
        add_rows(taps, inner, from, weight, out + c * inner);
    }
}

/* Resamples the columns of a row; `out` has space for whole groups. */
static void resample_row(const struct resampling *r, const float *in, float *out) {
    const int64_t columns = r->arg[RESAMPLE_COLUMNS_IN];
    if (r->arg[RESAMPLE_INNER] > 1) {
        resample_pixels(r, in, out);
        return;
    }
    if (columns < GROUP) /* a window may be longer than the row */
        in = memcpy(r->narrow, in, (size_t)columns * sizeof *in);
#ifdef AVX2
    if (HAS_AVX2) {
        sum_groups_avx2(r, in, out);
        return;
    }
#endif
    sum_groups(r, in, out);
}

/* The place of input row `number` in the ring, which output row `i` reads. */
static const float *find_row(struct resampling *r, const float *plane, int64_t number, int64_t i) {
    const int64_t *arg = r->arg, n = arg[RESAMPLE_ROWS];
    int place = 0;
    for (int p = 0; p < r->taps[0]; p++)
        if (r->in_ring[p] == number) return r->ring + p * r->stride;
    for (int k = 0; k < r->taps[0]; k++) /* a row that is still needed stays */
        if (r->in_ring[place] >= 0 && r->in_ring[place] == r->index[0][k * n + i]) place++, k = -1;
    r->in_ring[place] = number;
    float *to = r->ring + place * r->stride;
    resample_row(r, plane + number * arg[RESAMPLE_COLUMNS_IN] * arg[RESAMPLE_INNER], to);
    return to;
}

static void resample_rows(struct resampling *r, const float *weights, const float *plane,
                          float *out, int64_t begin, int64_t end) {
    const int64_t n = r->arg[RESAMPLE_ROWS];
    const float *row[RESAMPLE_TAPS];
    float weight[RESAMPLE_TAPS];
    for (int p = 0; p < RESAMPLE_TAPS; p++) r->in_ring[p] = -1;
    for (int64_t i = begin; i < end; i++) {
        for (int k = 0; k < r->taps[0]; k++) {
            const int64_t number = r->index[0][k * n + i];
            row[k] = r->taps[1] ? find_row(r, plane, number, i) : plane + number * r->row;
            weight[k] = weights[k * n + i];
        }
        add_rows(r->taps[0], r->row, row, weight, out + i * r->row);
    }
}

static void run_piece(struct resampling *r, void *const *ptr, int64_t task) {
    const int64_t *arg = r->arg, rows = arg[RESAMPLE_ROWS], pieces = ceil_div(rows, PIECE),
                  o = task / pieces, begin = task % pieces * PIECE,
                  end = min_i64(begin + PIECE, rows), planes = arg[RESAMPLE_PLANES];
    const int64_t row_in = arg[RESAMPLE_COLUMNS_IN] * arg[RESAMPLE_INNER];
    const float *in = (const float *)ptr[0] + o / planes * arg[RESAMPLE_IN_STRIDE] +
                      o % planes * arg[RESAMPLE_ROWS_IN] * row_in;
    float *out =
        (float *)ptr[1] + o / planes * arg[RESAMPLE_OUT_STRIDE] + o % planes * rows * r->row;
    if (r->taps[0]) {
        resample_rows(r, ptr[3], in, out, begin, end);
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        resample_row(r, in + i * row_in, r->ring);
        memcpy(out + i * r->row, r->ring, (size_t)r->row * sizeof *out);
    }
}

/* ---- The step ---- */

static bool prepare(struct resampling *r, void *const *ptr, int32_t *number) {
    const int64_t *arg = r->arg, rows = r->taps[0] * arg[RESAMPLE_ROWS],
                  columns = r->taps[1] * arg[RESAMPLE_COLUMNS];
    int32_t *unsorted = number + rows;
    r->index[0] = number;
    r->index[1] = unsorted + columns;
    if (!read_indices(ptr[2], arg[RESAMPLE_INDEX_SIZE], rows, arg[RESAMPLE_ROWS_IN], number) ||
        !read_indices(ptr[4], arg[RESAMPLE_INDEX_SIZE], columns, arg[RESAMPLE_COLUMNS_IN],
                      unsorted))
        return false;
    if (columns) make_groups(r, unsorted, ptr[5]);
    return true;
}

static void resample_run(const struct step *step, void *const *ptr, const int64_t *arg,
                         void *scratch, int64_t begin, int64_t end) {
    (void)scratch;
    struct resampling r = {.arg = arg,
                           .taps = {(int)arg[RESAMPLE_ROW_TAPS], (int)arg[RESAMPLE_COLUMN_TAPS]}};
    const int64_t groups = ceil_div(arg[RESAMPLE_COLUMNS], GROUP),
                  columns = r.taps[1] * arg[RESAMPLE_COLUMNS],
                  grouped = r.taps[1] ? groups * r.taps[1] * GROUP : 0;
    r.row = arg[RESAMPLE_COLUMNS] * arg[RESAMPLE_INNER];
    r.stride = round_up(r.row, GROUP) + GROUP;
    const int64_t numbers = r.taps[0] * arg[RESAMPLE_ROWS] + columns + grouped + groups,
                  floats = grouped + max_i64(1, r.taps[0]) * r.stride + GROUP;
    int32_t *memory = mem_alloc((size_t)(numbers + floats) * sizeof *memory, 64);
    if (!memory) {
        exec_fail(fail(SOL_ENOMEM, "%s: out of memory", step->layers));
        return;
    }
    r.weight = (float *)(memory + numbers);
    r.window = memory + numbers - groups;
    r.ring = r.weight + grouped;
    r.narrow = r.ring + max_i64(1, r.taps[0]) * r.stride;
    if (prepare(&r, ptr, memory))
        for (int64_t task = begin; task < end; task++) run_piece(&r, ptr, task);
    mem_free(memory);
}

const struct step_kind step_resample = {
    .name = "resample", .run = resample_run, .n_tasks = resample_n_tasks};

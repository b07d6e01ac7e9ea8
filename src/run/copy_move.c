/*
 * Moves values by the form of a copy: copy_form.h.
 *
 * A task is one part, or COPY_BLOCK rows of it. Elements are moved as bits, so one function serves all types of a size. Blocks of rows and
 * columns of 4 bytes are turned in registers: of a matrix that is turned, one side is read or written with large strides, and each
 * line of the cache is touched once only if all its elements are used at once.
 */
#include "run/copy_form.h"

#include <string.h>
#if defined __x86_64__ && defined __GNUC__ && \
    !defined WITHOUT_AVX2 /* a test compiles this file twice */
#include <immintrin.h>
#define HAS_AVX2 __builtin_cpu_supports("avx2")
#define AVX2 __attribute__((target("avx2")))
#else
#define HAS_AVX2 0
#endif

int64_t copy_form_n_tasks(const struct copy_form *f) {
    return f->n_parts * ceil_div(f->n_rows, COPY_BLOCK);
}

/* ---- Runs ---- */

/* Short runs do not pay for a call of memcpy. */
static inline void copy_short(char *out, const char *in, int64_t n) {
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) memcpy(out + i, in + i, 32);
    if (i == n) return;
    if (n >= 32) memcpy(out + n - 32, in + n - 32, 32);
    else memcpy(out + i, in + i, (size_t)(n - i));
}

static void move_runs(const struct copy_form *f, const int32_t *run, int64_t element,
                      const char *in, char *out) {
    for (const int32_t *end = run + f->n_more; run < end; run += 3) {
        char *to = out + run[0] * element;
        const int64_t n = run[2] * element;
        if (run[1] == COPY_NONE) memset(to, 0, (size_t)n);
        else if (n <= 512) copy_short(to, in + run[1] * element, n);
        else memcpy(to, in + run[1] * element, (size_t)n);
    }
}

/* ---- Single elements ---- */

/* move_block turns rows [0, n) and columns [begin, end). */
#define MOVE(T)                                                                               \
    static void move_elements_##T(const struct copy_form *f, const int32_t *restrict column,  \
                                  const T *restrict in, T *restrict out) {                    \
        for (int c = 0; c < f->n_columns; c++)                                                \
            out[c] = column[c] == COPY_NONE ? 0 : in[column[c]];                              \
    }                                                                                         \
    static void move_block_##T(int64_t step, const int32_t *restrict column, int begin,       \
                               int end, int n, const T *restrict in, T *restrict out) {       \
        for (int c = begin; c < end; c++)                                                     \
            for (int r = 0; r < n; r++)                                                       \
                out[r * step + c] = column[c] == COPY_NONE ? 0 : in[column[c] + r];           \
    }
MOVE(uint8_t)
MOVE(uint16_t)
MOVE(uint32_t)
MOVE(uint64_t)

/* ---- Vectors of 4-byte elements ---- */

#ifdef AVX2
AVX2 static void move_windows(const struct copy_form *f, const int32_t *column,
                              const int32_t *window, const int32_t *in, int32_t *out) {
    const __m256i none = _mm256_set1_epi32(COPY_NONE);
    const int last = f->n_columns - COPY_WINDOW;
    for (int w = 0; w < f->n_more; w++) {
        const int c = w * COPY_WINDOW < last ? w * COPY_WINDOW : last;
        const __m256i at = _mm256_loadu_si256((const __m256i *)(column + c)),
                      lane = _mm256_sub_epi32(at, _mm256_set1_epi32(window[w])),
                      x = _mm256_loadu_si256((const __m256i *)(in + window[w])),
                      y = _mm256_permutevar8x32_epi32(x, lane);
        _mm256_storeu_si256((__m256i *)(out + c),
                            _mm256_and_si256(y, _mm256_cmpgt_epi32(at, none)));
    }
}

/* Four elements of a column, and of the column four further. */
AVX2 static inline __m256 load_pair(const float *in, const int32_t *column) {
    static const float zero[COPY_WINDOW];
    const float *a = column[0] == COPY_NONE ? zero : in + column[0],
                *b = column[4] == COPY_NONE ? zero : in + column[4];
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b), 1);
}

/* Four rows of eight columns, from four elements of each column. */
AVX2 static inline void turn_rows(const float *in, const int32_t *column, float *out,
                                  int64_t step) {
    const __m256 a = load_pair(in, column), b = load_pair(in, column + 1),
                 c = load_pair(in, column + 2), d = load_pair(in, column + 3),
                 ab = _mm256_unpacklo_ps(a, b), ab2 = _mm256_unpackhi_ps(a, b),
                 cd = _mm256_unpacklo_ps(c, d), cd2 = _mm256_unpackhi_ps(c, d);
    _mm256_storeu_ps(out, _mm256_shuffle_ps(ab, cd, 0x44));
    _mm256_storeu_ps(out + step, _mm256_shuffle_ps(ab, cd, 0xee));
    _mm256_storeu_ps(out + 2 * step, _mm256_shuffle_ps(ab2, cd2, 0x44));
    _mm256_storeu_ps(out + 3 * step, _mm256_shuffle_ps(ab2, cd2, 0xee));
}

/* Sixteen rows, so that a line of 64 bytes is read at once. The last columns overlap those before. */
AVX2 static void turn_blocks(const struct copy_form *f, const int32_t *column, int n,
                             const float *in, float *out) {
    for (int c = 0; c < f->n_columns; c += COPY_WINDOW) {
        const int at = c + COPY_WINDOW > f->n_columns ? f->n_columns - COPY_WINDOW : c;
        for (int r = 0; r < n; r += 4)
            turn_rows(in + r, column + at, out + r * f->row_step + at, f->row_step);
    }
}
#endif

/* ---- Tasks ---- */

static bool is_consecutive(const int32_t *row, int n) {
    for (int i = 1; i < n; i++)
        if (row[i] != row[0] + i) return false;
    return true;
}

static void move_rows(const struct copy_form *f, int element, const int32_t *column, int n,
                      const char *in, char *out) {
    const int end = f->n_columns;
    const int64_t step = f->row_step;
    switch (element) {
    case 1: move_block_uint8_t(step, column, 0, end, n, (const void *)in, (void *)out); break;
    case 2: move_block_uint16_t(step, column, 0, end, n, (const void *)in, (void *)out); break;
    case 4: move_block_uint32_t(step, column, 0, end, n, (const void *)in, (void *)out); break;
    default: move_block_uint64_t(step, column, 0, end, n, (const void *)in, (void *)out); break;
    }
}

/* Moves rows [begin, end) of a part, as many at once as are consecutive in the input. */
static void turn(const struct copy_form *f, int element, const int32_t *row, int begin, int end,
                 const char *in, char *out) {
    const int32_t *column = copy_form_column(f);
    const bool fits = element == 4 && f->n_columns >= COPY_WINDOW && HAS_AVX2;
    for (int r = begin, n; r < end; r += n) {
        const char *from = in + (int64_t)row[r] * element;
        char *to = out + r * f->row_step * element;
        n = end - r;
        while (!is_consecutive(row + r, n)) n--;
#ifdef AVX2
        if (fits && n >= 4) {
            n -= n % 4;
            turn_blocks(f, column, n, (const void *)from, (void *)to);
            continue;
        }
#endif
        (void)fits;
        move_rows(f, element, column, n, from, to);
    }
}

static void move_columns(const struct copy_form *f, int element, const char *in, char *out) {
    const int32_t *column = copy_form_column(f);
    if (f->kind == COPY_RUNS) {
        move_runs(f, copy_form_more(f), element, in, out);
        return;
    }
#ifdef AVX2
    if (f->kind == COPY_WINDOWS && HAS_AVX2) {
        move_windows(f, column, copy_form_more(f), (const void *)in, (void *)out);
        return;
    }
#endif
    switch (element) {
    case 1: move_elements_uint8_t(f, column, (const void *)in, (void *)out); break;
    case 2: move_elements_uint16_t(f, column, (const void *)in, (void *)out); break;
    case 4: move_elements_uint32_t(f, column, (const void *)in, (void *)out); break;
    default: move_elements_uint64_t(f, column, (const void *)in, (void *)out); break;
    }
}

static void clear_rows(const struct copy_form *f, int element, int begin, int end, char *out) {
    for (int r = begin; r < end; r++)
        memset(out + r * f->row_step * element, 0, (size_t)(f->n_columns * element));
}

void copy_form_run(const struct copy_form *f, int element, const void *in, void *out, int64_t begin,
                   int64_t end) {
    const int blocks = (int)ceil_div(f->n_rows, COPY_BLOCK);
    const int32_t *from = f->number, *to = copy_form_to(f), *row = copy_form_row(f);
    for (int64_t task = begin, p = begin / blocks, b = begin % blocks; task < end; task++) {
        const char *part = (const char *)in + (int64_t)from[p] * element;
        char *at = (char *)out + (int64_t)to[p] * element;
        const int first = (int)b * COPY_BLOCK, last = (int)min_i64(first + COPY_BLOCK, f->n_rows);
        if (from[p] < 0) clear_rows(f, element, first, last, at);
        else if (f->kind == COPY_TURNED) turn(f, element, row, first, last, part, at);
        else move_columns(f, element, part, at);
        if (++b == blocks) b = 0, p++;
    }
}

/*
 * Moves values by the form of a copy: copy_form.h.
 *
 * A task is one part, or a block of rows of it. Elements are moved as bits, so one function serves all types of a size. Blocks of rows and
 * columns are turned in registers: of a matrix that is turned, one side is read or written with large strides, and each
 * line of the cache is touched once only if all its elements are used at once.
 */
#include "run/copy_form.h"

#include <string.h>

#define FEW_BLOCKS 4
#define INLINE static inline __attribute__((always_inline))
#if defined __x86_64__ && defined __GNUC__ && \
    !defined WITHOUT_AVX2 /* a test compiles this file twice */
#include <immintrin.h>
#define HAS_AVX2 __builtin_cpu_supports("avx2")
#define AVX2 __attribute__((target("avx2")))
#else
#define HAS_AVX2 0
#endif

/* Parts that are turned are divided by columns, too, if they have few rows, as an image whose few channels are its innermost dim; the
 * last block has the rest. If there are tasks enough without it, this is no faster. */
static int count_column_blocks(const struct copy_form *f) {
    const bool is_divided = f->kind == COPY_TURNED && f->n_rows < FEW_BLOCKS * f->block;
    return is_divided && f->n_columns > COPY_COLUMNS ? f->n_columns / COPY_COLUMNS : 1;
}

int64_t copy_form_n_tasks(const struct copy_form *f) {
    return (int64_t)f->n_parts * ceil_div(f->n_rows, f->block) * count_column_blocks(f);
}

/* The columns of a part that a task turns. */
struct block {
    const int32_t *column;
    int n_columns;
    bool has_holes;
    int64_t row_step;
};

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

/* ---- Runs ---- */

#define LONG_RUN 4096 /* bytes: memcpy moves longer ones faster */

static void move_runs(const struct copy_form *f, int64_t element, const char *in, char *out) {
    const int32_t *run = copy_form_more(f);
    for (const int32_t *end = run + f->n_more; run < end; run += 3) {
        char *to = out + run[0] * element;
        const int64_t n = run[2] * element;
        if (run[1] == COPY_NONE) memset(to, 0, (size_t)n);
        else memcpy(to, in + run[1] * element, (size_t)n);
    }
}

/* Half of a run of n bytes is `half` at least: two moves, which may overlap. Of a constant size, a move is one instruction. */
INLINE void move_halves(const char *in, char *out, int64_t n, size_t half) {
    char a[16], b[16];
    memcpy(a, in, half), memcpy(b, in + n - half, half);
    memcpy(out, a, half), memcpy(out + n - half, b, half);
}

/* Up to 31 bytes. */
INLINE void move_short(const char *in, char *out, int64_t n) {
    if (n >= 16) move_halves(in, out, n, 16);
    else if (n >= 8) move_halves(in, out, n, 8);
    else if (n >= 4) move_halves(in, out, n, 4);
    else if (n >= 2) move_halves(in, out, n, 2);
    else if (n) *out = *in;
}

/* ---- Vectors ---- */

#ifdef AVX2
/* At least 32 bytes; the last ones overlap those before. */
AVX2 INLINE void move_run(const char *in, char *out, int64_t n) {
    for (int64_t i = 0; i < n - 32; i += 32)
        _mm256_storeu_si256((__m256i *)(out + i), _mm256_loadu_si256((const __m256i *)(in + i)));
    _mm256_storeu_si256((__m256i *)(out + n - 32),
                        _mm256_loadu_si256((const __m256i *)(in + n - 32)));
}

AVX2 INLINE void move_bytes(const char *in, char *out, int64_t n) {
    if (n < 32) move_short(in, out, n);
    else if (n <= LONG_RUN) move_run(in, out, n);
    else memcpy(out, in, (size_t)n);
}

/* Clears, or moves, the runs of parts [begin, end). */
AVX2 static void move_all_runs(const struct copy_form *f, int64_t element, const char *in,
                               char *out, int64_t begin, int64_t end) {
    const int32_t *from = f->number, *to = copy_form_to(f), *runs = copy_form_more(f);
    for (int64_t p = begin; p < end; p++) {
        const char *part = in + from[p] * element;
        char *at = out + to[p] * element;
        if (from[p] < 0) {
            memset(at, 0, (size_t)(f->n_columns * element));
            continue;
        }
        for (const int32_t *run = runs; run < runs + f->n_more; run += 3) {
            const int64_t n = run[2] * element;
            if (run[1] == COPY_NONE) memset(at + run[0] * element, 0, (size_t)n);
            else move_bytes(part + run[1] * element, at + run[0] * element, n);
        }
    }
}

/* The places of eight columns in their window, as numbers of 16 bits; -1: it is 0. */
AVX2 INLINE __m128i find_short(const int32_t *column, int32_t window) {
    const __m256i at = _mm256_loadu_si256((const __m256i *)column),
                  none = _mm256_cmpeq_epi32(at, _mm256_set1_epi32(COPY_NONE)),
                  lane = _mm256_or_si256(_mm256_sub_epi32(at, _mm256_set1_epi32(window)), none);
    return _mm_packs_epi32(_mm256_castsi256_si128(lane), _mm256_extracti128_si256(lane, 1));
}

/* The places of four columns of 8 bytes, as pairs of 4 bytes. */
AVX2 INLINE __m256i find_pairs(const int32_t *column, int32_t window) {
    const __m128i at = _mm_loadu_si128((const __m128i *)column);
    const __m256i first =
        _mm256_slli_epi64(_mm256_cvtepu32_epi64(_mm_sub_epi32(at, _mm_set1_epi32(window))), 1);
    return _mm256_or_si256(first,
                           _mm256_slli_epi64(_mm256_add_epi64(first, _mm256_set1_epi64x(1)), 32));
}

/* What move_window needs to know of a window's columns. `element` is a constant where this is inlined. */
AVX2 INLINE __m256i find_lanes(int element, const int32_t *column, int32_t window) {
    if (element == 4)
        return _mm256_sub_epi32(_mm256_loadu_si256((const __m256i *)column),
                                _mm256_set1_epi32(window));
    if (element == 8) return find_pairs(column, window);
    const __m128i lane = find_short(column, window);
    if (element == 1)
        return _mm256_castsi128_si256(_mm_packs_epi16(lane, find_short(column + 8, window)));
    return _mm256_castsi128_si256(
        _mm_add_epi16(_mm_mullo_epi16(lane, _mm_set1_epi16(0x202)), _mm_set1_epi16(0x100)));
}

/* The bits of columns that are not 0. Shuffles of bytes make zeros by themselves. */
AVX2 INLINE __m256i find_present(int element, const int32_t *column) {
    if (element == 4)
        return _mm256_cmpgt_epi32(_mm256_loadu_si256((const __m256i *)column),
                                  _mm256_set1_epi32(COPY_NONE));
    return _mm256_cvtepi32_epi64(
        _mm_cmpgt_epi32(_mm_loadu_si128((const __m128i *)column), _mm_set1_epi32(COPY_NONE)));
}

AVX2 INLINE void move_window(int element, const char *in, __m256i lane, __m256i present,
                             char *out) {
    if (element < 4) {
        const __m128i x = _mm_loadu_si128((const __m128i *)in);
        _mm_storeu_si128((__m128i *)out, _mm_shuffle_epi8(x, _mm256_castsi256_si128(lane)));
        return;
    }
    const __m256i x = _mm256_loadu_si256((const __m256i *)in);
    _mm256_storeu_si256((__m256i *)out,
                        _mm256_and_si256(_mm256_permutevar8x32_epi32(x, lane), present));
}

/* One part. Without holes, no element is cleared. */
AVX2 INLINE void move_windows(const struct copy_form *f, int element, bool has_holes,
                              const char *in, char *out) {
    const int32_t *column = copy_form_column(f), *window = copy_form_more(f);
    const int width = copy_window(element), last = f->n_columns - width, n = f->n_more;
    __m256i present = _mm256_set1_epi32(-1);
    for (int w = 0; w < n; w++) {
        const int c = w * width < last ? w * width : last;
        if (has_holes && element >= 4) present = find_present(element, column + c);
        move_window(element, in + (int64_t)window[w] * element,
                    find_lanes(element, column + c, window[w]), present,
                    out + (int64_t)c * element);
    }
}

/* Regular windows: all have the lanes of the first one, and the distance from one to the next is the same. */
AVX2 INLINE void move_regular(const struct copy_form *f, int element, const char *in, char *out) {
    const int32_t *window = copy_form_more(f);
    const __m256i lane = find_lanes(element, copy_form_column(f), window[0]),
                  all = _mm256_set1_epi32(-1);
    const int64_t n = f->n_columns, width = copy_window(element),
                  step = n < 2 * width ? 0 : (window[1] - window[0]) * (int64_t)element;
    const char *last = in + window[f->n_more - 1] * (int64_t)element;
    in += window[0] * (int64_t)element;
    _Pragma("GCC unroll 4") for (int64_t c = 0; c + width <= n; c += width, in += step)
        move_window(element, in, lane, all, out + c * element);
    if (n % width) move_window(element, last, lane, all, out + (n - width) * element);
}

AVX2 INLINE void move_parts(const struct copy_form *f, int element, const char *in, char *out,
                            int64_t begin, int64_t end) {
    const int32_t *from = f->number, *to = copy_form_to(f);
    for (int64_t p = begin; p < end; p++) {
        const char *part = in + from[p] * (int64_t)element;
        char *at = out + to[p] * (int64_t)element;
        if (from[p] < 0) memset(at, 0, (size_t)f->n_columns * (size_t)element);
        else if (f->is_regular) move_regular(f, element, part, at);
        else if (f->has_holes) move_windows(f, element, true, part, at);
        else move_windows(f, element, false, part, at);
    }
}

AVX2 static void move_all_windows(const struct copy_form *f, int element, const char *in, char *out,
                                  int64_t begin, int64_t end) {
    switch (element) {
    case 1: move_parts(f, 1, in, out, begin, end); break;
    case 2: move_parts(f, 2, in, out, begin, end); break;
    case 4: move_parts(f, 4, in, out, begin, end); break;
    default: move_parts(f, 8, in, out, begin, end); break;
    }
}

/* ---- Blocks ---- */

/* Four elements of column `c` of eight, and of the column four further. */
AVX2 INLINE __m256 load_pair(const char *const *column, int c, int r) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps((const float *)column[c] + r)),
                                _mm_loadu_ps((const float *)column[c + 4] + r), 1);
}

/* Rows r to r + 3 of eight columns. */
AVX2 INLINE void turn_rows_4(const char *const *column, int r, float *out, int64_t step) {
    const __m256 a = load_pair(column, 0, r), b = load_pair(column, 1, r),
                 c = load_pair(column, 2, r), d = load_pair(column, 3, r),
                 ab = _mm256_unpacklo_ps(a, b), ab2 = _mm256_unpackhi_ps(a, b),
                 cd = _mm256_unpacklo_ps(c, d), cd2 = _mm256_unpackhi_ps(c, d);
    _mm256_storeu_ps(out, _mm256_shuffle_ps(ab, cd, 0x44));
    _mm256_storeu_ps(out + step, _mm256_shuffle_ps(ab, cd, 0xee));
    _mm256_storeu_ps(out + 2 * step, _mm256_shuffle_ps(ab2, cd2, 0x44));
    _mm256_storeu_ps(out + 3 * step, _mm256_shuffle_ps(ab2, cd2, 0xee));
}

/* Rows r and r + 1 of four columns of 8 bytes. */
AVX2 INLINE void turn_two(const char *const *column, int r, double *out, int64_t step) {
    const __m128d a = _mm_loadu_pd((const double *)column[0] + r),
                  b = _mm_loadu_pd((const double *)column[1] + r),
                  c = _mm_loadu_pd((const double *)column[2] + r),
                  d = _mm_loadu_pd((const double *)column[3] + r);
    _mm_storeu_pd(out, _mm_unpacklo_pd(a, b));
    _mm_storeu_pd(out + 2, _mm_unpacklo_pd(c, d));
    _mm_storeu_pd(out + step, _mm_unpackhi_pd(a, b));
    _mm_storeu_pd(out + step + 2, _mm_unpackhi_pd(c, d));
}

AVX2 INLINE void turn_rows_8(const char *const *column, int r, double *out, int64_t step) {
    for (int c = 0; c < COPY_WINDOW; c += 4)
        for (int i = 0; i < 4; i += 2) turn_two(column + c, r + i, out + i * step + c, step);
}

/* Eight rows of eight columns of 2 bytes: in each step, elements of columns that are half as far apart become neighbors. */
AVX2 INLINE void turn_rows_2(const char *const *column, int r, char *out, int64_t step) {
    __m128i x[COPY_WINDOW], y[COPY_WINDOW];
    _Pragma("GCC unroll 8") for (int c = 0; c < COPY_WINDOW; c++) x[c] =
        _mm_loadu_si128((const __m128i *)(column[c] + 2 * r));
    _Pragma("GCC unroll 3") for (int turn = 0; turn < 3; turn++) {
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
            y[2 * i] = _mm_unpacklo_epi16(x[i], x[i + 4]);
            y[2 * i + 1] = _mm_unpackhi_epi16(x[i], x[i + 4]);
        }
        _Pragma("GCC unroll 8") for (int i = 0; i < COPY_WINDOW; i++) x[i] = y[i];
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < COPY_WINDOW; i++)
        _mm_storeu_si128((__m128i *)(out + 2 * i * step), x[i]);
}

/* The same of 1 byte. A vector has two columns, and in the end two rows. */
AVX2 INLINE void turn_rows_1(const char *const *column, int r, char *out, int64_t step) {
    __m128i x[4], y[4];
    _Pragma("GCC unroll 4") for (int c = 0; c < 4; c++) x[c] =
        _mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *)(column[c] + r)),
                          _mm_loadl_epi64((const __m128i *)(column[c + 4] + r)));
    _Pragma("GCC unroll 2") for (int turn = 0; turn < 2; turn++) {
        _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++) {
            y[2 * i] = _mm_unpacklo_epi8(x[i], x[i + 2]);
            y[2 * i + 1] = _mm_unpackhi_epi8(x[i], x[i + 2]);
        }
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) x[i] = y[i];
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
        _mm_storel_epi64((__m128i *)(out + 2 * i * step), x[i]);
        _mm_storel_epi64((__m128i *)(out + (2 * i + 1) * step), _mm_unpackhi_epi64(x[i], x[i]));
    }
}

/* Rows that are turned at once. */
static int least_rows(int element) { return element < 4 ? COPY_WINDOW : 4; }

/* Turns n rows of eight columns. `element` and `has_holes` are constants: of columns without holes, positions need no tests. */
AVX2 INLINE void turn_columns(int element, int n, bool has_holes, const int32_t *column,
                              const char *in, char *out, int64_t step) {
    static const char zero[COPY_LINE];
    const char *from[COPY_WINDOW];
    _Pragma("GCC unroll 8") for (int c = 0; c < COPY_WINDOW; c++) from[c] =
        has_holes && column[c] == COPY_NONE ? zero : in + (int64_t)column[c] * element;
    _Pragma("GCC unroll 2") for (int r = 0; r < n; r += least_rows(element)) {
        char *to = out + r * step * element;
        if (element == 1) turn_rows_1(from, r, to, step);
        else if (element == 2) turn_rows_2(from, r, to, step);
        else if (element == 4) turn_rows_4(from, r, (float *)(void *)to, step);
        else turn_rows_8(from, r, (double *)(void *)to, step);
    }
}

/*
 * The rows of a task: a line of 64 bytes of each column. Two times eight columns, for eight rows: so each line that is written is
 * finished after at most seven others. Of matrices whose rows are a power of two, these lines are in one set of the cache, which
 * has no space for sixteen. The last columns overlap those before.
 */
AVX2 INLINE void turn_lines(const struct block *b, int element, bool has_holes, int n,
                            const char *in, char *out) {
    const int32_t *column = b->column;
    const int64_t step = b->row_step;
    const int last = b->n_columns - COPY_WINDOW;
    for (int begin = 0; begin < b->n_columns; begin += 2 * COPY_WINDOW)
        for (int r = 0; r < n; r += COPY_WINDOW)
            for (int c = begin; c < begin + 2 * COPY_WINDOW && c < b->n_columns; c += COPY_WINDOW) {
                const int at = c < last ? c : last;
                const char *from = in + r * element;
                char *to = out + (r * step + at) * element;
                if (r + COPY_WINDOW <= n)
                    turn_columns(element, COPY_WINDOW, has_holes, column + at, from, to, step);
                else turn_columns(element, 4, has_holes, column + at, from, to, step);
            }
}

AVX2 static void turn_blocks(const struct block *b, int element, int n, const char *in, char *out) {
    switch (2 * element + b->has_holes) {
    case 2: turn_lines(b, 1, false, n, in, out); break;
    case 3: turn_lines(b, 1, true, n, in, out); break;
    case 4: turn_lines(b, 2, false, n, in, out); break;
    case 5: turn_lines(b, 2, true, n, in, out); break;
    case 8: turn_lines(b, 4, false, n, in, out); break;
    case 9: turn_lines(b, 4, true, n, in, out); break;
    case 16: turn_lines(b, 8, false, n, in, out); break;
    default: turn_lines(b, 8, true, n, in, out); break;
    }
}
#endif

/* ---- Tasks ---- */

static bool is_consecutive(const int32_t *row, int n) {
    for (int i = 1; i < n; i++)
        if (row[i] != row[0] + i) return false;
    return true;
}

static void move_rows(const struct block *b, int element, int n, const char *in, char *out) {
    const int32_t *column = b->column;
    const int end = b->n_columns;
    const int64_t step = b->row_step;
    switch (element) {
    case 1: move_block_uint8_t(step, column, 0, end, n, (const void *)in, (void *)out); break;
    case 2: move_block_uint16_t(step, column, 0, end, n, (const void *)in, (void *)out); break;
    case 4: move_block_uint32_t(step, column, 0, end, n, (const void *)in, (void *)out); break;
    default: move_block_uint64_t(step, column, 0, end, n, (const void *)in, (void *)out); break;
    }
}

/* Moves rows [begin, end) of a block, as many at once as are consecutive in the input. */
static void turn(const struct block *b, int element, const int32_t *row, int begin, int end,
                 const char *in, char *out) {
    const bool fits = b->n_columns >= COPY_WINDOW && HAS_AVX2;
    for (int r = begin, n; r < end; r += n) {
        const char *from = in + (int64_t)row[r] * element;
        char *to = out + r * b->row_step * element;
        n = end - r;
        while (!is_consecutive(row + r, n)) n--;
#ifdef AVX2
        if (fits && n >= least_rows(element)) {
            n -= n % least_rows(element);
            turn_blocks(b, element, n, from, to);
            continue;
        }
#endif
        (void)fits;
        move_rows(b, element, n, from, to);
    }
}

/* Task number `task` of a form whose parts are turned. */
static void turn_task(const struct copy_form *f, int element, const char *in, char *out,
                      int64_t task) {
    const int64_t blocks = ceil_div(f->n_rows, f->block), n = count_column_blocks(f),
                  p = task / blocks / n, c = task / blocks % n * COPY_COLUMNS,
                  first = task % blocks * f->block, from = f->number[p];
    const struct block b = {
        copy_form_column(f) + c,
        task / blocks % n == n - 1 ? (int)(f->n_columns - c) : COPY_COLUMNS,
        f->has_holes,
        f->row_step,
    };
    const int end = (int)min_i64(first + f->block, f->n_rows);
    out += (copy_form_to(f)[p] + c) * element;
    if (from >= 0) turn(&b, element, copy_form_row(f), (int)first, end, in + from * element, out);
    for (int64_t r = first; from < 0 && r < end; r++)
        memset(out + r * b.row_step * element, 0, (size_t)(b.n_columns * element));
}

static void move_columns(const struct copy_form *f, int element, const char *in, char *out) {
    const int32_t *column = copy_form_column(f);
    if (f->kind == COPY_RUNS) {
        move_runs(f, element, in, out);
        return;
    }
    switch (element) {
    case 1: move_elements_uint8_t(f, column, (const void *)in, (void *)out); break;
    case 2: move_elements_uint16_t(f, column, (const void *)in, (void *)out); break;
    case 4: move_elements_uint32_t(f, column, (const void *)in, (void *)out); break;
    default: move_elements_uint64_t(f, column, (const void *)in, (void *)out); break;
    }
}

void copy_form_run(const struct copy_form *f, int element, const void *in, void *out, int64_t begin,
                   int64_t end) {
#ifdef AVX2
    if (f->kind == COPY_WINDOWS && HAS_AVX2) {
        move_all_windows(f, element, in, out, begin, end);
        return;
    }
    if (f->kind == COPY_RUNS && HAS_AVX2) {
        move_all_runs(f, element, in, out, begin, end);
        return;
    }
#endif
    const int32_t *from = f->number, *to = copy_form_to(f);
    for (int64_t task = begin; task < end; task++) {
        if (f->kind == COPY_TURNED) {
            turn_task(f, element, in, out, task);
            continue;
        }
        char *at = (char *)out + to[task] * (int64_t)element;
        if (from[task] < 0) memset(at, 0, (size_t)f->n_columns * (size_t)element);
        else move_columns(f, element, (const char *)in + from[task] * (int64_t)element, at);
    }
}

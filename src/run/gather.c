/*
 * The gather step copies rows of a table, selected by indices that are an input of the call, such as a sentence's tokens. The scatter
 * step is its inverse: it adds rows to the ones that the indices select, as the gradient of a table does.
 *
 *   plan/build_gather.c makes the steps -> gather_run: one task per index and outer part
 *                                       -> scatter_run: one task per part of the output, which reads all indices
 *
 * Invariant: indices are untrusted, so each is checked. One outside of the table fails the call, and nothing outside of the
 * table is read or written.
 */
#include "run/program.h"

#include <string.h>

/* The numbers that select rows, and what they may be. */
struct numbers {
    const void *at;
    int64_t size, rows, least; /* of a number, in bytes; of rows; the least legal number */
    const char *what;          /* the layer, for messages */
};

/* The row that index number `i` selects; a negative index counts from the end. -1 with a message if there is no such row. */
static int64_t read_row(const struct numbers *numbers, int64_t i) {
    const int64_t rows = numbers->rows, number = numbers->size == sizeof(int64_t)
                                                     ? ((const int64_t *)numbers->at)[i]
                                                     : ((const int32_t *)numbers->at)[i];
    if (number >= numbers->least && number < rows) return number < 0 ? number + rows : number;
    /* Frontends that compute row numbers from several indices use this one for an index out of range. */
    if (number == -((int64_t)1 << 53) && !numbers->least)
        exec_fail(fail(SOL_EINDEX, "%s: " ROW_OUTSIDE_MESSAGE, numbers->what));
    else
        exec_fail(fail(SOL_EINDEX, "%s: " ROW_NUMBER_MESSAGE, numbers->what, (long long)number,
                       (long long)rows));
    return -1;
}

#define PIECE 256 /* indices that are checked together */

/* row[k] = the row that at[k] selects. True if one of them selects none. */
#define FIND_ROWS(T)                                                                            \
    static bool find_rows_##T(const T *at, int n, int64_t rows, int64_t least, int64_t *row) {  \
        int64_t is_bad = 0;                                                                     \
        for (int k = 0; k < n; k++) {                                                           \
            const int64_t number = at[k];                                                       \
            is_bad |= (number < least) | (number >= rows);                                      \
            row[k] = number < 0 ? number + rows : number;                                       \
        }                                                                                       \
        return is_bad != 0;                                                                     \
    }
FIND_ROWS(int32_t)
FIND_ROWS(int64_t)

/* The rows of n indices from number `i` on; false, with a message, if there is none for one of them. */
static bool read_rows(const struct numbers *numbers, int64_t i, int n, int64_t *row) {
    const int64_t rows = numbers->rows, least = numbers->least;
    const bool is_bad =
        numbers->size == sizeof(int64_t)
            ? find_rows_int64_t((const int64_t *)numbers->at + i, n, rows, least, row)
            : find_rows_int32_t((const int32_t *)numbers->at + i, n, rows, least, row);
    for (int k = 0; is_bad && k < n; k++)
        if (read_row(numbers, i + k) < 0) break;
    return !is_bad;
}

/* ---- Gather ---- */

static int64_t gather_n_tasks(const struct step *step, const int64_t *arg) {
    (void)step;
    return arg[GATHER_OUTER] * arg[GATHER_INDICES];
}

/* Where `size` is a constant, each copy is one instruction. */
static inline __attribute__((always_inline)) void take(const char *in, int64_t stride,
                                                       const int64_t *row, int n, size_t size,
                                                       char *out) {
    for (int k = 0; k < n; k++) memcpy(out + (size_t)k * size, in + row[k] * stride, size);
}

static void take_rows(const char *in, int64_t stride, const int64_t *row, int n, int64_t size,
                      char *out) {
    switch (size) {
    case 1: take(in, stride, row, n, 1, out); break;
    case 2: take(in, stride, row, n, 2, out); break;
    case 4: take(in, stride, row, n, 4, out); break;
    case 8: take(in, stride, row, n, 8, out); break;
    case 16: take(in, stride, row, n, 16, out); break;
    default: take(in, stride, row, n, (size_t)size, out); break;
    }
}

static void gather_run(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                       int64_t begin, int64_t end) {
    (void)step, (void)scratch;
    const int64_t n_numbers = arg[GATHER_INDICES], planes = arg[GATHER_PLANES],
                  inner = arg[GATHER_INNER];
    const struct numbers numbers = {ptr[1], arg[GATHER_INDEX_SIZE], arg[GATHER_ROWS],
                                    arg[GATHER_LEAST], "gather"};
    int64_t row[PIECE];
    for (int64_t task = begin, n; task < end; task += n) {
        const int64_t outer = task / n_numbers, first = task % n_numbers;
        n = min_i64(PIECE, min_i64(end - task, n_numbers - first));
        if (!read_rows(&numbers, first, (int)n, row)) return;
        const char *in = (const char *)ptr[0] + outer / planes * arg[GATHER_STRIDE] +
                         outer % planes * arg[GATHER_ROWS] * inner;
        take_rows(in, arg[GATHER_ROW_STRIDE], row, (int)n, inner, (char *)ptr[2] + task * inner);
    }
}

/* ---- Scatter ---- */

#define SCATTER_TASKS 64        /* at least, if there is enough to do */
#define SCATTER_LINE  512       /* bytes of a row that a task adds to, at least */
#define SCATTER_BYTES (1 << 14) /* of the output that a task writes, at least */

/* Into how many parts the output of one batch is divided: a task has some columns of some rows. They do not matter for the result, as
 * each element is a sum in the order of the indices. */
struct parts {
    int64_t rows, columns;
};

static int64_t limit(int64_t n, int64_t most) { return max_i64(1, min_i64(n, most)); }

/* With more indices than rows, some rows may have nearly all of them: then columns are divided first. */
static struct parts divide(const int64_t *arg) {
    const int64_t wanted = ceil_div(SCATTER_TASKS, max_i64(1, arg[SCATTER_BATCHES])),
                  line = arg[SCATTER_INNER] * size_element((enum sol_dtype)arg[SCATTER_DTYPE]);
    struct parts parts = {1, 1};
    if (arg[SCATTER_INDICES] > arg[SCATTER_ROWS])
        parts.columns = limit(line / SCATTER_LINE, wanted);
    parts.rows = limit(arg[SCATTER_ROWS] * line / SCATTER_BYTES, wanted / parts.columns);
    return parts;
}

static int64_t scatter_n_tasks(const struct step *step, const int64_t *arg) {
    const struct parts parts = divide(arg);
    (void)step;
    return arg[SCATTER_BATCHES] * parts.rows * parts.columns;
}

/* Rows [begin, end) of n columns at `out`, and the rows to add, of one batch. `stride`: elements from row to row of both. */
struct scatter {
    const char *in;
    char *out;
    int64_t begin, end, n, stride;
};

#define SCATTER_AHEAD 8 /* rows of `in` that are fetched before they are added: they are far apart, so the processor does not */

static inline void fetch(const char *in, int64_t size) {
    for (int64_t i = 0; i < size; i += 64) __builtin_prefetch(in + i);
}

/* Adds row number first + k of `in` to row[k] of `out`. U is unsigned for integers, which wrap. Where n is 1, there is no loop over
 * columns; else 16 of them are vectors. */
#define ADD_ROWS(name, T, U)                                                                    \
    static inline void add_columns_##name(const T *restrict in, T *restrict out, int64_t n) {   \
        int64_t c = 0;                                                                          \
        for (; c + 16 <= n; c += 16)                                                            \
            for (int l = 0; l < 16; l++) out[c + l] = (T)((U)out[c + l] + (U)in[c + l]);        \
        for (; c < n; c++) out[c] = (T)((U)out[c] + (U)in[c]);                                  \
    }                                                                                           \
    static void add_##name(const struct scatter *s, int64_t first, const int64_t *row, int n) { \
        const T *in = (const T *)(const void *)s->in + first * s->stride;                       \
        T *out = (T *)(void *)s->out;                                                           \
        for (int k = 0; k < n && s->n == 1; k++)                                                \
            if (row[k] >= s->begin && row[k] < s->end)                                          \
                out[row[k] * s->stride] =                                                       \
                    (T)((U)out[row[k] * s->stride] + (U)in[k * s->stride]);                     \
        for (int k = 0; k < n && s->n > 1; k++) {                                               \
            const int next = k + SCATTER_AHEAD;                                                 \
            if (next < n && row[next] >= s->begin && row[next] < s->end)                        \
                fetch((const char *)(in + next * s->stride), s->n * (int64_t)sizeof(T));        \
            if (row[k] >= s->begin && row[k] < s->end)                                          \
                add_columns_##name(in + k * s->stride, out + row[k] * s->stride, s->n);         \
        }                                                                                       \
    }
ADD_ROWS(f32, float, float)
ADD_ROWS(f64, double, double)
ADD_ROWS(i64, int64_t, uint64_t)
ADD_ROWS(i32, int32_t, uint32_t)
ADD_ROWS(i16, int16_t, uint32_t)
ADD_ROWS(i8, int8_t, uint32_t)
ADD_ROWS(u8, uint8_t, uint32_t)

typedef void add_rows(const struct scatter *s, int64_t first, const int64_t *row, int n);
static add_rows *const adders[SOL_N_DTYPES] = {
    [SOL_F32] = add_f32, [SOL_F64] = add_f64, [SOL_I64] = add_i64, [SOL_I32] = add_i32,
    [SOL_I16] = add_i16, [SOL_I8] = add_i8,   [SOL_U8] = add_u8};

/* The elements of task `task`. Columns are divided at whole lines. */
static struct scatter find_part(void *const *ptr, const int64_t *arg, int64_t task) {
    const struct parts parts = divide(arg);
    const int64_t size = size_element((enum sol_dtype)arg[SCATTER_DTYPE]), rows = arg[SCATTER_ROWS],
                  inner = arg[SCATTER_INNER], row = task / parts.columns % parts.rows,
                  batch = task / parts.columns / parts.rows,
                  width = round_up(ceil_div(inner, parts.columns), 64 / size),
                  first = min_i64(inner, task % parts.columns * width);
    return (struct scatter){.in = (const char *)ptr[0] +
                                  (batch * arg[SCATTER_INDICES] * inner + first) * size,
                            .out = (char *)ptr[2] + (batch * rows * inner + first) * size,
                            .begin = row * rows / parts.rows,
                            .end = (row + 1) * rows / parts.rows,
                            .n = min_i64(width, inner - first),
                            .stride = inner};
}

static void clear(const struct scatter *s, int64_t size) {
    const bool is_whole = s->n == s->stride;
    const int64_t lines = is_whole ? 1 : s->end - s->begin, rows = is_whole ? s->end - s->begin : 1;
    for (int64_t i = 0; i < lines; i++)
        memset(s->out + (s->begin + i) * s->stride * size, 0, (size_t)(rows * s->n * size));
}

static void scatter_run(const struct step *step, void *const *ptr, const int64_t *arg,
                        void *scratch, int64_t begin, int64_t end) {
    const struct parts parts = divide(arg);
    const int64_t n_numbers = arg[SCATTER_INDICES];
    const struct numbers numbers = {ptr[1], arg[SCATTER_INDEX_SIZE], arg[SCATTER_ROWS],
                                    arg[SCATTER_LEAST], "scatter_sum"};
    int64_t row[PIECE];
    (void)step, (void)scratch;
    for (int64_t task = begin; task < end; task++) {
        const struct scatter s = find_part(ptr, arg, task);
        const int64_t base = task / parts.columns / parts.rows * n_numbers;
        clear(&s, size_element((enum sol_dtype)arg[SCATTER_DTYPE]));
        for (int64_t first = 0; first < n_numbers; first += PIECE) {
            const int n = (int)min_i64(PIECE, n_numbers - first);
            if (!read_rows(&numbers, base + first, n, row)) return;
            adders[arg[SCATTER_DTYPE]](&s, first, row, n);
        }
    }
}

const struct step_kind step_gather = {
    .name = "gather", .run = gather_run, .n_tasks = gather_n_tasks};
const struct step_kind step_scatter = {
    .name = "scatter", .run = scatter_run, .n_tasks = scatter_n_tasks};

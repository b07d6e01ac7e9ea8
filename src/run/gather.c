/*
 * The gather step: copies rows of a table, selected by indices that are an input of the call, such as a sentence's tokens.
 *
 *   plan/build.c makes the step -> gather_run: one task per index and outer part
 *
 * Invariant: indices are untrusted, so each is checked. One outside of the table fails the call, and nothing outside of the
 * table is read.
 */
#include "run/program.h"

#include <string.h>

int64_t gather_n_tasks(const struct step *step, const int64_t *arg) {
    (void)step;
    return arg[GATHER_OUTER] * arg[GATHER_INDICES];
}

/* The row that index number `i` selects; a negative index counts from the end. -1 with a message if there is no such row. */
static int64_t read_row(const void *numbers, int64_t i, const int64_t *arg) {
    int64_t number = arg[GATHER_INDEX_SIZE] == sizeof(int64_t) ? ((const int64_t *)numbers)[i]
                                                               : ((const int32_t *)numbers)[i];
    const int64_t rows = arg[GATHER_ROWS];
    if (number >= arg[GATHER_LEAST] && number < rows) return number < 0 ? number + rows : number;
    /* Frontends that compute row numbers from several indices use this one for an index out of range. */
    if (number == -((int64_t)1 << 53) && !arg[GATHER_LEAST])
        exec_fail(fail(SOL_EINDEX, "gather: an index is outside of its dim"));
    else
        exec_fail(fail(SOL_EINDEX, "gather: number %lld, but there are %lld rows",
                       (long long)number, (long long)rows));
    return -1;
}

#define PIECE 256 /* indices that are checked together */

/* row[k] = the row that numbers[k] selects. True if one of them selects none. */
#define FIND_ROWS(T)                                                                            \
    static bool find_rows_##T(const T *numbers, int n, const int64_t *arg, int64_t *row) {      \
        const int64_t rows = arg[GATHER_ROWS], least = arg[GATHER_LEAST];                       \
        int64_t is_bad = 0;                                                                     \
        for (int k = 0; k < n; k++) {                                                           \
            const int64_t at = numbers[k];                                                      \
            is_bad |= (at < least) | (at >= rows);                                              \
            row[k] = at < 0 ? at + rows : at;                                                   \
        }                                                                                       \
        return is_bad != 0;                                                                     \
    }
FIND_ROWS(int32_t)
FIND_ROWS(int64_t)

/* The rows of n indices from number `i` on; false, with a message, if there is none for one of them. */
static bool read_rows(const void *numbers, int64_t i, int n, const int64_t *arg, int64_t *row) {
    const bool is_bad = arg[GATHER_INDEX_SIZE] == sizeof(int64_t)
                            ? find_rows_int64_t((const int64_t *)numbers + i, n, arg, row)
                            : find_rows_int32_t((const int32_t *)numbers + i, n, arg, row);
    for (int k = 0; is_bad && k < n; k++)
        if (read_row(numbers, i + k, arg) < 0) break;
    return !is_bad;
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

void gather_run(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                int64_t begin, int64_t end) {
    (void)step, (void)scratch;
    const int64_t numbers = arg[GATHER_INDICES], planes = arg[GATHER_PLANES],
                  inner = arg[GATHER_INNER];
    int64_t row[PIECE];
    for (int64_t task = begin, n; task < end; task += n) {
        const int64_t outer = task / numbers, first = task % numbers;
        n = min_i64(PIECE, min_i64(end - task, numbers - first));
        if (!read_rows(ptr[1], first, (int)n, arg, row)) return;
        const char *in = (const char *)ptr[0] + outer / planes * arg[GATHER_STRIDE] +
                         outer % planes * arg[GATHER_ROWS] * inner;
        take_rows(in, arg[GATHER_ROW_STRIDE], row, (int)n, inner, (char *)ptr[2] + task * inner);
    }
}

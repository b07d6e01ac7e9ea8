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

void gather_run(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                int64_t begin, int64_t end) {
    (void)step, (void)scratch;
    const int64_t numbers = arg[GATHER_INDICES], planes = arg[GATHER_PLANES],
                  inner = arg[GATHER_INNER];
    for (int64_t task = begin; task < end; task++) {
        int64_t outer = task / numbers, row = read_row(ptr[1], task % numbers, arg);
        if (row < 0) return;
        const char *in = (const char *)ptr[0] + outer / planes * arg[GATHER_STRIDE] +
                         outer % planes * arg[GATHER_ROWS] * inner + row * arg[GATHER_ROW_STRIDE];
        memcpy((char *)ptr[2] + task * inner, in, (size_t)inner);
    }
}

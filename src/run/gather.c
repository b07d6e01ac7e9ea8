/*
 * The gather step: rows of a table by numbers that are known only at the call, such as the words of a sentence.
 *
 * plan/build.c makes it. A task is one row of the result. Numbers come from anybody, so each is checked: one that is
 * outside of the table ends the call with an error, and nothing outside of the table is read.
 */
#include "run/program.h"

#include <string.h>

int64_t gather_n_tasks(const struct step *step, const int64_t *arg) {
    (void)step;
    return arg[GATHER_OUTER] * arg[GATHER_INDICES];
}

/* Number `i`; below 0 it counts from the end. -1 with a message when there is no such row. */
static int64_t read_row(const void *numbers, int64_t i, const int64_t *arg) {
    int64_t number = arg[GATHER_INDEX_SIZE] == sizeof(int64_t) ? ((const int64_t *)numbers)[i]
                                                               : ((const int32_t *)numbers)[i];
    int64_t rows = arg[GATHER_ROWS], row = number < 0 && number >= -rows ? number + rows : number;
    if (row >= 0 && row < rows) return row;
    exec_fail(fail(SOL_EINVAL, "gather: number %lld, but there are %lld rows", (long long)number,
                   (long long)rows));
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
        const float *in = (const float *)ptr[0] + outer / planes * arg[GATHER_STRIDE] +
                          outer % planes * arg[GATHER_ROWS] * inner + row * arg[GATHER_ROW_STRIDE];
        memcpy((float *)ptr[2] + task * inner, in, (size_t)inner * sizeof *in);
    }
}

/*
 * What generated kernels call, for one value at a time: a "vector" is a float here. At the end are the two steps that
 * are not generated kernels.
 *
 * C99 and its library. MAX and MIN are NaN when either argument is NaN, as in NumPy.
 */
#ifndef SOL_PORTABLE_MATH_H
#define SOL_PORTABLE_MATH_H

#include "dfp/scalar.h"

/* Moves values: out[(o * n_pixels + p) * lanes + l] = in[base[o * lanes + l] + p * stride], 0 where base < 0.
 * arg: n_outer, n_pixels, lanes, stride, and the strides of n in `in` and `out`. */
static inline void sol_copy(void *const *ptr, const int64_t *arg, const int32_t *base,
                            int64_t tasks) {
    const int64_t n_outer = arg[0], n_pixels = arg[1], lanes = arg[2];
    int64_t task, p, l;
    for (task = 0; task < tasks; task++) {
        const int64_t n = task / n_outer, o = task % n_outer;
        const float *in = (const float *)ptr[0] + n * arg[4];
        float *out = (float *)ptr[1] + n * arg[5] + o * n_pixels * lanes;
        for (p = 0; p < n_pixels; p++)
            for (l = 0; l < lanes; l++) {
                const int64_t from = base[o * lanes + l];
                out[p * lanes + l] = from < 0 ? 0.0f : in[from + p * arg[3]];
            }
    }
}

/* The same for elements of `size` bytes. */
static inline void sol_copy_any(void *const *ptr, const int64_t *arg, const int32_t *base,
                                int64_t tasks, int64_t size) {
    const int64_t n_outer = arg[0], n_pixels = arg[1], lanes = arg[2];
    int64_t task, p, l;
    for (task = 0; task < tasks; task++) {
        const int64_t n = task / n_outer, o = task % n_outer;
        const char *in = (const char *)ptr[0] + n * arg[4] * size;
        char *out = (char *)ptr[1] + (n * arg[5] + o * n_pixels * lanes) * size;
        for (p = 0; p < n_pixels; p++)
            for (l = 0; l < lanes; l++, out += size) {
                const int64_t from = base[o * lanes + l];
                if (from < 0) memset(out, 0, (size_t)size);
                else memcpy(out, in + (from + p * arg[3]) * size, (size_t)size);
            }
    }
}

/* Moves values: out[to[p] + r * row_step + c] = in[from[p] + row[r] + column[c]], 0 where from[p] < 0 or column[c] is INT32_MIN.
 * `number` has from, to, row and column. arg: how many parts p, rows r and columns c, row_step, the strides of n in `in` and `out`,
 * bytes of an element, how many n. */
static inline void sol_copy_form(void *const *ptr, const int64_t *arg, const int32_t *number) {
    const int64_t parts = arg[0], rows = arg[1], columns = arg[2];
    const int32_t *row = number + 2 * parts, *column = row + rows;
    const size_t size = (size_t)arg[6];
    int64_t n, p, r, c;
    for (n = 0; n < arg[7]; n++)
        for (p = 0; p < parts; p++)
            for (r = 0; r < rows; r++)
                for (c = 0; c < columns; c++) {
                    char *out =
                        (char *)ptr[1] + (n * arg[5] + number[parts + p] + r * arg[3] + c) * arg[6];
                    const int64_t from = n * arg[4] + number[p] + row[r] + column[c];
                    if (number[p] < 0 || column[c] == INT32_MIN) memset(out, 0, size);
                    else memcpy(out, (const char *)ptr[0] + from * arg[6], size);
                }
}

/* One of the taps' indices, of 8 or 4 bytes; 0 with *bad set if it is not below `size`. */
static inline int64_t sol_read_tap(const void *index, int64_t bytes, int64_t i, int64_t size,
                                   int *bad) {
    const int64_t at = bytes == 8 ? ((const int64_t *)index)[i] : ((const int32_t *)index)[i];
    if (at >= 0 && at < size) return at;
    *bad = 1;
    return 0;
}

/* Weighted sums of elements along rows and columns. Arguments: those of the step. Returns 1 where an index is outside. */
static inline int sol_resample(void *const *ptr, const int64_t *arg) {
    const int64_t planes = arg[1], rows = arg[5], columns = arg[8], inner = arg[10];
    const int64_t row_taps = arg[6] ? arg[6] : 1, column_taps = arg[9] ? arg[9] : 1;
    int64_t o, r, c, i, j, k;
    int bad = 0;
    for (o = 0; o < arg[0] && !bad; o++)
        for (r = 0; r < rows; r++)
            for (c = 0; c < columns; c++)
                for (i = 0; i < inner; i++) {
                    const float *in = (const float *)ptr[0] + o / planes * arg[2] +
                                      o % planes * arg[4] * arg[7] * inner + i;
                    float *out = (float *)ptr[1] + o / planes * arg[3] +
                                 (o % planes * rows + r) * columns * inner + c * inner + i;
                    float sum = 0;
                    for (j = 0; j < row_taps; j++)
                        for (k = 0; k < column_taps; k++) {
                            int64_t row = r, column = c;
                            float weight = 1;
                            if (arg[6]) {
                                row = sol_read_tap(ptr[2], arg[11], j * rows + r, arg[4], &bad);
                                weight = ((const float *)ptr[3])[j * rows + r];
                            }
                            if (arg[9]) {
                                column =
                                    sol_read_tap(ptr[4], arg[11], k * columns + c, arg[7], &bad);
                                weight *= ((const float *)ptr[5])[k * columns + c];
                            }
                            sum += weight * in[(row * arg[7] + column) * inner];
                        }
                    *out = sum;
                }
    return bad;
}

/* Moves rows of a table, by indices of 8 or 4 bytes that count from the end below 0. Returns 1 where there is no such row.
 * arg: outer, planes, stride, rows, row stride, inner, numbers, bytes of a number, least index; strides and inner are bytes. */
static inline int sol_gather(void *const *ptr, const int64_t *arg, int64_t tasks) {
    const int64_t planes = arg[1], rows = arg[3], inner = arg[5], numbers = arg[6];
    int64_t task;
    for (task = 0; task < tasks; task++) {
        const int64_t outer = task / numbers, at = task % numbers;
        int64_t row = arg[7] == 8 ? ((const int64_t *)ptr[1])[at] : ((const int32_t *)ptr[1])[at];
        if (row < arg[8] || row >= rows) return 1;
        if (row < 0) row += rows;
        memcpy((char *)ptr[2] + task * inner,
               (const char *)ptr[0] + outer / planes * arg[2] + outer % planes * rows * inner +
                   row * arg[4],
               (size_t)inner);
    }
    return 0;
}

/* out[i] += in[i] of the element type with this number: 0 f32, 1 f64, and integers, which wrap. */
static inline void sol_add_row(int64_t type, void *out, const void *in, int64_t n) {
    int64_t i;
    for (i = 0; i < n; i++) {
        if (type == 0) ((float *)out)[i] += ((const float *)in)[i];
        else if (type == 1) ((double *)out)[i] += ((const double *)in)[i];
        else if (type == 4) ((uint64_t *)out)[i] += ((const uint64_t *)in)[i];
        else if (type == 5) ((uint32_t *)out)[i] += ((const uint32_t *)in)[i];
        else if (type == 6)
            ((uint16_t *)out)[i] = (uint16_t)(((uint16_t *)out)[i] + ((const uint16_t *)in)[i]);
        else ((uint8_t *)out)[i] = (uint8_t)(((uint8_t *)out)[i] + ((const uint8_t *)in)[i]);
    }
}

/* The inverse of sol_gather: adds rows to the ones that indices select. Returns 1 where there is no such row.
 * arg: batches, numbers and rows of a batch, elements of a row, their type, bytes of a number, least index. */
static inline int sol_scatter(void *const *ptr, const int64_t *arg) {
    static const int bytes[] = {4, 8, 2, 2, 8, 4, 2, 1, 1};
    const int64_t rows = arg[2], line = arg[3] * bytes[arg[4]];
    int64_t at;
    memset(ptr[2], 0, (size_t)(arg[0] * rows * line));
    for (at = 0; at < arg[0] * arg[1]; at++) {
        int64_t row = arg[5] == 8 ? ((const int64_t *)ptr[1])[at] : ((const int32_t *)ptr[1])[at];
        if (row < arg[6] || row >= rows) return 1;
        if (row < 0) row += rows;
        sol_add_row(arg[4], (char *)ptr[2] + (at / arg[1] * rows + row) * line,
                    (const char *)ptr[0] + at * line, arg[3]);
    }
    return 0;
}

#endif

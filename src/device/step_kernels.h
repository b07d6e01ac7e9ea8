/*
 * Steps that are functions of the host, as kernels for far devices: C99 text that the device's compiler compiles.
 *
 *   defines, run/step_numbers.h, [this file] -> device/far_emit.c -> device_queue_kernel -> SOL_KERNEL, one of the kernels below
 *
 * far_emit.c defines the name of one kernel, KERNEL_x, and the types that it needs; so a program compiles what it uses only. Without such
 * a name, the file has the numbers of additional arguments only. As in all kernels, several threads compute ranges of tasks at once.
 *
 * Invariants: each kernel divides its work, whatever its size, into TASKS parts of about the same number of rows, so that the number of tasks
 * is a constant. Indices are untrusted: each is checked before it is used, and a wrong one is reported in the error words of the call. Results
 * do not depend on the division into tasks.
 */
#ifndef SOL_STEP_KERNELS_NUMBERS
#define SOL_STEP_KERNELS_NUMBERS

/* Behind the arguments of a copy. Its pointers: in, out, the table's or the form's numbers. */
enum {
    TABLE_CHANNELS = COPY_N_ARGS, /* stored ones: n_outer * lanes */
    TABLE_LANES,
    TABLE_STEP, /* from pixel to pixel of the input */
    TABLE_IN_LANES,
    TABLE_N_ARGS
};
enum {
    FORM_PARTS = COPY_N_ARGS,
    FORM_ROWS,
    FORM_COLUMNS,
    FORM_RUNS, /* 0: columns are moved one by one */
    FORM_ROW_STEP,
    FORM_N_ARGS
};
/* Behind the arguments of a gather, scatter_sum or resample: addresses of messages. The last pointer is that of the error words. */
enum {
    WHAT_NUMBER,
    WHAT_OUTSIDE, /* for NUMBER_OUTSIDE, by which frontends say that one of several indices is wrong */
    N_WHATS
};
#endif

#ifdef TASKS
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define NUMBER_OUTSIDE (-((int64_t)1 << 53))

/* The tasks before `task` have so many of the `total` rows. */
static inline int64_t share(int64_t total, int64_t task) { return total * task / TASKS; }

static inline int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* The first failure stays. If two tasks fail at once, the numbers of both may be mixed. */
static inline void fail_call(void *error, int64_t what, int64_t number, int64_t limit,
                             int64_t more) {
    int64_t *word = (int64_t *)error;
    if (word[ERROR_STATUS]) return;
    word[ERROR_NUMBER] = number;
    word[ERROR_LIMIT] = limit;
    word[ERROR_MORE] = more;
    word[ERROR_WHAT] = what;
    word[ERROR_STATUS] = STATUS;
}
#endif

#ifdef NUMBER
/* Can all n numbers be used? The first loop has no branches, so that it becomes vectors. */
static inline bool are_rows(const NUMBER *number, int64_t n, int64_t least, int64_t rows,
                            void *error, const int64_t *what) {
    int64_t i, bad = 0;
    for (i = 0; i < n; i++) bad |= (number[i] < least) | (number[i] >= rows);
    for (i = 0; bad && i < n; i++)
        if (number[i] < least || number[i] >= rows) {
            const bool is_outside = (int64_t)number[i] == NUMBER_OUTSIDE && !least;
            fail_call(error, what[is_outside ? WHAT_OUTSIDE : WHAT_NUMBER], number[i], rows, 0);
            break;
        }
    return !bad;
}
#endif

/* ---- Updates ---- */

#ifdef KERNEL_UPDATE
#define LINE 64 /* bytes: no two tasks write to one line */

/* ptr = {new value, parameter, error words}; arg = {bytes}. The parameter is the caller's, so it stays as it is if the call has failed. */
void SOL_KERNEL(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end) {
    const int64_t lines = (arg[0] + LINE - 1) / LINE;
    const int64_t from = LINE * share(lines, begin),
                  to = least_of(arg[0], LINE * share(lines, end));
    (void)scratch;
    if (from < to && !((const int64_t *)ptr[2])[ERROR_STATUS])
        memcpy((char *)ptr[1] + from, (const char *)ptr[0] + from, (size_t)(to - from));
}
#endif

/* ---- Copies by a table: run/copy.c ---- */

#ifdef KERNEL_TABLE
/* A row is a stored channel of an image; its pixels are `lanes` elements apart. */
static void copy_channel(const ELEMENT *restrict in, ELEMENT *restrict out, int64_t n, int64_t step,
                         int64_t lanes) {
    int64_t p;
    if (step == 1 && lanes == 1) memcpy(out, in, (size_t)n * sizeof *out);
    else
        for (p = 0; p < n; p++) out[p * lanes] = in[p * step];
}

static void clear_channel(ELEMENT *out, int64_t n, int64_t lanes) {
    int64_t p;
    for (p = 0; p < n; p++) out[p * lanes] = 0;
}

/* Channels of one pixel: elements. */
static void copy_elements(const ELEMENT *restrict in, ELEMENT *restrict out,
                          const int32_t *restrict base, int64_t n) {
    int64_t i;
    for (i = 0; i < n; i++) out[i] = base[i] < 0 ? 0 : in[base[i]];
}

/* Channels [first, end) of an image. If pixels are open, `base` has the stored channels of the input, in blocks of in_lanes. */
static void copy_channels(const int64_t *arg, const ELEMENT *in, ELEMENT *out, const int32_t *base,
                          int64_t first, int64_t end) {
    const int64_t lanes = arg[TABLE_LANES], n = arg[COPY_PIXELS], in_lanes = arg[TABLE_IN_LANES];
    int64_t c;
    if (n == 1 && !in_lanes) {
        copy_elements(in, out + first, base + first, end - first);
        return;
    }
    for (c = first; c < end; c++) {
        const int64_t lane = in_lanes && base[c] > 0 ? base[c] % in_lanes : 0;
        const int64_t from = in_lanes ? (base[c] - lane) * n + lane : base[c];
        ELEMENT *to = out + c / lanes * lanes * n + c % lanes;
        if (base[c] < 0) clear_channel(to, n, lanes);
        else copy_channel(in + from, to, n, arg[TABLE_STEP], lanes);
    }
}

void SOL_KERNEL(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end) {
    const int64_t channels = arg[TABLE_CHANNELS], total = arg[COPY_N] * channels;
    const int64_t last = share(total, end);
    int64_t at = share(total, begin), n;
    (void)scratch;
    for (; at < last; at += n) {
        const int64_t image = at / channels, first = at % channels;
        n = least_of(last - at, channels - first);
        copy_channels(arg, (const ELEMENT *)ptr[0] + image * arg[COPY_IN_STRIDE],
                      (ELEMENT *)ptr[1] + image * arg[COPY_OUT_STRIDE], (const int32_t *)ptr[2],
                      first, first + n);
    }
}
#endif

/* ---- Copies by a form: run/copy_form.h ---- */

#ifdef KERNEL_FORM
static void move_runs(const int32_t *run, int64_t n, const ELEMENT *in, ELEMENT *out) {
    for (; n > 0; n--, run += 3) {
        const size_t size = (size_t)run[2] * sizeof *out;
        if (run[1] == COPY_NONE) memset(out + run[0], 0, size);
        else memcpy(out + run[0], in + run[1], size);
    }
}

static void move_columns(const int32_t *restrict column, int64_t n, const ELEMENT *restrict in,
                         ELEMENT *restrict out) {
    int64_t c;
    for (c = 0; c < n; c++) out[c] = column[c] == COPY_NONE ? 0 : in[column[c]];
}

/* Row r of part p. The numbers: from[parts], to[parts], row[rows], column[columns], runs. */
static void move_row(const int64_t *arg, const int32_t *from, const ELEMENT *in, ELEMENT *out,
                     int64_t p, int64_t r) {
    const int32_t *to = from + arg[FORM_PARTS], *row = to + arg[FORM_PARTS];
    const int32_t *column = row + arg[FORM_ROWS];
    const int64_t n = arg[FORM_COLUMNS];
    out += to[p] + r * arg[FORM_ROW_STEP];
    if (from[p] < 0) memset(out, 0, (size_t)n * sizeof *out);
    else if (arg[FORM_RUNS]) move_runs(column + n, arg[FORM_RUNS], in + from[p] + row[r], out);
    else move_columns(column, n, in + from[p] + row[r], out);
}

/* Counts n, p and r, as divisions would take longer than short rows. */
void SOL_KERNEL(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end) {
    const int64_t rows = arg[FORM_ROWS], parts = arg[FORM_PARTS],
                  total = arg[COPY_N] * parts * rows;
    const int64_t last = share(total, end);
    int64_t at = share(total, begin), n = at / rows / parts, p = at / rows % parts, r = at % rows;
    (void)scratch;
    for (; at < last; at++) {
        move_row(arg, (const int32_t *)ptr[2], (const ELEMENT *)ptr[0] + n * arg[COPY_IN_STRIDE],
                 (ELEMENT *)ptr[1] + n * arg[COPY_OUT_STRIDE], p, r);
        if (++r < rows) continue;
        r = 0;
        if (++p < parts) continue;
        p = 0;
        n++;
    }
}
#endif

/* ---- Gather: run/gather.c ---- */

#ifdef KERNEL_GATHER
/* ROW, the bytes of a row, is a constant for short rows: then each copy is one instruction. */
static void take_rows(const char *restrict in, const NUMBER *restrict number, int64_t n,
                      const int64_t *arg, char *restrict out) {
    const int64_t rows = arg[GATHER_ROWS], stride = arg[GATHER_ROW_STRIDE];
    int64_t k;
    for (k = 0; k < n; k++) {
        const int64_t row = number[k] < 0 ? number[k] + rows : number[k];
        memcpy(out + k * (int64_t)ROW, in + row * stride, (size_t)ROW);
    }
}

void SOL_KERNEL(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end) {
    const int64_t indices = arg[GATHER_INDICES], planes = arg[GATHER_PLANES],
                  total = arg[GATHER_OUTER] * indices, last = share(total, end);
    int64_t at = share(total, begin), n;
    (void)scratch;
    for (; at < last; at += n) {
        const int64_t outer = at / indices, first = at % indices;
        const NUMBER *number = (const NUMBER *)ptr[1] + first;
        n = least_of(last - at, indices - first);
        if (!are_rows(number, n, arg[GATHER_LEAST], arg[GATHER_ROWS], ptr[3], arg + GATHER_N_ARGS))
            return;
        take_rows((const char *)ptr[0] + outer / planes * arg[GATHER_STRIDE] +
                      outer % planes * arg[GATHER_ROWS] * arg[GATHER_INNER],
                  number, n, arg, (char *)ptr[2] + at * arg[GATHER_INNER]);
    }
}
#endif

/* ---- Scatter_sum: run/gather.c ---- */

#ifdef KERNEL_SCATTER
static void add_row(const REAL *restrict in, REAL *restrict out, int64_t n) {
    int64_t i;
    for (i = 0; i < n; i++) out[i] = (REAL)(out[i] + in[i]);
}

/* A row of the output is divided into lines of so many elements, as a few rows may get all that is added. */
#define LINE 64

static int64_t lines_of(const int64_t *arg) {
    return arg[SCATTER_INNER] ? (arg[SCATTER_INNER] + LINE - 1) / LINE : 1;
}

/* The first element of a line. */
static int64_t line_at(const int64_t *arg, int64_t line) {
    const int64_t n = lines_of(arg), inner = arg[SCATTER_INNER];
    return line / n * inner + least_of(line % n * LINE, inner);
}

/* Lines [first, end) of the output of a batch: a task reads all indices, so that each sum has their order. REAL is unsigned for
 * integers, which wrap. */
static bool add_batch(void *const *ptr, const int64_t *arg, int64_t batch, int64_t first,
                      int64_t end) {
    const int64_t n = arg[SCATTER_INDICES], inner = arg[SCATTER_INNER], rows = arg[SCATTER_ROWS];
    const NUMBER *number = (const NUMBER *)ptr[1] + batch * n;
    const REAL *in = (const REAL *)ptr[0] + batch * n * inner;
    REAL *out = (REAL *)ptr[2] + batch * rows * inner;
    const int64_t from = line_at(arg, first), to = line_at(arg, end);
    int64_t i;
    if (!are_rows(number, n, arg[SCATTER_LEAST], rows, ptr[3], arg + SCATTER_N_ARGS)) return false;
    memset(out + from, 0, (size_t)(to - from) * sizeof *out);
    for (i = 0; i < n; i++) {
        const int64_t row = (number[i] < 0 ? number[i] + rows : number[i]) * inner;
        const int64_t low = row < from ? from : row, high = least_of(row + inner, to);
        if (low < high) add_row(in + i * inner + (low - row), out + low, high - low);
    }
    return true;
}

/* A batch without rows has one line here, of which no byte is written: its indices are checked, too. */
void SOL_KERNEL(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end) {
    const int64_t all = arg[SCATTER_ROWS] * lines_of(arg), lines = all ? all : 1;
    const int64_t total = arg[SCATTER_BATCHES] * lines, last = share(total, end);
    int64_t at = share(total, begin), n;
    (void)scratch;
    for (; at < last; at += n) {
        const int64_t first = at % lines;
        n = least_of(last - at, lines - first);
        if (!add_batch(ptr, arg, at / lines, first, least_of(first + n, all))) return;
    }
}
#endif

/* ---- Resample: run/resample.c ---- */

#ifdef KERNEL_RESAMPLE
/* out[c] += weight * in[c], for a row whose columns stay as they are. */
static void add_dense(const float *restrict in, float weight, int64_t n, float *restrict out) {
    int64_t c;
    for (c = 0; c < n; c++) out[c] += weight * in[c];
}

/* The same with one tap of columns, of `inner` elements each. */
static void add_tap(const float *restrict in, float weight, const NUMBER *restrict column,
                    const float *restrict weights, int64_t n, int64_t inner, float *restrict out) {
    int64_t c, i;
    for (c = 0; c < n && inner == 1; c++) out[c] += weight * weights[c] * in[column[c]];
    for (c = 0; c < n && inner > 1; c++)
        for (i = 0; i < inner; i++)
            out[c * inner + i] += weight * weights[c] * in[column[c] * inner + i];
}

static void add_row(void *const *ptr, const int64_t *arg, const float *in, float weight,
                    float *out) {
    const int64_t n = arg[RESAMPLE_COLUMNS], inner = arg[RESAMPLE_INNER];
    int64_t k;
    if (!arg[RESAMPLE_COLUMN_TAPS]) add_dense(in, weight, n * inner, out);
    for (k = 0; k < arg[RESAMPLE_COLUMN_TAPS]; k++)
        add_tap(in, weight, (const NUMBER *)ptr[4] + k * n, (const float *)ptr[5] + k * n, n, inner,
                out);
}

/* Row r of the output, of a plane. */
static void sum_rows(void *const *ptr, const int64_t *arg, const float *plane, int64_t r,
                     float *out) {
    const int64_t rows = arg[RESAMPLE_ROWS], row = arg[RESAMPLE_COLUMNS_IN] * arg[RESAMPLE_INNER];
    int64_t k;
    memset(out, 0, (size_t)(arg[RESAMPLE_COLUMNS] * arg[RESAMPLE_INNER]) * sizeof *out);
    if (!arg[RESAMPLE_ROW_TAPS]) add_row(ptr, arg, plane + r * row, 1, out);
    for (k = 0; k < arg[RESAMPLE_ROW_TAPS]; k++)
        add_row(ptr, arg, plane + ((const NUMBER *)ptr[2])[k * rows + r] * row,
                ((const float *)ptr[3])[k * rows + r], out);
}

static bool are_taps(void *const *ptr, const int64_t *arg) {
    return are_rows((const NUMBER *)ptr[2], arg[RESAMPLE_ROW_TAPS] * arg[RESAMPLE_ROWS], 0,
                    arg[RESAMPLE_ROWS_IN], ptr[RESAMPLE_N_POINTERS], arg + RESAMPLE_N_ARGS) &&
           are_rows((const NUMBER *)ptr[4], arg[RESAMPLE_COLUMN_TAPS] * arg[RESAMPLE_COLUMNS], 0,
                    arg[RESAMPLE_COLUMNS_IN], ptr[RESAMPLE_N_POINTERS], arg + RESAMPLE_N_ARGS);
}

void SOL_KERNEL(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end) {
    const int64_t rows = arg[RESAMPLE_ROWS], planes = arg[RESAMPLE_PLANES],
                  total = arg[RESAMPLE_OUTER] * rows, last = share(total, end);
    const int64_t row = arg[RESAMPLE_COLUMNS] * arg[RESAMPLE_INNER];
    const int64_t plane = arg[RESAMPLE_ROWS_IN] * arg[RESAMPLE_COLUMNS_IN] * arg[RESAMPLE_INNER];
    int64_t at = share(total, begin);
    (void)scratch;
    if (at >= last || !are_taps(ptr, arg)) return;
    for (; at < last; at++) {
        const int64_t outer = at / rows, n = outer / planes, r = at % rows;
        sum_rows(
            ptr, arg, (const float *)ptr[0] + n * arg[RESAMPLE_IN_STRIDE] + outer % planes * plane,
            r, (float *)ptr[1] + n * arg[RESAMPLE_OUT_STRIDE] + (outer % planes * rows + r) * row);
    }
}
#endif

/* ---- Recurrent layers: dnn/recurrent_plain.h, dnn/recurrent_grad_plain.h ---- */

#ifdef KERNEL_RECURRENT
/* LENGTHS and ERRORS are the numbers of the pointers of the layer, or of the gradient of one. The message has the numbers of the sample, of
 * its steps, and of the steps that there are. */
void SOL_KERNEL(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end) {
    const int64_t n = arg[RECURRENT_SAMPLES];
    const int64_t bad = RECURRENT_PLAIN(ptr, arg, share(n, begin), share(n, end));
    (void)scratch;
    if (bad)
        fail_call(ptr[ERRORS], arg[RECURRENT_N_ARGS], bad - 1,
                  ((const int64_t *)ptr[LENGTHS])[bad - 1], arg[RECURRENT_STEPS]);
}
#endif

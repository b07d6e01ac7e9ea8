/*
 * Fourier transforms, window functions, mel weights.
 *
 * A transform is computed by its definition, in double: n^2 steps, and errors far below those of f32. The last dim is 2 for complex
 * values, 1 for real values. A one-sided spectrum omits the half that is the complex conjugate of the other.
 */
#include "eval.h"

#include <math.h>
#include <string.h>

/* out[k] = sum over n of in[n] e^(sign 2 pi j k n / size), for k from 0 to n_out - 1. Values are pairs of real and imaginary
 * part. */
static void transform(const double *in, int64_t size, int sign, int64_t n_out, double *out) {
    for (int64_t k = 0; k < n_out; k++) {
        double re = 0, im = 0;
        for (int64_t n = 0; n < size; n++) {
            double angle = sign * 2 * M_PI * (double)(k * n % size) / (double)size;
            re += in[2 * n] * cos(angle) - in[2 * n + 1] * sin(angle);
            im += in[2 * n] * sin(angle) + in[2 * n + 1] * cos(angle);
        }
        out[2 * k] = re;
        out[2 * k + 1] = im;
    }
}

/* Copies `n` values to `line`, cut or padded with zeros to `size`. `mirrors`: they are a one-sided spectrum, which is completed. */
static void fill_line(const double *v, int64_t step, int64_t n, int64_t parts, int64_t size,
                      bool mirrors, double *line) {
    memset(line, 0, 2 * (size_t)size * sizeof *line);
    for (int64_t i = 0; i < min_i64(n, size); i++)
        for (int64_t p = 0; p < parts; p++) line[2 * i + p] = v[i * step + p];
    for (int64_t i = size / 2 + 1; i < size && mirrors; i++) {
        line[2 * i] = line[2 * (size - i)];
        line[2 * i + 1] = -line[2 * (size - i) + 1];
    }
}

/* One transform per frame of the signal, multiplied by the window. */
void run_stft(struct eval *e) {
    const struct array *x = eval_in(e, 0), *window = eval_has(e, 2) ? eval_in(e, 2) : NULL;
    int64_t step = eval_in_int(e, 1, 0);
    eval_check(e, x->rank == 3 || x->rank == 2, "a rank other than 3");
    int64_t parts = x->rank == 3 ? x->dim[2] : 1, n = x->dim[1],
            size = eval_in_int(e, 3, window ? window->n : n);
    bool is_half = eval_int(e, "onesided", 1);
    eval_check(e,
               step > 0 && size > 0 && size <= n && (parts == 1 || parts == 2) &&
                   (!window || window->n == size),
               "step, length or window");
    int64_t frames = (n - size) / step + 1, bins = is_half ? size / 2 + 1 : size;
    struct array *y = eval_out(e, 0, x->type, 4, (int64_t[]){x->dim[0], frames, bins, 2});
    double *v = array_doubles(e->space, x), *line = SPACE_ARRAY(e->space, double, 2 * size),
           *out = SPACE_ARRAY(e->space, double, 2 * bins);
    for (int64_t f = 0; f < x->dim[0] * frames; f++) {
        const double *from = v + (f / frames * n + f % frames * step) * parts;
        fill_line(from, parts, size, parts, size, false, line);
        for (int64_t i = 0; i < 2 * size && window; i++) line[i] *= array_double(window, i / 2);
        transform(line, size, -1, bins, out);
        for (int64_t i = 0; i < 2 * bins; i++) array_set_double(y, f * 2 * bins + i, out[i]);
    }
}

/* a0 - a1 cos(x) + a2 cos(2x); choice 0: Hann, 1: Hamming, 2: Blackman. */
void run_window(struct eval *e) {
    static const double rows[][3] = {{0.5, 0.5, 0}, {25.0 / 46, 21.0 / 46, 0}, {0.42, 0.5, 0.08}};
    const double *a = rows[e->op->choice];
    int64_t n = eval_in_int(e, 0, 0), type = eval_int(e, "output_datatype", TYPE_F32);
    eval_check(e, type_is_known(type) && type != TYPE_STRING, "output_datatype");
    struct array *y = eval_out(e, 0, (enum type)type, 1, &n);
    double period = (double)(eval_int(e, "periodic", 1) ? n : n - 1);
    for (int64_t i = 0; i < n; i++) {
        double x = period > 0 ? 2 * M_PI * (double)i / period : 0;
        array_set_double(y, i, period > 0 ? a[0] - a[1] * cos(x) + a[2] * cos(2 * x) : 1);
    }
}

/* Triangular filters over the bins of a spectrum; their corners are evenly spaced on the mel scale. */
void run_mel_weights(struct eval *e) {
    int64_t n = eval_in_int(e, 0, 0), length = eval_in_int(e, 1, 0), rate = eval_in_int(e, 2, 0);
    int64_t type = eval_int(e, "output_datatype", TYPE_F32), bins = length / 2 + 1;
    double low = 2595 * log10(1 + eval_in_double(e, 3, 0) / 700),
           high = 2595 * log10(1 + eval_in_double(e, 4, 0) / 700);
    eval_check(e,
               n > 0 && length > 0 && rate > 0 && n < INT32_MAX && length < INT32_MAX &&
                   type_is_known(type) && low >= 0 && high >= low,
               "sizes or frequencies");
    struct array *y = eval_out(e, 0, (enum type)type, 2, (int64_t[]){bins, n});
    int64_t *corner = SPACE_ARRAY(e->space, int64_t, n + 2);
    for (int64_t i = 0; i < n + 2; i++) {
        double mel = low + (high - low) / (double)(n + 2) * (double)i;
        double bin = floor((double)(length + 1) * 700 * (pow(10, mel / 2595) - 1) / (double)rate);
        eval_check(e, bin >= 0 && bin < (double)bins, "a frequency beyond the spectrum");
        corner[i] = (int64_t)bin;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t left = corner[i], top = corner[i + 1], right = corner[i + 2];
        for (int64_t j = left; j <= top; j++)
            array_set_double(y, j * n + i,
                             top == left ? 1 : (double)(j - left) / (double)(top - left));
        for (int64_t j = top; j < right; j++)
            array_set_double(y, j * n + i, (double)(right - j) / (double)(right - top));
    }
}

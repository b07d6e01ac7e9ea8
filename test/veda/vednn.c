/*
 * A stand-in for VEDNN, NEC's library for vector engines: the functions that src/device/ve/vednn.h declares, as plain loops.
 *
 *   libvednn_openmp.so <- kernels of the device ve, by SOL_NCC="cc -L<folder> -Wl,-rpath,<folder>"
 *
 * As the real one, it divides only samples, or output channels of a gradient, among the threads. For tests, $VEDNN_RESULT lets all functions
 * do nothing: 1 and more is the error that they return, -1 lets them return 0, so that wrong values show that they were called.
 */
#include "device/ve/vednn.h"

#include <stdint.h>
#include <stdlib.h>

typedef const struct vednn_tensor tensor;
typedef const struct vednn_filter filter;
typedef const struct vednn_convolution convolution;

static int is_idle(int *result) {
    const char *value = getenv("VEDNN_RESULT");
    *result = value && *value != '-' ? atoi(value) : 0;
    return value != 0;
}

/* The index of x's value at a window's point (r, s) for y's pixel (i, j); -1: in the padding. */
static int64_t find(tensor *x, convolution *v, int n, int c, int i, int j, int r, int s) {
    const int64_t row = (int64_t)i * v->stride_y - v->pad_y + (int64_t)r * v->dilation_y;
    const int64_t column = (int64_t)j * v->stride_x - v->pad_x + (int64_t)s * v->dilation_x;
    if (row < 0 || row >= x->height || column < 0 || column >= x->width) return -1;
    return (((int64_t)n * x->channels + c) * x->height + row) * x->width + column;
}

static float sum_window(tensor *of_x, const float *x, filter *w, const float *weight,
                        convolution *v, int n, int k, int i, int j) {
    float sum = 0;
    for (int c = 0; c < w->in; c++)
        for (int r = 0; r < w->height; r++)
            for (int s = 0; s < w->width; s++) {
                const int64_t at = find(of_x, v, n, k / w->out * w->in + c, i, j, r, s);
                if (at >= 0)
                    sum +=
                        x[at] * weight[(((int64_t)k * w->in + c) * w->height + r) * w->width + s];
            }
    return sum;
}

int vednnConvolutionForward(tensor *of_x, const void *x, filter *of_weight, const void *weight,
                            tensor *of_y, void *y, convolution *v, int algorithm) {
    int result;
    if (is_idle(&result) || algorithm) return result + algorithm;
#pragma omp parallel for
    for (int n = 0; n < of_y->batch; n++) {
        float *to = (float *)y + (int64_t)n * of_y->channels * of_y->height * of_y->width;
        for (int k = 0; k < of_y->channels; k++)
            for (int i = 0; i < of_y->height; i++)
                for (int j = 0; j < of_y->width; j++)
                    *to++ = sum_window(of_x, x, of_weight, weight, v, n, k, i, j);
    }
    return 0;
}

static float sum_images(tensor *of_x, const float *x, tensor *of_dy, const float *dy,
                        convolution *v, int k, int c, int r, int s) {
    float sum = 0;
    for (int n = 0; n < of_dy->batch; n++)
        for (int i = 0; i < of_dy->height; i++)
            for (int j = 0; j < of_dy->width; j++) {
                const int64_t at = find(of_x, v, n, c, i, j, r, s);
                const int64_t y =
                    (((int64_t)n * of_dy->channels + k) * of_dy->height + i) * of_dy->width + j;
                if (at >= 0) sum += x[at] * dy[y];
            }
    return sum;
}

int vednnConvolutionBackwardFilter(tensor *of_x, const void *x, tensor *of_dy, const void *dy,
                                   filter *w, void *dw, convolution *v, int algorithm) {
    int result;
    if (is_idle(&result) || algorithm) return result + algorithm;
#pragma omp parallel for
    for (int k = 0; k < of_dy->channels; k++) {
        float *to = (float *)dw + (int64_t)k * w->in * w->height * w->width;
        for (int c = 0; c < w->in; c++)
            for (int r = 0; r < w->height; r++)
                for (int s = 0; s < w->width; s++)
                    *to++ = sum_images(of_x, x, of_dy, dy, v, k, k / w->out * w->in + c, r, s);
    }
    return 0;
}

int vednnLinearBackwardData(unsigned long n_in, unsigned long n_out, unsigned long batch,
                            const void *dy, const void *weight, void *dx) {
    int result;
    if (is_idle(&result)) return result;
#pragma omp parallel for
    for (unsigned long n = 0; n < batch; n++)
        for (unsigned long i = 0; i < n_in; i++) {
            float sum = 0;
            for (unsigned long o = 0; o < n_out; o++)
                sum += ((const float *)dy)[n * n_out + o] * ((const float *)weight)[i * n_out + o];
            ((float *)dx)[n * n_in + i] = sum;
        }
    return 0;
}

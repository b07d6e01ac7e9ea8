/*
 * A custom layer: turns each channel of an image around its center, by an angle that shrinks to the corners, and adds a bias.
 *
 *   y[n,c,i,j] = x[n,c,i',j'] + bias[c]    (i',j'): the position (i,j), turned by angle * (1 - distance / radius)
 *
 * Values between pixels are interpolated; outside of the image they are 0. A task is one channel of one image.
 */
#include <math.h>
#include <sol/custom.h>

/* The number of channels of all images; SOL divides them among its threads. */
int64_t swirl_tasks(const struct sol_host_call *call) {
    return call->in[0].dim[0] * call->in[0].dim[1];
}

static float pixel(const float *x, int64_t h, int64_t w, int64_t i, int64_t j) {
    return i >= 0 && i < h && j >= 0 && j < w ? x[i * w + j] : 0;
}

static float interpolate(const float *x, int64_t h, int64_t w, float i, float j) {
    const int64_t i0 = (int64_t)floorf(i), j0 = (int64_t)floorf(j);
    const float p = i - (float)i0, q = j - (float)j0;
    const float above = (1 - q) * pixel(x, h, w, i0, j0) + q * pixel(x, h, w, i0, j0 + 1);
    const float below = (1 - q) * pixel(x, h, w, i0 + 1, j0) + q * pixel(x, h, w, i0 + 1, j0 + 1);
    return (1 - p) * above + p * below;
}

static void turn_channel(const float *x, float bias, float angle, int64_t h, int64_t w, float *y) {
    const float i0 = 0.5f * (float)(h - 1), j0 = 0.5f * (float)(w - 1);
    const float radius = sqrtf(i0 * i0 + j0 * j0) + 1e-6f;
    for (int64_t i = 0; i < h; i++)
        for (int64_t j = 0; j < w; j++) {
            const float di = (float)i - i0, dj = (float)j - j0;
            const float turn = angle * (1 - sqrtf(di * di + dj * dj) / radius);
            const float c = cosf(turn), s = sinf(turn);
            *y++ = interpolate(x, h, w, i0 + c * di + s * dj, j0 - s * di + c * dj) + bias;
        }
}

enum sol_status swirl(const struct sol_host_call *call) {
    const struct sol_host_tensor *x = &call->in[0], *bias = &call->in[1];
    if (x->dtype != SOL_F32 || bias->dtype != SOL_F32 || x->rank != 4 || bias->rank != 1 ||
        bias->dim[0] != x->dim[1])
        return sol_host_fail(call, SOL_EINVAL, "expected x f32[N,C,H,W] and bias f32[C]");
    const float angle = (float)sol_attribute_float(call, "angle");
    const int64_t h = x->dim[2], w = x->dim[3];
    for (int64_t t = call->begin; t < call->end; t++)
        turn_channel((const float *)x->data + t * h * w, ((const float *)bias->data)[t % x->dim[1]],
                     angle, h, w, (float *)call->out[0].data + t * h * w);
    return SOL_OK;
}

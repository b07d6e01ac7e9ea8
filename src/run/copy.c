/*
 * The copy step: reorders values without computing anything.
 *
 *   plan/movement.c makes the table -> plan/build.c makes the step -> copy_run
 *
 * A table describes any reordering of values (into and out of channel blocks, channel shuffle, slice, flatten) of one sample,
 * or of a whole tensor. It has, for each stored output channel, the position of its first value in the input, and one
 * stride from pixel to pixel for all channels.
 */
#include "run/program.h"

#include <string.h>

int64_t copy_n_tasks(const struct step *step, const int64_t *arg) {
    const struct copy_table *table = step->data;
    return arg[0] * table->n_outer;
}

/* Position of the first pixel of a stored channel: the blocks before it have `pixels` pixels each. */
static int64_t first_pixel(const struct copy_table *table, int32_t channel, int64_t pixels) {
    if (channel < 0) return -1;
    const int64_t lane = channel % table->in_lanes;
    return (channel - lane) * pixels + lane;
}

enum sol_status copy_adapt(const struct step *step, const int64_t *arg, struct arena *arena,
                           const struct step **out) {
    const struct copy_table *open = step->data;
    const int64_t n = (int64_t)open->n_outer * open->lanes, pixels = arg[COPY_PIXELS];
    int32_t *base = ARENA_ARRAY(arena, int32_t, n + 1);
    struct copy_table table = *open;
    struct step copy = *step;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = first_pixel(open, open->base[i], pixels);
        if (at > INT32_MAX || pixels > INT32_MAX)
            return fail(SOL_EUNSUPPORTED, "%s: an image of %lld pixels is too large", step->layers,
                        (long long)pixels);
        base[i] = (int32_t)at;
    }
    table.n_pixels = (int)pixels;
    table.base = base;
    copy.data = arena_copy(arena, &table, sizeof table);
    *out = arena_copy(arena, &copy, sizeof copy);
    return SOL_OK;
}

/* Copies one channel to consecutive elements. */
static void copy_row(const float *in, float *out, int64_t n, int64_t stride) {
    if (stride == 1) memcpy(out, in, (size_t)n * sizeof *out);
    else
        for (int64_t p = 0; p < n; p++) out[p] = in[p * stride];
}

/* Copies one block of channels. Pixels are the outer loop, so that output is written in order. Unrolled, because the time of the
 * short loop would depend on its address: where it crossed a cache line, a channel shuffle took 1.8 times as long (Zen 5). */
static void copy_block(const struct copy_table *t, const int32_t *base, const float *in,
                       float *out) {
    for (int p = 0; p < t->n_pixels; p++, in += t->pixel_stride, out += t->lanes) {
#pragma GCC unroll 8
        for (int l = 0; l < t->lanes; l++) out[l] = base[l] < 0 ? 0.0f : in[base[l]];
    }
}

/* Are the n channels of a block consecutive in the input, too? Then one memcpy moves them. */
static bool is_run(const int32_t *base, int n) {
    for (int l = 0; l < n; l++)
        if (base[l] < 0 || base[l] != base[0] + l) return false;
    return true;
}

static void copy_lines(const struct copy_table *t, const float *in, float *out) {
    size_t line = (size_t)t->lanes * sizeof *out;
    for (int p = 0; p < t->n_pixels; p++)
        memcpy(out + (int64_t)p * t->lanes, in + p * t->pixel_stride, line);
}

void copy_run(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
              int64_t begin, int64_t end) {
    (void)scratch;
    const struct copy_table *t = step->data;
    for (int64_t task = begin; task < end; task++) {
        int64_t n = task / t->n_outer, o = task % t->n_outer;
        const float *in = (const float *)ptr[0] + n * arg[1];
        float *out = (float *)ptr[1] + n * arg[2] + o * t->n_pixels * t->lanes;
        const int32_t *base = t->base + o * t->lanes;
        if (t->lanes == 1 && base[0] >= 0)
            copy_row(in + base[0], out, t->n_pixels, t->pixel_stride);
        else if (is_run(base, t->lanes)) copy_lines(t, in + base[0], out);
        else copy_block(t, base, in, out);
    }
}

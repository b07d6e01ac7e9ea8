/* Stored channels of random problems, for the tests of module DNN. */
#ifndef TEST_CHANNELS_H
#define TEST_CHANNELS_H

#include "random.h"

#include <stdbool.h>

/* Fills a map of channels that are stored in one or two padded segments. Returns the number of stored channels. */
static inline int map_channels(struct random *r, int n_model, int lanes, int *map) {
    int split = n_model > 1 && random_one_in(r, 3) ? random_int(r, 1, n_model - 1) : n_model, n = 0;
    for (int c = 0; c < n_model; c++) {
        if (c == split)
            while (n % lanes) map[n++] = -1;
        map[n++] = c;
    }
    while (n % lanes) map[n++] = -1;
    return n;
}

/* The place of a stored channel's pixel inside an image. */
static inline int64_t locate_pixel(int lanes, bool plain, int64_t pixels, int64_t channel,
                                   int64_t pixel) {
    if (plain) return channel * pixels + pixel;
    return (channel / lanes * pixels + pixel) * lanes + channel % lanes;
}

/* Images as kernels read them. */
struct images {
    int64_t n, stride, pixels; /* stride: floats from one to the next */
    int channels, lanes;
    const int *map;
    bool plain;
};

/* Random values, 0 in lanes that pad channels; what lies between images stays. */
static inline void fill_images(struct random *r, const struct images *s, float *at) {
    for (int64_t n = 0; n < s->n; n++)
        for (int c = 0; c < s->channels; c++)
            for (int64_t i = 0; i < s->pixels; i++)
                at[n * s->stride + locate_pixel(s->lanes, s->plain, s->pixels, c, i)] =
                    s->map && s->map[c] < 0 ? 0 : random_float(r, -1, 1);
}

#endif

/* Stored channels of random problems, for the tests of module DNN. */
#ifndef TEST_CHANNELS_H
#define TEST_CHANNELS_H

#include "random.h"

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

#endif

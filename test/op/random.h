/*
 * Random numbers for tests: xorshift, so that a printed seed gives the same test on every machine.
 */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>

struct random {
    uint64_t state; /* never 0 */
};

static inline struct random random_start(uint64_t seed) {
    /* Neighbouring seeds differ in a few bits; the multiplication spreads them. */
    return (struct random){(seed + 1) * 0x9e3779b97f4a7c15u | 1};
}

static inline uint64_t random_next(struct random *r) {
    r->state ^= r->state << 13;
    r->state ^= r->state >> 7;
    r->state ^= r->state << 17;
    return r->state * 0x2545f4914f6cdd1du >> 16;
}

/* One of low..high, both included. */
static inline int random_int(struct random *r, int low, int high) {
    return low + (int)(random_next(r) % (uint64_t)(high - low + 1));
}

/* True once in n. */
static inline int random_one_in(struct random *r, int n) { return random_int(r, 1, n) == 1; }

/* Uniform in [low, high), with 20 bits: sums of a few such values are often exact. */
static inline float random_float(struct random *r, float low, float high) {
    return low + (high - low) * (float)(random_next(r) >> 28) / (float)(1 << 20);
}

#define RANDOM_PICK(r, array) \
    ((array)[random_int(r, 0, (int)(sizeof(array) / sizeof(array)[0]) - 1)])

#endif

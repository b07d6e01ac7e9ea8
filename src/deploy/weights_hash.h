/*
 * The hash of a weights file, which detects damage. It runs at the speed of memory. libsol, native libraries and portable C, which
 * includes this text, compute the same value.
 *
 * Each of four lanes hashes every fourth word. Each step of a lane is invertible, so a change within one word always changes the
 * hash. Words have the machine's byte order: on a machine with the other order the hash differs, and so would the weights.
 */
#ifndef SOL_WEIGHTS_HASH_H
#define SOL_WEIGHTS_HASH_H

#include <stdint.h>
#include <string.h>

/* The four lanes; they start as zeros. */
struct weights_hash {
    uint64_t a, b, c, d;
};

static uint64_t weights_hash_mix(uint64_t lane, const char *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    lane = (lane ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return lane ^ lane >> 32;
}

/* Adds `size` bytes, a multiple of 32. */
static void weights_hash_add(struct weights_hash *hash, const char *at, size_t size) {
    struct weights_hash h = *hash;
    const char *end = at + size;
    for (; at < end; at += 32) {
        h.a = weights_hash_mix(h.a, at);
        h.b = weights_hash_mix(h.b, at + 8);
        h.c = weights_hash_mix(h.c, at + 16);
        h.d = weights_hash_mix(h.d, at + 24);
    }
    *hash = h;
}

static uint64_t weights_hash_end(const struct weights_hash *hash) {
    uint64_t sum = 0;
    sum = weights_hash_mix(sum, (const char *)&hash->a);
    sum = weights_hash_mix(sum, (const char *)&hash->b);
    sum = weights_hash_mix(sum, (const char *)&hash->c);
    return weights_hash_mix(sum, (const char *)&hash->d);
}

#endif

/*
 * A 64 bit hash for tables and file names. Not cryptographic: after a match, callers compare the
 * data, too.
 *
 * Each step multiplies two 64 bit numbers to 128 bits and combines the halves by xor (as wyhash does),
 * which mixes 16 bytes in about 4 cycles. Values may differ between machines of different byte
 * order.
 */
#include "base/base.h"

#include <string.h>

__extension__ typedef unsigned __int128 u128;

/* Odd numbers with about as many ones as zeros; from wyhash. */
static const uint64_t secret[3] = {0xa0761d6478bd642f, 0xe7037ed1a0b428db, 0x8ebc6af09c88c6e3};

static uint64_t fold(uint64_t a, uint64_t b) {
    u128 product = (u128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t load(const unsigned char *at, size_t size) {
    uint64_t value = 0;
    memcpy(&value, at, size);
    return value;
}

uint64_t hash_bytes(uint64_t seed, const void *data, size_t size) {
    const unsigned char *at = data;
    uint64_t hash = seed ^ secret[0];
    size_t left = size;
    for (; left > 16; left -= 16, at += 16)
        hash = fold(load(at, 8) ^ secret[1], load(at + 8, 8) ^ hash);
    /* The last 0 to 16 bytes, filled up with zeros. Inputs that differ only in zeros at the end get different hashes,
     * as the size is hashed, too. */
    uint64_t low = 0, high = 0;
    if (left) low = load(at, left < 8 ? left : 8);
    if (left > 8) high = load(at + 8, left - 8);
    hash = fold(low ^ secret[1], high ^ hash);
    return fold(hash ^ secret[2], (uint64_t)size ^ secret[1]);
}

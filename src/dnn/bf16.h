/*
 * Pairs of bf16, for *_kernel.c: a word holds two neighbouring factors of a sum, the first one in its lower half. An instruction
 * multiplies the pairs of two vectors of words, and adds both products to a sum of f32.
 *
 * BF16_PAIRS: the instruction set may have it. Code calls these functions only if bf16_has_pairs() tells that the processor has it. They
 * are written for the assembler, so that one object file serves processors with and without the instructions.
 */
#ifndef SOL_DNN_BF16_H
#define SOL_DNN_BF16_H

#include "dnn/list.h"
#include "dnn/simd_math.h"

#if LANES == 16 && defined __AVX512F__
#define BF16_PAIRS 1

static inline bool bf16_has_pairs(void) { return BF16_HAS_PAIRS; }

/* sum + the products of both halves of x and w */
INLINE vec bf16_multiply(vec sum, vec x, vec w) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
}

/* 2 * LANES neighbouring values: word i is values 2i and 2i + 1. */
INLINE vec bf16_round(vec low, vec high) {
    vec words;
    __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(words) : "v"(low), "v"(high));
    return words;
}

/* Word i is first[i] and second[i]. */
INLINE vec bf16_join(vec first, vec second) {
    static const uint16_t order[4 * LANES / 2] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                  21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                  11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return (vec)_mm512_permutexvar_epi16(_mm512_loadu_si512(order),
                                         (__m512i)bf16_round(first, second));
}
#else
#define BF16_PAIRS 0
static inline bool bf16_has_pairs(void) { return false; }
INLINE vec bf16_multiply(vec sum, vec x, vec w) { return sum + x * w; }
INLINE vec bf16_round(vec low, vec high) { return low + high; }
INLINE vec bf16_join(vec first, vec second) { return first + second; }
#endif

/* The word at `at` in each lane, whatever its bits are. */
INLINE vec bf16_spread(const float *at) {
    int32_t word;
    memcpy(&word, at, sizeof word);
    return (vec)(word - (ivec){0});
}

/* Writes rows of n values as rows of ceil(n / 2) words, without gaps. The word behind an odd number has a zero. */
static inline void bf16_round_rows(const float *from, int64_t row, int64_t rows, int64_t n,
                                   float *to) {
    const int64_t words = ceil_div(n, 2);
    for (int64_t r = 0; r < rows; r++, from += row, to += words)
        for (int64_t i = 0; i < n; i += 2 * LANES)
            store_part(
                to + i / 2,
                bf16_round(load_part(from + i, n - i), load_part(from + i + LANES, n - i - LANES)),
                words - i / 2);
}

/* Writes pairs of rows of n values as rows of n words, without gaps. An odd last row is joined with zeros. `to` may be `from`, if rows
 * of it have no gaps. */
static inline void bf16_join_rows(const float *from, int64_t row, int64_t rows, int64_t n,
                                  float *to) {
    for (int64_t r = 0; r < rows; r += 2, from += 2 * row, to += n)
        for (int64_t i = 0; i < n; i += LANES) {
            const vec second = r + 1 < rows ? load_part(from + row + i, n - i) : (vec){0};
            store_part(to + i, bf16_join(load_part(from + i, n - i), second), n - i);
        }
}

#endif

/* The reference of random numbers, by the definition of Threefry-2x32 with 20 rounds in Salmon et al., SC 2011. */
#include "device/ref/eval.h"

/* Four rounds of a group, then two words of the extended key, and the group's number. */
static uint32_t encrypt(uint32_t counter, uint32_t key0, uint32_t key1) {
    static const int distances[8] = {13, 15, 26, 6, 17, 29, 16, 24};
    const uint32_t extended[3] = {key0, key1, key0 ^ key1 ^ 0x1BD11BDA};
    uint32_t word[2] = {counter + key0, key1};
    for (uint32_t group = 1; group <= 5; group++) {
        for (int i = 0; i < 4; i++) {
            const int n = distances[(group - 1) % 2 * 4 + (uint32_t)i];
            word[0] += word[1];
            word[1] = word[1] << n | word[1] >> (32 - n);
            word[1] ^= word[0];
        }
        word[0] += extended[group % 3];
        word[1] += extended[(group + 1) % 3] + group;
    }
    return word[0];
}

static uint32_t read_bits(const struct layer_call *c, int k, const int64_t *at) {
    const struct shape shape = ref_get_shape(c, k);
    return (uint32_t)ref_whole(c, k, ref_find_broadcast(&shape, c->shape.rank, at));
}

void ref_eval_random_bits(const struct layer_call *c) {
    int64_t at[SOL_MAX_RANK] = {0};
    for (int64_t i = 0; i < c->shape.n; i++) {
        const uint32_t bits =
            encrypt(read_bits(c, 0, at), read_bits(c, 1, at), read_bits(c, 2, at));
        ref_set_whole(c, i, (int32_t)bits);
        ref_step_point(&c->shape, at);
    }
}

void ref_eval_random(const struct layer_call *c) {
    const uint64_t seed = (uint64_t)ref_whole(c, 0, 0);
    const uint32_t low = (uint32_t)seed, high = (uint32_t)(seed >> 32),
                   counter = (uint32_t)(2 * c->attr->stream);
    const uint32_t key[2] = {encrypt(counter, low, high), encrypt(counter + 1, low, high)};
    for (int64_t i = 0; i < c->shape.n; i++)
        ref_set_real(c, i, (double)(encrypt((uint32_t)i, key[0], key[1]) >> 8) / (1 << 24));
}

/*
 * MatMulNBits of the domain com.microsoft: a weight of 2, 4 or 8 bits in blocks, as quantized language models have it.
 *
 * It is unpacked while importing, to f32. So the product is as fast as that of floats, and needs as much memory.
 */
#include "import.h"

/* The sizes of the weight [rows, columns]; `blocks` per row. A row of codes, or of zero points, begins with a whole byte. */
struct packing {
    int64_t rows, columns, block, blocks;
    int bits;
};

static bool read_packing(struct op_call *c, struct packing *out) {
    *out = (struct packing){.rows = call_int(c, "N", 0),
                            .columns = call_int(c, "K", 0),
                            .block = call_int(c, "block_size", 0),
                            .bits = (int)call_int(c, "bits", 4)};
    if (out->rows < 1 || out->columns < 1 || out->block < 8 || out->block % 8 ||
        out->rows > INT32_MAX || out->columns > INT32_MAX || out->block > INT32_MAX)
        return false;
    out->blocks = ceil_div(out->columns, out->block);
    return out->bits == 2 || out->bits == 4 || out->bits == 8;
}

/* Code `i` of a row of codes, the lowest bits first. */
static int read_code(const uint8_t *row, int64_t i, int bits) {
    return row[i * bits / 8] >> (i * bits % 8) & ((1 << bits) - 1);
}

/* The values of input `i`, which must be known and of `n` elements; NULL with an error. */
static const void *known(struct op_call *c, int i, int64_t n, bool is_code) {
    const void *at = c->im->status ? NULL : call_read_bytes(c->in[i]);
    if (c->im->status) return NULL;
    if (!at) call_fail(c, fail(SOL_EUNSUPPORTED, "input %d is not known before the call", i));
    else if (call_count(c->in[i]) != n || (is_code && c->in[i]->dtype != SOL_U8) ||
             (!is_code && size_family(c->in[i]->dtype) != FAMILY_FLOAT))
        call_fail(c, fail(SOL_EINVAL, "input %d has %lld values of type %s, %lld are expected", i,
                          (long long)call_count(c->in[i]), size_dtype_name(c->in[i]->dtype),
                          (long long)n));
    return c->im->status ? NULL : at;
}

/* (code - zero point) * scale, with a scale and a zero point per block. */
static sol_tensor unpack(struct op_call *c, const struct packing *p) {
    const int64_t row = p->blocks * (p->block * p->bits / 8),
                  zero_row = ceil_div(p->blocks * p->bits, 8),
                  element = size_element(c->in[2]->dtype);
    const uint8_t *code = known(c, 1, p->rows * row, true),
                  *zero = call_has(c, 3) ? known(c, 3, p->rows * zero_row, true) : NULL;
    const char *scale = known(c, 2, p->rows * p->blocks, false);
    if (c->im->status) return -1;
    float *out = ARENA_ARRAY(c->im->arena, float, p->rows * p->columns);
    for (int64_t r = 0; r < p->rows; r++) {
        for (int64_t k = 0; k < p->columns; k++) {
            const int64_t b = k / p->block;
            const double s = tensor_double(c->in[2]->dtype, scale + (r * p->blocks + b) * element);
            const int z = zero ? read_code(zero + r * zero_row, b, p->bits) : 1 << (p->bits - 1);
            out[r * p->columns + k] = (float)(s * (read_code(code + r * row, k, p->bits) - z));
        }
    }
    return call_param(c, SOL_F32, 2, (int64_t[]){p->rows, p->columns}, out);
}

/* Inputs: x, codes, scales, zero points, an order of the columns (not supported), a bias. */
enum sol_status op_matmul_bits(struct op_call *c) {
    struct packing p;
    if (!read_packing(c, &p))
        return fail(SOL_EUNSUPPORTED, "%d bits, or sizes that do not fit", p.bits);
    if (call_has(c, 4)) return fail(SOL_EUNSUPPORTED, "an order of the columns");
    sol_tensor in[3] = {call_cast(c, call_tensor(c, 0), SOL_F32), unpack(c, &p), -1};
    if (call_has(c, 5)) in[2] = call_cast(c, call_tensor(c, 5), SOL_F32);
    sol_tensor y = call_layer(c, "linear", 2 + call_has(c, 5), in, "");
    return call_set_output(c, 0, call_cast(c, y, c->in[0]->dtype));
}

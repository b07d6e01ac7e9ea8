/*
 * Registers: which type a value has while it is computed, and when a cast changes it.
 *
 *   element types of tensors and expressions  ->  [this file]  ->  registers of nodes (node.c), names of functions in the text
 */
#include "dfp/nest.h"

#include <math.h>

static const struct {
    enum sol_dtype dtype;
    int floats;
    const char *suffix;
} regs[N_REGS] = {
    [REG_F32] = {SOL_F32, 1, ""},
    [REG_F64] = {SOL_F64, 2, "_f64"},
    [REG_I32] = {SOL_I32, 1, "_i32"},
    [REG_I64] = {SOL_I64, 2, "_i64"},
};

enum reg reg_of(enum sol_dtype dtype) {
    if (dtype == SOL_F64) return REG_F64;
    if (dtype == SOL_I64) return REG_I64;
    return size_family(dtype) == FAMILY_INTEGER ? REG_I32 : REG_F32;
}

enum sol_dtype reg_dtype(enum reg reg) { return regs[reg].dtype; }
int reg_floats(enum reg reg) { return regs[reg].floats; }
const char *reg_suffix(enum reg reg) { return regs[reg].suffix; }
bool reg_is_integer(enum reg reg) { return reg == REG_I32 || reg == REG_I64; }

/* Is each value of type `from` also one of type `to`, in the same register type? */
bool reg_needs_cast(enum sol_dtype from, enum sol_dtype to) {
    bool wider = to == reg_dtype(reg_of(to)) || (from == SOL_BOOL && reg_of(to) == REG_F32) ||
                 (to == SOL_I16 && (from == SOL_U8 || from == SOL_I8));
    return from != to && !(reg_of(from) == reg_of(to) && wider);
}

double reduce_neutral(const struct node *n) {
    const double neutral = combines[n->combine].neutral;
    const int bits = 8 * (int)size_element(n->to);
    const bool is_short = reg_of(n->to) == REG_I32 && n->to != SOL_I32, is_signed = n->to != SOL_U8;
    if (!isinf(neutral) || (!is_short && n->to != SOL_BOOL)) return neutral;
    if (n->to == SOL_BOOL) return neutral > 0;
    if (neutral < 0) return is_signed ? -ldexp(1, bits - 1) : 0;
    return ldexp(1, is_signed ? bits - 1 : bits) - 1;
}

enum sol_dtype nest_stored_type(const struct value *v) {
    enum sol_dtype dtype = v->tensor->dtype;
    return nest_in_scratch(v) ? reg_dtype(reg_of(dtype)) : dtype;
}

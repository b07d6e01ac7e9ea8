/*
 * Sizes: integer polynomials over the model's symbols, such as the batch.
 *
 *   dims of a model, strides, offsets, trip counts -> struct size -> size_eval per vector of symbol values (run/bind.c)
 *
 * Used for each number that may be known only at the call. Invariant: a size is in normal form, so that equal sizes have equal
 * bytes.
 */
#ifndef SOL_SIZE_H
#define SOL_SIZE_H

#include "base/base.h"

#define SIZE_SYMBOLS 4
#define SIZE_TERMS 4
/* Sum of coef * prod(symbol[i]^power[i]). Normal form: terms sorted by power, no zero coefficients, all other bytes zero. */
struct size_term {
    int64_t coef;
    uint8_t power[SIZE_SYMBOLS];
    uint8_t pad[4]; /* zero, so that sizes can be compared as bytes */
};
struct size {
    int32_t n;   /* terms in use; unused ones are zero */
    int32_t bad; /* overflow, or too many terms: the builder turns this into an error */
    struct size_term term[SIZE_TERMS];
};
struct size size_const(int64_t value);
struct size size_symbol(int symbol);
struct size size_add(struct size a, struct size b);
struct size size_sub(struct size a, struct size b);
struct size size_mul(struct size a, struct size b);
struct size size_scale(struct size a, int64_t factor);
bool size_divide(struct size a, struct size b,
                 struct size *out); /* false when not exact, or b == 0 */
bool size_equal(struct size a, struct size b);
bool size_is_const(struct size a);
bool size_is(struct size a, int64_t value);
int64_t size_value(struct size a);       /* a must be constant */
bool size_never_negative(struct size a); /* no coefficient < 0: true of every dim */
int size_symbols(struct size a);         /* highest symbol in use + 1 */
int64_t size_eval(const struct size *a, const int64_t *symbols); /* saturates at INT64_MAX */
#define SIZE_TEXT 256
int64_t size_element(enum sol_dtype dtype);        /* bytes */
const char *size_dtype_name(enum sol_dtype dtype); /* "f32" */
const char *size_c_type(enum sol_dtype dtype);     /* "float": the C type of a stored element */
/* What can be computed with an element type. */
enum size_family { FAMILY_FLOAT = 1, FAMILY_INTEGER = 2, FAMILY_TRUTH = 4 };
enum size_family size_family(enum sol_dtype dtype);
void size_format(char out[SIZE_TEXT], struct size a); /* size_print without an arena */
void size_print(struct text *text, struct size a);    /* "3", "$0", "6*$0+1" */
bool size_parse(const char **at, struct size *out); /* reads what size_print writes, advances *at */

#endif

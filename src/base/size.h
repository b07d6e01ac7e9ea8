/*
 * Sizes: integer polynomials over the model's symbols, such as the batch.
 *
 *   dims of a model, strides, offsets, trip counts -> struct size -> size_eval per vector of symbol values (run/bind.c)
 *
 * Used for each number that may be known only at the call. Invariant: a size is in normal form, so that equal sizes have equal
 * bytes.
 *
 * Symbols [0, SIZE_FREE) are free: their values, which are never negative, come from the caller. The others are derived: each
 * stands for a quotient, rounded down, of a polynomial of symbols before it. So a convolution of stride 2, which halves the
 * rows, has a size that is a polynomial, too. A struct size_table lists the quotients; no two of them are equal.
 */
#ifndef SOL_SIZE_H
#define SOL_SIZE_H

#include "base/base.h"

#define SIZE_FREE SOL_MAX_SYMBOLS /* the most free symbols of a model */
#define SIZE_SYMBOLS 96 /* the most symbols of a model, derived ones included */
#define SIZE_TERMS 6
#define SIZE_FACTORS 4
/* Sum of coef * product of symbol^power. Normal form: factors in ascending order of their symbols, without powers of 0; terms
 * sorted (size.c), no zero coefficients; all other bytes zero. */
struct size_factor {
    uint8_t symbol, power; /* power 0: the end of the factors */
};
struct size_term {
    int64_t coef;
    struct size_factor factor[SIZE_FACTORS];
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
/* `symbols` has the values of all symbols, by number; size_derive fills in the derived ones. Saturates at INT64_MAX. */
int64_t size_eval(const struct size *a, const int64_t *symbols);

/* Derived symbol number SIZE_FREE + i is floor(numerator / divisor) of entry i. Normal form: divisor > 1; no
 * coefficient is negative or a multiple of the divisor, and they have no divisor in common with it, but for the constant, which
 * is less than the divisor. So its value is never negative, as no symbol's is. */
struct size_quotient {
    struct size numerator;
    int64_t divisor;
};
struct size_table {
    int n_free;
    /* Of free symbols: their values are multiples of `multiple` (0 and 1: any), and at least `least`. */
    int64_t multiple[SIZE_FREE], least[SIZE_FREE];
    int n;
    struct size_quotient at[SIZE_SYMBOLS - SIZE_FREE];
};
/* The size that is the value of a free symbol: 16*$8 with $8 = floor($1/16), if its values are multiples of 16. So sums of its
 * halves and quarters are known to fit. */
struct size size_free(struct size_table *table, int symbol);
/* floor(a / divisor) and ceil(a / divisor), for divisor >= 1. Adds a derived symbol to the table if it needs a new one; bad if
 * the table is full. Parts that the divisor divides need no symbol: floor((4*a+3)/2) is 2*a+1. */
struct size size_floor(struct size_table *table, struct size a, int64_t divisor);
struct size size_ceil(struct size_table *table, struct size a, int64_t divisor);
/* Does the value depend on a symbol, directly or in a quotient? */
bool size_depends(const struct size_table *table, struct size a, int symbol);
/* Computes the values of the n derived symbols from those of the free ones. */
void size_derive(const struct size_quotient *quotient, int n, int64_t symbols[SIZE_SYMBOLS]);
#define SIZE_TEXT 512 /* SOL_SIZE_TEXT of the public interface */
int64_t size_element(enum sol_dtype dtype);        /* bytes */
const char *size_dtype_name(enum sol_dtype dtype); /* "f32" */
const char *size_c_type(enum sol_dtype dtype);     /* "float": the C type of a stored element */
/* What can be computed with an element type. */
enum size_family { FAMILY_FLOAT = 1, FAMILY_INTEGER = 2, FAMILY_TRUTH = 4 };
enum size_family size_family(enum sol_dtype dtype);
void size_format(char out[SIZE_TEXT], struct size a); /* size_print without an arena */
#define SIZE_FORMAT(a) size_format_in((char[SIZE_TEXT]){0}, a) /* text to the end of the block */
static inline const char *size_format_in(char out[SIZE_TEXT], struct size a) {
    size_format(out, a);
    return out;
}
void size_print(struct text *text, struct size a); /* "3", "$0", "6*$0+1" */
/* Reads what size_print writes, and quotients such as floor(($1+1)/2); advances *at. */
bool size_parse(const char **at, struct size_table *table, struct size *out);

#endif

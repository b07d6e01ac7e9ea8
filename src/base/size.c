/*
 * Sizes: arithmetic on integer polynomials in normal form.
 *
 *   dims of a model, strides, trip counts  ->  [this file]  ->  size_eval at each call
 *
 * Terms are in descending order of their powers (lexicographic, symbol 0 first), so the constant
 * is last and two equal polynomials have equal bytes. In this order, exact division is
 * a loop over leading terms.
 *
 * A result that does not fit (64 bits, SIZE_TERMS terms, powers up to 255) is `bad` and has no terms; each operation on a bad
 * size gives a bad size. So callers check the flag once, at the end of a formula, instead of at each step.
 */
#include "base/size.h"

#include <stdio.h>
#include <string.h>

/* The longest term: a sign, 19 digits, and "*$0^255" for each symbol. */
#define TERM_TEXT (20 + 8 * SIZE_SYMBOLS)

static const struct size bad_size = {.bad = 1};

static bool is_constant_term(const struct size_term *term) {
    static const uint8_t zero[SIZE_SYMBOLS];
    return !memcmp(term->power, zero, sizeof zero);
}

/* ---- Arithmetic ---- */

struct size size_const(int64_t value) {
    struct size size = {.n = value != 0};
    size.term[0].coef = value;
    return size;
}

struct size size_symbol(int symbol) {
    if (symbol < 0 || symbol >= SIZE_SYMBOLS) return bad_size;
    struct size size = {.n = 1, .term[0].coef = 1};
    size.term[0].power[symbol] = 1;
    return size;
}

/* Removes term `at`. Sets the freed last term to zero, as normal form requires. */
static void remove_term(struct size *size, int at) {
    memmove(size->term + at, size->term + at + 1, sizeof *size->term * (size_t)(size->n - at - 1));
    size->term[--size->n] = (struct size_term){0};
}

static void insert_term(struct size *size, int at, struct size_term term) {
    if (size->n == SIZE_TERMS) {
        *size = bad_size;
        return;
    }
    memmove(size->term + at + 1, size->term + at, sizeof *size->term * (size_t)(size->n - at));
    size->term[at] = term;
    size->n++;
}

/* Adds one term in place, keeping normal form. */
static void add_term(struct size *size, struct size_term term) {
    if (size->bad || !term.coef) return;
    int at = 0, order = 1;
    for (; at < size->n; at++) {
        order = memcmp(size->term[at].power, term.power, sizeof term.power);
        if (order <= 0) break;
    }
    if (at == size->n || order) {
        insert_term(size, at, term);
    } else if (__builtin_add_overflow(size->term[at].coef, term.coef, &size->term[at].coef)) {
        *size = bad_size;
    } else if (!size->term[at].coef) {
        remove_term(size, at);
    }
}

static bool multiply_terms(struct size_term a, struct size_term b, struct size_term *out) {
    *out = (struct size_term){0};
    for (int i = 0; i < SIZE_SYMBOLS; i++) {
        int power = a.power[i] + b.power[i];
        if (power > UINT8_MAX) return false;
        out->power[i] = (uint8_t)power;
    }
    return !__builtin_mul_overflow(a.coef, b.coef, &out->coef);
}

struct size size_add(struct size a, struct size b) {
    if (a.bad || b.bad) return bad_size;
    for (int i = 0; i < b.n; i++) add_term(&a, b.term[i]);
    return a;
}

struct size size_sub(struct size a, struct size b) { return size_add(a, size_scale(b, -1)); }

struct size size_mul(struct size a, struct size b) {
    if (a.bad || b.bad) return bad_size;
    struct size product = {0};
    for (int i = 0; i < a.n * b.n; i++) {
        struct size_term term;
        if (!multiply_terms(a.term[i / b.n], b.term[i % b.n], &term)) return bad_size;
        add_term(&product, term);
    }
    return product;
}

struct size size_scale(struct size a, int64_t factor) { return size_mul(a, size_const(factor)); }

static bool divide_terms(struct size_term a, struct size_term b, struct size_term *out) {
    *out = (struct size_term){0};
    for (int i = 0; i < SIZE_SYMBOLS; i++) {
        if (a.power[i] < b.power[i]) return false;
        out->power[i] = (uint8_t)(a.power[i] - b.power[i]);
    }
    /* INT64_MIN / -1 is the one quotient that does not fit, and traps. */
    if (b.coef == -1) return !__builtin_sub_overflow((int64_t)0, a.coef, &out->coef);
    out->coef = a.coef / b.coef;
    return a.coef % b.coef == 0;
}

/* Polynomial long division. Each step yields one term of the quotient, which has at most SIZE_TERMS terms: so no more
 * steps than that. */
bool size_divide(struct size a, struct size b, struct size *out) {
    if (a.bad || b.bad || !b.n) return false;
    struct size quotient = {0};
    for (int step = 0; a.n && step < SIZE_TERMS; step++) {
        struct size part = {.n = 1};
        if (!divide_terms(a.term[0], b.term[0], &part.term[0])) return false;
        quotient = size_add(quotient, part);
        a = size_sub(a, size_mul(part, b));
    }
    if (a.n || a.bad || quotient.bad) return false;
    *out = quotient;
    return true;
}

static const struct {
    const char *name, *type;
    int64_t bytes;
    enum size_family family;
} dtypes[SOL_N_DTYPES] = {
#define DTYPE(code, name, type, family) [SOL_##code] = {name, #type, sizeof(type), FAMILY_##family},
    SOL_DTYPE_LIST(DTYPE)
#undef DTYPE
};

int64_t size_element(enum sol_dtype dtype) { return dtypes[dtype].bytes; }
const char *size_dtype_name(enum sol_dtype dtype) { return dtypes[dtype].name; }
const char *size_c_type(enum sol_dtype dtype) { return dtypes[dtype].type; }
enum size_family size_family(enum sol_dtype dtype) { return dtypes[dtype].family; }

/* ---- Properties ---- */

/* In normal form unused terms are zero, and the struct has no padding. */
bool size_equal(struct size a, struct size b) { return !memcmp(&a, &b, sizeof a); }

bool size_is_const(struct size a) {
    return !a.bad && (!a.n || (a.n == 1 && is_constant_term(&a.term[0])));
}

bool size_is(struct size a, int64_t value) { return size_is_const(a) && size_value(a) == value; }

int64_t size_value(struct size a) {
    ASSERT(size_is_const(a));
    return a.term[0].coef; /* 0 without terms: unused ones are zero */
}

bool size_never_negative(struct size a) {
    for (int i = 0; i < a.n; i++)
        if (a.term[i].coef < 0) return false;
    return !a.bad;
}

int size_symbols(struct size a) {
    int n = 0;
    for (int i = 0; i < a.n; i++)
        for (int s = 0; s < SIZE_SYMBOLS; s++)
            if (a.term[i].power[s] && s >= n) n = s + 1;
    return n;
}

/* False on overflow. */
static bool eval_term(const struct size_term *term, const int64_t *symbols, int64_t *value) {
    *value = term->coef;
    for (int s = 0; s < SIZE_SYMBOLS; s++)
        for (int i = 0; i < term->power[s]; i++)
            if (__builtin_mul_overflow(*value, symbols[s], value)) return false;
    return true;
}

/* Overflow in either direction gives INT64_MAX, which callers refuse as too large. */
int64_t size_eval(const struct size *a, const int64_t *symbols) {
    int64_t sum = 0;
    for (int i = 0; i < a->n; i++) {
        int64_t value;
        if (!eval_term(&a->term[i], symbols, &value)) return INT64_MAX;
        if (__builtin_add_overflow(sum, value, &sum)) return INT64_MAX;
    }
    return a->bad ? INT64_MAX : sum;
}

/* ---- Text ---- */

/* Writes one term at `at`; returns its length. A coefficient of 1 or -1 is not written before symbols. */
static int format_term(char *at, const struct size_term *term, bool first) {
    char *start = at;
    const char *plus = first || term->coef < 0 ? "" : "+";
    bool bare = is_constant_term(term), one = term->coef == 1 || term->coef == -1;
    if (bare || !one) at += sprintf(at, "%s%lld", plus, (long long)term->coef);
    else at += sprintf(at, "%s", term->coef < 0 ? "-" : plus);
    const char *times = bare || !one ? "*" : "";
    for (int s = 0; s < SIZE_SYMBOLS; s++) {
        if (!term->power[s]) continue;
        at += sprintf(at, "%s$%d", times, s);
        if (term->power[s] > 1) at += sprintf(at, "^%d", term->power[s]);
        times = "*";
    }
    return (int)(at - start);
}

void size_format(char out[SIZE_TEXT], struct size a) {
    _Static_assert(SIZE_TEXT > SIZE_TERMS * TERM_TEXT, "room for the longest size");
    char *at = out;
    for (int i = 0; i < a.n; i++) at += format_term(at, &a.term[i], i == 0);
    if (!a.n) strcpy(at, a.bad ? "?" : "0");
}

void size_print(struct text *text, struct size a) {
    char string[SIZE_TEXT];
    size_format(string, a);
    text_add(text, "%s", string);
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Reads decimal digits; false when there are none or the number does not fit. */
static bool parse_number(const char **at, int64_t *out) {
    if (!is_digit(**at)) return false;
    int64_t value = 0;
    for (; is_digit(**at); (*at)++) {
        if (__builtin_mul_overflow(value, (int64_t)10, &value)) return false;
        if (__builtin_add_overflow(value, (int64_t)(**at - '0'), &value)) return false;
    }
    *out = value;
    return true;
}

/* factor = number | "$" symbol [ "^" power ]; multiplies it into `term`. */
static bool parse_factor(const char **at, struct size_term *term) {
    int64_t number, power = 1;
    bool symbol = **at == '$';
    if (symbol) ++*at;
    if (!parse_number(at, &number)) return false;
    struct size_term factor = {.coef = number};
    if (symbol) {
        if (number >= SIZE_SYMBOLS) return false;
        if (**at == '^') {
            ++*at;
            if (!parse_number(at, &power) || power > UINT8_MAX) return false;
        }
        factor.coef = 1;
        factor.power[number] = (uint8_t)power;
    }
    return multiply_terms(*term, factor, term);
}

static bool parse_term(const char **at, struct size_term *term) {
    for (;; ++*at) {
        if (!parse_factor(at, term)) return false;
        if (**at != '*') return true;
    }
}

/* size = [ "-" ] term { ( "+" | "-" ) term }, without blanks. */
bool size_parse(const char **at, struct size *out) {
    const char *next = *at;
    struct size sum = {0};
    if (*next == '+') return false;
    do {
        struct size_term term = {.coef = *next == '-' ? -1 : 1};
        if (*next == '-' || *next == '+') next++;
        if (!parse_term(&next, &term)) return false;
        add_term(&sum, term);
    } while (*next == '+' || *next == '-');
    if (sum.bad) return false;
    *at = next;
    *out = sum;
    return true;
}

/*
 * Sizes: arithmetic on integer polynomials in normal form.
 *
 *   dims of a model, strides, trip counts  ->  [this file]  ->  size_eval at each call
 *
 * Terms are in descending order of their powers (lexicographic, symbol 0 first), so the constant
 * is last and two equal polynomials have equal bytes. In this order, exact division is
 * a loop over leading terms.
 *
 * Quotients rounded down (size_floor) are symbols of their own. They are normalized, so that equal ones are one symbol in
 * nearly all cases: ceil(ceil(h/2)/2) and floor((h+3)/4) are.
 *
 * A result that does not fit (64 bits, SIZE_TERMS terms, powers up to 255) is `bad` and has no terms; each operation on a bad
 * size gives a bad size. So callers check the flag once, at the end of a formula, instead of at each step.
 */
#include "base/size.h"

#include <stdio.h>
#include <string.h>

/* The longest term: a sign, 19 digits, and "*$95^255" for each factor. */
#define TERM_TEXT (20 + 8 * SIZE_FACTORS)

static const struct size bad_size = {.bad = 1};

static bool is_constant_term(const struct size_term *term) { return !term->factor[0].power; }

/* > 0: a is before b, as the power of the first symbol in which they differ is greater; 0: they have the same factors. */
static int compare_terms(const struct size_term *a, const struct size_term *b) {
    for (int i = 0; i < SIZE_FACTORS; i++) {
        struct size_factor x = a->factor[i], y = b->factor[i];
        if (!x.power || !y.power) return (x.power != 0) - (y.power != 0);
        if (x.symbol != y.symbol) return y.symbol - x.symbol;
        if (x.power != y.power) return x.power - y.power;
    }
    return 0;
}

/* ---- Arithmetic ---- */

struct size size_const(int64_t value) {
    struct size size = {.n = value != 0};
    size.term[0].coef = value;
    return size;
}

struct size size_symbol(int symbol) {
    if (symbol < 0 || symbol >= SIZE_SYMBOLS) return bad_size;
    return (struct size){.n = 1, .term = {{1, {{(uint8_t)symbol, 1}}}}};
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
        order = compare_terms(&size->term[at], &term);
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

/* Merges the sorted factors of both; false if the product does not fit. */
static bool multiply_terms(struct size_term a, struct size_term b, struct size_term *out) {
    *out = (struct size_term){0};
    for (int i = 0, k = 0, n = 0;; n++) {
        struct size_factor x = i < SIZE_FACTORS ? a.factor[i] : (struct size_factor){0},
                           y = k < SIZE_FACTORS ? b.factor[k] : (struct size_factor){0};
        if (!x.power && !y.power) break;
        if (n == SIZE_FACTORS) return false;
        bool of_a = x.power && (!y.power || x.symbol <= y.symbol),
             of_b = y.power && (!x.power || y.symbol <= x.symbol);
        int power = (of_a ? x.power : 0) + (of_b ? y.power : 0);
        if (power > UINT8_MAX) return false;
        out->factor[n] = (struct size_factor){of_a ? x.symbol : y.symbol, (uint8_t)power};
        i += of_a, k += of_b;
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

static int power_of(const struct size_term *term, int symbol) {
    for (int i = 0; i < SIZE_FACTORS && term->factor[i].power; i++)
        if (term->factor[i].symbol == symbol) return term->factor[i].power;
    return 0;
}

static bool divide_factors(const struct size_term *a, const struct size_term *b,
                           struct size_term *out) {
    *out = (struct size_term){0};
    for (int i = 0; i < SIZE_FACTORS && b->factor[i].power; i++)
        if (power_of(a, b->factor[i].symbol) < b->factor[i].power) return false;
    for (int i = 0, n = 0; i < SIZE_FACTORS && a->factor[i].power; i++) {
        struct size_factor x = a->factor[i];
        x.power = (uint8_t)(x.power - power_of(b, x.symbol));
        if (x.power) out->factor[n++] = x;
    }
    return true;
}

static bool divide_terms(struct size_term a, struct size_term b, struct size_term *out) {
    if (!divide_factors(&a, &b, out)) return false;
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

/* False on overflow. */
static bool eval_term(const struct size_term *term, const int64_t *symbols, int64_t *value) {
    *value = term->coef;
    for (int f = 0; f < SIZE_FACTORS; f++)
        for (int i = 0; i < term->factor[f].power; i++)
            if (__builtin_mul_overflow(*value, symbols[term->factor[f].symbol], value))
                return false;
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

/* ---- Quotients ---- */

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

/* Moves what the divisor divides from *a to the result, divided. Negative coefficients and the constant become
 * 0 <= coef < divisor. Others stay as they are: 4*x/3 is one quotient, where x + x/3 would be two terms. */
static struct size take_whole(struct size *a, int64_t divisor) {
    struct size whole = {0}, rest = {0};
    for (int i = 0; i < a->n; i++) {
        struct size_term term = a->term[i];
        bool stays = term.coef > 0 && term.coef % divisor && !is_constant_term(&term);
        term.coef = stays ? 0 : floor_div(a->term[i].coef, divisor);
        add_term(&whole, term);
        term.coef = a->term[i].coef - term.coef * divisor;
        add_term(&rest, term);
    }
    *a = rest;
    return whole;
}

/* floor((floor(x / m) + c) / n) is floor((x + c*m) / (m*n)). */
static void join_quotients(const struct size_table *table, struct size *a, int64_t *divisor) {
    const struct size_term *term = &a->term[0];
    int64_t outer = *divisor;
    bool single = a->n && (a->n == 1 || (a->n == 2 && is_constant_term(&a->term[1]))) &&
                  term->coef == 1 && term->factor[0].power == 1 && !term->factor[1].power &&
                  term->factor[0].symbol >= SIZE_FREE;
    if (!single) return;
    const struct size_quotient *inner = &table->at[term->factor[0].symbol - SIZE_FREE];
    if (__builtin_mul_overflow(outer, inner->divisor, divisor)) {
        *divisor = outer;
        return;
    }
    struct size added = size_const(a->n == 2 ? a->term[1].coef : 0);
    *a = size_add(inner->numerator, size_scale(added, inner->divisor));
}

/* Divides by what all coefficients but the constant and the divisor have in common: floor((2*x + 3) / 4) is floor((x + 1) / 2). */
static void reduce_quotient(struct size *a, int64_t *divisor) {
    int64_t common = *divisor;
    for (int i = 0; i < a->n; i++)
        if (!is_constant_term(&a->term[i])) common = common_divisor(common, a->term[i].coef);
    *a = take_whole(a, common);
    *divisor /= common;
}

static struct size find_quotient(struct size_table *table, struct size numerator, int64_t divisor) {
    if (numerator.bad) return bad_size;
    for (int i = 0; i < table->n; i++)
        if (table->at[i].divisor == divisor && size_equal(table->at[i].numerator, numerator))
            return size_symbol(SIZE_FREE + i);
    if (table->n == COUNT(table->at)) return bad_size;
    table->at[table->n] = (struct size_quotient){numerator, divisor};
    return size_symbol(SIZE_FREE + table->n++);
}

struct size size_floor(struct size_table *table, struct size a, int64_t divisor) {
    if (a.bad || divisor < 1) return bad_size;
    struct size whole = take_whole(&a, divisor);
    reduce_quotient(&a, &divisor);
    join_quotients(table, &a, &divisor);
    whole = size_add(whole, take_whole(&a, divisor));
    reduce_quotient(&a, &divisor);
    /* A constant rest is less than the divisor. */
    return size_is_const(a) ? whole : size_add(whole, find_quotient(table, a, divisor));
}

struct size size_free(struct size_table *table, int symbol) {
    const int64_t multiple = symbol >= 0 && symbol < SIZE_FREE ? table->multiple[symbol] : 0;
    if (multiple <= 1) return size_symbol(symbol);
    return size_scale(size_floor(table, size_symbol(symbol), multiple), multiple);
}

struct size size_ceil(struct size_table *table, struct size a, int64_t divisor) {
    return size_floor(table, size_add(a, size_const(divisor - 1)), divisor);
}

static bool term_depends(const struct size_table *table, const struct size_term *term, int symbol) {
    for (int f = 0; f < SIZE_FACTORS && term->factor[f].power; f++) {
        int s = term->factor[f].symbol;
        if (s == symbol) return true;
        if (s >= SIZE_FREE && size_depends(table, table->at[s - SIZE_FREE].numerator, symbol))
            return true;
    }
    return false;
}

/* The recursion ends, as a quotient has only symbols before it; joining quotients keeps chains of them short. */
bool size_depends(const struct size_table *table, struct size a, int symbol) {
    for (int i = 0; i < a.n; i++)
        if (term_depends(table, &a.term[i], symbol)) return true;
    return false;
}

void size_derive(const struct size_quotient *quotient, int n, int64_t symbols[SIZE_SYMBOLS]) {
    for (int i = 0; i < n; i++) {
        int64_t value = size_eval(&quotient[i].numerator, symbols);
        symbols[SIZE_FREE + i] = value == INT64_MAX ? value : floor_div(value, quotient[i].divisor);
    }
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
    for (int i = 0; i < SIZE_FACTORS && term->factor[i].power; i++) {
        at += sprintf(at, "%s$%d", times, term->factor[i].symbol);
        if (term->factor[i].power > 1) at += sprintf(at, "^%d", term->factor[i].power);
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

/* Reads nested quotients to this depth: a text cannot exhaust the stack. */
#define MAX_DEPTH 16

static bool parse_sum(const char **at, struct size_table *table, int depth, struct size *out);

static bool take(const char **at, const char *word) {
    size_t n = strlen(word);
    if (strncmp(*at, word, n)) return false;
    *at += n;
    return true;
}

/* Behind "floor(": "(" size ")/" number ")". */
static bool parse_quotient(const char **at, struct size_table *table, int depth, struct size *out) {
    struct size numerator;
    int64_t divisor;
    if (depth == MAX_DEPTH || !take(at, "(") || !parse_sum(at, table, depth + 1, &numerator))
        return false;
    if (!take(at, ")/") || !parse_number(at, &divisor) || !take(at, ")")) return false;
    *out = size_floor(table, numerator, divisor);
    return true;
}

/* Behind "$": symbol [ "^" power ]. In quotients only symbols that exist, so that none is made of itself. */
static bool parse_symbol(const char **at, struct size_table *table, int depth, struct size *out) {
    int64_t number, power = 1;
    if (!parse_number(at, &number) || number >= SIZE_SYMBOLS) return false;
    if (depth && number >= (number < SIZE_FREE ? table->n_free : SIZE_FREE + table->n))
        return false;
    if (take(at, "^") && (!parse_number(at, &power) || power > UINT8_MAX)) return false;
    struct size symbol = size_free(table, (int)number);
    *out = size_const(1);
    for (int64_t i = 0; i < power; i++) *out = size_mul(*out, symbol);
    return true;
}

/* factor = number | "$" symbol [ "^" power ] | "floor((" size ")/" number ")" */
static bool parse_factor(const char **at, struct size_table *table, int depth, struct size *out) {
    int64_t number;
    if (take(at, "$")) return parse_symbol(at, table, depth, out);
    if (take(at, "floor(")) return parse_quotient(at, table, depth, out);
    if (!parse_number(at, &number)) return false;
    *out = size_const(number);
    return true;
}

static bool parse_product(const char **at, struct size_table *table, int depth, struct size *out) {
    struct size factor;
    *out = size_const(1);
    do {
        if (!parse_factor(at, table, depth, &factor)) return false;
        *out = size_mul(*out, factor);
    } while (take(at, "*"));
    return true;
}

/* size = [ "-" ] product { ( "+" | "-" ) product }, without blanks. */
static bool parse_sum(const char **at, struct size_table *table, int depth, struct size *out) {
    *out = size_const(0);
    if (**at == '+') return false;
    do {
        struct size product;
        int sign = take(at, "-") ? -1 : 1;
        if (sign > 0) (void)take(at, "+");
        if (!parse_product(at, table, depth, &product)) return false;
        *out = size_add(*out, size_scale(product, sign));
    } while (**at == '+' || **at == '-');
    return !out->bad;
}

bool size_parse(const char **at, struct size_table *table, struct size *out) {
    const char *next = *at;
    struct size sum;
    if (!parse_sum(&next, table, 0, &sum)) return false;
    *at = next;
    *out = sum;
    return true;
}

/*
 * Casts from one element type to another.
 *
 * Floats are truncated towards 0 to integers. A value that does not fit is undefined in ONNX and in C; here it is saturated to 64
 * bits, with NaN as 0, and then truncated to the low bits of the type. Integers to integers keep their low bits. The attribute
 * saturate decides whether floats of 8 bits saturate.
 */
#include "eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Strings ---- */

/* A number in the shortest form that gives the same value of its type when it is parsed. */
static struct bytes print_number(struct space *space, const struct array *x, int64_t i) {
    char *text = SPACE_ARRAY(space, char, 32);
    int digits = x->type == TYPE_F64 ? 17 : x->type == TYPE_F32 ? 9 : 5;
    double value = is_float(x->type) ? array_double(x, i) : 0;
    struct array one = {.type = x->type, .n = 1, .data = &(double){0}};
    if (is_integer(x->type)) snprintf(text, 32, "%lld", (long long)array_int(x, i));
    else if (isnan(value)) strcpy(text, "NaN");
    else if (isinf(value)) strcpy(text, value > 0 ? "INF" : "-INF");
    else {
        for (int n = 1; n <= digits; n++) {
            snprintf(text, 32, "%.*g", n, value);
            array_set_double(&one, 0, strtod(text, NULL));
            if (array_double(&one, 0) == value) break;
        }
    }
    return (struct bytes){(const uint8_t *)text, strlen(text)};
}

/* The whole string must be a number; NaN and INF are numbers, too. */
static double parse_number(struct eval *e, const struct bytes *s) {
    char text[64] = {0}, *end;
    if (s->size && s->size < sizeof text) memcpy(text, s->at, s->size);
    double value = strtod(text, &end);
    if (end == text || *end)
        eval_stop(e, fail(SOL_EINVAL, "the string \"%.32s\" is no number", text));
    return value;
}

/* Strings to strings share their bytes. */
static void cast_strings(struct eval *e, const struct array *x, struct array *y) {
    for (int64_t i = 0; i < x->n; i++) {
        const struct bytes *s = (const struct bytes *)x->data + i;
        if (y->type == TYPE_STRING) ((struct bytes *)y->data)[i] = *s;
        else array_set_double(y, i, parse_number(e, s));
    }
}

/* ---- Numbers ---- */

/* The attribute saturate is for floats of 8 bits only. */
static void set_float8(struct array *y, int64_t i, double value, bool saturates) {
    ((uint8_t *)y->data)[i] = (uint8_t)float_encode(y->type, value, saturates);
}

/* Converts via doubles, also integers to floats. */
static void cast_doubles(const struct array *x, struct array *y, bool saturates) {
    bool is_byte = is_float(y->type) && types[y->type].size == 1;
    for (int64_t i = 0; i < x->n; i++) {
        double value = array_double(x, i);
        if (is_byte) set_float8(y, i, value, saturates);
        else array_set_double(y, i, value);
    }
}

/* Integers are not converted to integers via doubles, since 64-bit integers would lose digits. */
static struct array *cast_array(struct eval *e, const struct array *x, enum type type,
                                bool saturates) {
    struct array *y = eval_new(e, type, x->rank, x->dim);
    bool is_text = x->type == TYPE_STRING, to_text = type == TYPE_STRING;
    if (types[x->type].kind == KIND_COMPLEX || types[type].kind == KIND_COMPLEX)
        eval_stop(e, fail(SOL_EUNSUPPORTED, "complex numbers"));
    if (x->type == type) memcpy(y->data, x->data, (size_t)x->n * types[type].size);
    else if (is_text) cast_strings(e, x, y);
    else if (to_text)
        for (int64_t i = 0; i < x->n; i++)
            ((struct bytes *)y->data)[i] = print_number(e->space, x, i);
    else if (is_integer(x->type) && is_integer(type))
        for (int64_t i = 0; i < x->n; i++) array_set_int(y, i, array_int(x, i));
    else cast_doubles(x, y, saturates);
    return y;
}

/* E8M0: corrects the rounding to that of `round_mode`; float_encode rounds to nearest. */
static void round_powers(struct eval *e, const struct array *x, struct array *y) {
    const char *mode = eval_word(e, "round_mode", "up", "up down nearest");
    bool is_up = *mode == 'u', is_down = *mode == 'd';
    for (int64_t i = 0; i < x->n && (is_up || is_down); i++) {
        uint8_t *bits = (uint8_t *)y->data + i;
        double from = array_double(x, i), to = array_double(y, i);
        if (is_up && to < from && *bits < 254) ++*bits;
        if (is_down && to > from && *bits > 0) --*bits;
    }
}

/* Cast and CastLike: the type is an attribute, or that of input 1. */
void run_cast(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t to = eval_has(e, 1) ? (int64_t)eval_in(e, 1)->type : eval_int(e, "to", 0);
    if (!type_is_known(to))
        eval_stop(e, fail(SOL_EUNSUPPORTED, "element type %lld is not known", (long long)to));
    struct array *y = cast_array(e, x, (enum type)to, eval_int(e, "saturate", 1));
    if (to == TYPE_E8M0 && x->type != TYPE_E8M0 && x->type != TYPE_STRING) round_powers(e, x, y);
    eval_set_output(e, 0, y);
}

/* Keeps the bits. Both types must have the same size, so that the shape does not change. */
void run_bit_cast(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t to = eval_int(e, "to", 0);
    if (!type_is_known(to) || to == TYPE_STRING || x->type == TYPE_STRING ||
        types[to].size != types[x->type].size)
        eval_stop(e, fail(SOL_EINVAL, "elements of another size"));
    struct array *y = eval_out(e, 0, (enum type)to, x->rank, x->dim);
    memcpy(y->data, x->data, (size_t)x->n * types[to].size);
}

/*
 * Text: growing strings, and numbers that read back as the same value.
 *
 *   generated C, the text form of models, reports -> text_add, text_add_double -> NUL terminated text in an arena
 *
 * The host sets the process's locale, in which 1.5 may be printed as "1,5" or with a decimal point of several bytes. So the
 * decimal point is replaced after printf, and numbers are read by strtod_l in the C locale. setlocale is not
 * called, as it would change the whole process.
 *
 * Invariant: at[size] == 0 and size < cap.
 */
#include "base/base.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAP 64
#define NUMBER_SIZE 40 /* sign, 17 digits, "e-308", and a decimal point of several bytes */

void text_init(struct text *text, struct arena *arena) {
    *text = (struct text){.arena = arena, .at = arena_alloc(arena, FIRST_CAP), .cap = FIRST_CAP};
}

/* Makes room for `size` more bytes and the NUL. */
static void reserve(struct text *text, size_t size) {
    if (size < text->cap - text->size) return;
    size_t need = text->size + size + 1;
    size_t cap = need > 2 * text->cap ? need : 2 * text->cap;
    char *larger = arena_alloc(text->arena, cap);
    memcpy(larger, text->at, text->size);
    text->at = larger;
    text->cap = cap;
}

void text_add_raw(struct text *text, const char *string, size_t size) {
    reserve(text, size);
    if (size) memcpy(text->at + text->size, string, size);
    text->size += size;
    text->at[text->size] = 0;
}

void text_add_args(struct text *text, const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    size_t space = text->cap - text->size;
    int size = vsnprintf(text->at + text->size, space, format, args);
    if (size > 0 && (size_t)size >= space) {
        reserve(text, (size_t)size);
        (void)vsnprintf(text->at + text->size, (size_t)size + 1, format, again);
    }
    va_end(again);
    if (size > 0) text->size += (size_t)size;
    text->at[text->size] = 0; /* removes what a failed vsnprintf may have written */
}

void text_add(struct text *text, const char *format, ...) {
    va_list args;
    va_start(args, format);
    text_add_args(text, format, args);
    va_end(args);
}

bool text_lists(const char *list, const char *word, size_t size) {
    for (size_t n; *list; list += n) {
        list += strspn(list, ", ");
        n = strcspn(list, ", ");
        if (n == size && !memcmp(list, word, n)) return size > 0;
    }
    return false;
}

/* ---- Numbers ---- */

/* The C locale. Cheap in glibc, which keeps it in static storage; callers free it all the same. */
static locale_t c_locale(void) { return newlocale(LC_ALL_MASK, "C", (locale_t)0); }

/* Replaces the locale's decimal point, of any number of bytes, by ".". Returns the new length. */
static size_t repair_point(char *number) {
    char *to = number;
    bool in_point = false;
    for (const char *from = number; *from; from++) {
        bool ours = strchr("0123456789+-e", *from) != NULL;
        if (ours) *to++ = *from;
        else if (!in_point) *to++ = '.';
        in_point = !ours;
    }
    *to = 0;
    return (size_t)(to - number);
}

/* Writes a finite `value` with the fewest digits that read back as the same double, or float (`single`).
 * The result always has a point or an exponent, as "3" would be an integer in C. */
static void format_shortest(char number[NUMBER_SIZE], double value, bool single) {
    int max = single ? FLT_DECIMAL_DIG : DBL_DECIMAL_DIG;
    locale_t locale = c_locale();
    for (int digits = 1; digits <= max; digits++) {
        (void)snprintf(number, NUMBER_SIZE, "%.*g", digits, value);
        size_t size = repair_point(number);
        if (!strpbrk(number, ".e")) memcpy(number + size, ".0", 3);
        double back =
            single ? (double)strtof_l(number, NULL, locale) : strtod_l(number, NULL, locale);
        if (back == value) break;
    }
    freelocale(locale);
}

void text_add_double(struct text *text, double value) {
    char number[NUMBER_SIZE];
    if (isnan(value)) strcpy(number, "nan");
    else if (isinf(value)) strcpy(number, value < 0 ? "-inf" : "inf");
    else format_shortest(number, value, false);
    text_add_raw(text, number, strlen(number));
}

/* Negative numbers are in parentheses, so that "a-" before them gives correct C. */
void text_add_c_double(struct text *text, double value) {
    char number[NUMBER_SIZE];
    if (isnan(value)) {
        text_add(text, "(0.0/0.0)");
    } else if (isinf(value)) {
        text_add(text, "(%s1.0/0.0)", value < 0 ? "-" : "");
    } else {
        format_shortest(number, value, false);
        text_add(text, signbit(value) ? "(%s)" : "%s", number);
    }
}

void text_add_c_float(struct text *text, double value) {
    char number[NUMBER_SIZE];
    float rounded = (float)value; /* infinity beyond FLT_MAX, by IEEE 754 (C11 annex F) */
    if (isnan(rounded)) {
        text_add(text, "(0.0f/0.0f)");
    } else if (isinf(rounded)) {
        text_add(text, "(%s1.0f/0.0f)", rounded < 0 ? "-" : "");
    } else {
        format_shortest(number, (double)rounded, true);
        text_add(text, signbit(rounded) ? "(%sf)" : "%sf", number);
    }
}

/* Reads "inf" or "nan" and advances *at. False, with *at unchanged: neither. */
static bool parse_word(const char **at, double *out) {
    if (!strncmp(*at, "inf", 3)) *out = (double)INFINITY;
    else if (!strncmp(*at, "nan", 3)) *out = (double)NAN;
    else return false;
    *at += 3;
    return true;
}

/* The grammar is a part of strtod's, without leading white space, hexadecimal and "infinity", so
 * that a parser knows where a number begins and ends. */
bool text_parse_double(const char **at, double *out) {
    const char *start = *at;
    bool negative = *start == '-';
    const char *first = start + negative;
    if (parse_word(&first, out)) {
        if (negative) *out = -*out;
        *at = first;
        return true;
    }
    bool digit = first[*first == '.'] >= '0' && first[*first == '.'] <= '9';
    if (!digit || (first[0] == '0' && (first[1] | 32) == 'x')) return false;
    locale_t locale = c_locale();
    char *end;
    *out = strtod_l(start, &end, locale);
    freelocale(locale);
    *at = end;
    return true;
}

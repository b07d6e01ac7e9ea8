/*
 * Makes untrusted text, such as a name from a model file, safe to show on a terminal.
 *
 *   messages (status.c), log lines (log.c), reports, output of the program sol and of the Python package -> text_clean
 *
 * A terminal executes escape sequences: they move the cursor, rename the window, hide earlier output. So all untrusted text
 * that SOL shows goes through this file. Visible characters of all languages pass; other characters and invalid UTF-8
 * become \xNN, byte by byte.
 */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

/* Ranges of control characters and invisible characters: C0, C1 and DEL, direction marks, line separators, invisible operators,
 * tags. */
static const struct {
    uint32_t first, last;
} controls[] = {{0, 0x1f},        {0x7f, 0x9f},     {0x61c, 0x61c},
                {0x200e, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f},
                {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe0fff}};

static bool is_control(uint32_t character) {
    for (int i = 0; i < COUNT(controls); i++)
        if (character >= controls[i].first && character <= controls[i].last) return true;
    return false;
}

/* Decodes the UTF-8 character at `at`, where `n` bytes are left. Returns its length in bytes; 0: invalid. Overlong forms and
 * surrogates are invalid. */
static size_t decode(const unsigned char *at, size_t n, uint32_t *out) {
    static const uint32_t min[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t size = *at < 0x80   ? 1
                  : *at < 0xc0 ? 0
                  : *at < 0xe0 ? 2
                  : *at < 0xf0 ? 3
                  : *at < 0xf8 ? 4
                               : 0;
    if (!size || size > n) return 0;
    *out = size == 1 ? *at : *at & (0x7fu >> size);
    for (size_t i = 1; i < size; i++) {
        if ((at[i] & 0xc0) != 0x80) return 0;
        *out = *out << 6 | (at[i] & 0x3f);
    }
    bool is_half = *out >= 0xd800 && *out <= 0xdfff;
    return *out >= min[size] && *out <= 0x10ffff && !is_half ? size : 0;
}

/* Length in bytes of the character at `at`, where `n` > 0 bytes are left (1 if invalid), and whether it is safe to show. */
static size_t next_character(const char *at, size_t n, bool *is_safe) {
    uint32_t character = 0;
    size_t size = decode((const unsigned char *)at, n, &character);
    *is_safe = size && !is_control(character);
    return size ? size : 1;
}

/* An unsafe character has at most 4 bytes, so `escapes` needs 16 and a NUL. */
size_t text_clean(const char *text, size_t n, bool keep_lines, char *out, size_t size) {
    size_t length = 0, end = 0, step;
    bool is_safe, is_full = false;
    for (size_t i = 0; i < n; i += step) {
        char escapes[17];
        step = next_character(text + i, n - i, &is_safe);
        is_safe |= keep_lines && (text[i] == '\n' || text[i] == '\t');
        for (size_t k = 0; !is_safe && k < step; k++)
            (void)snprintf(escapes + 4 * k, 5, "\\x%02x", (unsigned char)text[i + k]);
        const size_t more = is_safe ? step : 4 * step;
        is_full |= length + more >= size;
        if (!is_full) memcpy(out + length, is_safe ? text + i : escapes, more);
        if (!is_full) end = length + more;
        length += more;
    }
    if (size) out[end] = 0;
    return length;
}

void text_add_escaped(struct text *text, const char *string, const char *(*escape)(char byte)) {
    for (size_t left = strlen(string), n; left; string += n, left -= n) {
        char shown[17];
        bool is_safe;
        const char *escaped = escape ? escape(*string) : NULL;
        n = next_character(string, left, &is_safe);
        if (escaped) text_add_raw(text, escaped, strlen(escaped));
        else text_add_raw(text, shown, text_clean(string, n, false, shown, sizeof shown));
    }
}

void text_add_clean(struct text *text, const char *string) { text_add_escaped(text, string, NULL); }

/*
 * Attributes as text, for the builder and for the text form of models: "stride=[2,2] groups=4". attr.def lists all attributes,
 * layer.def those of each kind of layer. Attributes with their default value are not printed, except shapes.
 */
#include "ir/ir.h"

#include <inttypes.h>
#include <string.h>

/* INTS: exactly n numbers, without brackets if n is 1. LIST: the axes, any number of them. SIZES: a shape, whose dims
 * may be formulas of symbols. SIZE: one such formula. */
enum attr_type { INTS, LIST, SIZES, SIZE, FLOAT, BOOL, DTYPE };
struct attr_info {
    const char *name;
    enum attr_type type;
    size_t offset;
    int n;
};
static const struct attr_info attr_infos[] = {
#define ATTR(name, type, member, n) {#name, type, offsetof(struct attr, member), n},
#include "ir/attr.def"
#undef ATTR
};

static const struct attr_info *find_attr(const struct layer_info *info, const char *name,
                                         size_t length) {
    for (int i = 0; i < COUNT(attr_infos); i++)
        if (strlen(attr_infos[i].name) == length && !strncmp(attr_infos[i].name, name, length))
            return text_lists(info->attrs, name, length) ? &attr_infos[i] : NULL;
    return NULL;
}

/* ---- Printing ---- */

static void print_ints(struct text *text, const int64_t *at, int n, bool in_brackets) {
    if (in_brackets) text_add(text, "[");
    for (int i = 0; i < n; i++) text_add(text, "%s%" PRId64, i ? "," : "", at[i]);
    if (in_brackets) text_add(text, "]");
}

static void print_value(struct text *text, const struct attr_info *info, const struct attr *a) {
    const void *at = (const char *)a + info->offset;
    switch (info->type) {
    case FLOAT: text_add_double(text, *(const double *)at); break;
    case BOOL: text_add(text, "%s", *(const bool *)at ? "true" : "false"); break;
    case DTYPE: text_add(text, "%s", size_dtype_name(*(const enum sol_dtype *)at)); break;
    case INTS: print_ints(text, at, info->n, info->n != 1); break;
    case LIST: print_ints(text, a->axes, a->n_axes, true); break;
    case SIZE: size_print(text, *(const struct size *)at); break;
    case SIZES:
        for (int i = 0; i < a->n_shape; i++) {
            text_add(text, i ? "," : "[");
            size_print(text, a->shape[i]);
        }
        text_add(text, a->n_shape ? "]" : "[]");
    }
}

/* is_optional: a layer of this kind may have no `shape`. */
static bool is_default(const struct attr_info *info, const struct attr *a, bool is_optional) {
    struct attr standard = ir_default_attr();
    size_t size = 0;
    switch (info->type) {
    case LIST: return a->n_axes == 0;
    case SIZES: return is_optional && !a->n_shape; /* else an empty shape is a scalar's */
    case SIZE: size = sizeof(struct size); break;
    case BOOL: size = sizeof(bool); break;
    case DTYPE: size = sizeof(enum sol_dtype); break;
    case FLOAT: size = sizeof(double); break;
    case INTS: size = sizeof(int64_t) * (size_t)info->n; break;
    }
    return !memcmp((const char *)a + info->offset, (const char *)&standard + info->offset, size);
}

void ir_print_attr(struct text *text, const struct layer_info *info, const struct attr *attr) {
    for (int i = 0; i < COUNT(attr_infos); i++) {
        const struct attr_info *a = &attr_infos[i];
        if (!text_lists(info->attrs, a->name, strlen(a->name))) continue;
        if (is_default(a, attr, info->traits & ANCHOR)) continue;
        text_add(text, " %s=", a->name);
        print_value(text, a, attr);
    }
}

/* ---- Parsing ---- */

static bool parse_int(const char **at, struct size_table *table, int64_t *out) {
    struct size value;
    if (!size_parse(at, table, &value) || !size_is_const(value)) return false;
    *out = size_value(value);
    return true;
}

/* Parses "[" item ("," item)* "]" into `ints`, or into `sizes` if that is NULL. Returns the number of items; -1 if the text is
 * wrong or has more than `max`. */
static int parse_list(const char **at, int64_t *ints, struct size *sizes, struct size_table *table,
                      int max) {
    int n = 0;
    if (*(*at)++ != '[') return -1;
    if (**at == ']') return (*at)++, 0;
    for (;; (*at)++) {
        if (n == max || !(ints ? parse_int(at, table, &ints[n]) : size_parse(at, table, &sizes[n])))
            return -1;
        n++;
        if (**at != ',') break;
    }
    return *(*at)++ == ']' ? n : -1;
}

static bool parse_dtype(const char **at, enum sol_dtype *out) {
    size_t n = strcspn(*at, " ");
    for (int i = 0; i < SOL_N_DTYPES; i++) {
        const char *name = size_dtype_name((enum sol_dtype)i);
        if (strlen(name) != n || strncmp(*at, name, n) != 0) continue;
        *out = (enum sol_dtype)i;
        *at += n;
        return true;
    }
    return false;
}

static bool take(const char **at, const char *word) {
    size_t n = strlen(word);
    if (strncmp(*at, word, n)) return false;
    *at += n;
    return true;
}

/* true, false, 1 or 0. */
static bool parse_bool(const char **at, bool *out) {
    *out = take(at, "true") || take(at, "1");
    return *out || take(at, "false") || take(at, "0");
}

static bool parse_value(const char **at, const struct attr_info *info, struct size_table *table,
                        struct attr *a) {
    void *to = (char *)a + info->offset;
    switch (info->type) {
    case FLOAT: return text_parse_double(at, to);
    case BOOL: return parse_bool(at, to);
    case DTYPE: return parse_dtype(at, to);
    case LIST: return (a->n_axes = parse_list(at, a->axes, NULL, table, SOL_MAX_RANK)) >= 0;
    case SIZES: return (a->n_shape = parse_list(at, NULL, a->shape, table, SOL_MAX_RANK)) >= 0;
    case SIZE: return size_parse(at, table, to);
    case INTS: break;
    }
    return info->n == 1 ? parse_int(at, table, to)
                        : parse_list(at, to, NULL, table, info->n) == info->n;
}

/* After an error n_axes or n_shape may be -1: callers do not use `out` then. */
enum sol_status ir_parse_attr(const char *text, const struct layer_info *info,
                              struct size_table *table, struct attr *out) {
    *out = ir_default_attr();
    for (const char *at = text; *(at += strspn(at, " "));) {
        size_t length = strcspn(at, "= ");
        const struct attr_info *a = find_attr(info, at, length);
        if (!a)
            return fail(SOL_EINVAL, "%s has no attribute \"%.*s\"", info->name,
                        (int)(length < 64 ? length : 64), at);
        at += length;
        if (*at++ != '=' || !parse_value(&at, a, table, out) || (*at && *at != ' '))
            return fail(SOL_EINVAL, "%s: the value of attribute %s cannot be read", info->name,
                        a->name);
    }
    return SOL_OK;
}

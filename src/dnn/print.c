/*
 * Prints problems and plans as C initializers: as source of deployed libraries, and as keys of the autotune cache.
 *
 * The code is generated from the field lists in dnn.h, so that no field can be missing.
 */
#include "dnn/dnn.h"

static void print_ints(struct text *text, int n, const int64_t *value) {
    while (n > 1 && !value[n - 1]) n--; /* C initializes the rest to zero */
    for (int i = 0; i < n; i++) text_add(text, "%s%lld", i ? ", " : "{", (long long)value[i]);
    text_add(text, "}");
}

static void print_map(struct text *text, const int *map, int n) {
    if (!map) {
        text_add(text, "NULL");
        return;
    }
    text_add(text, "(const int[]){");
    for (int i = 0; i < n; i++) text_add(text, "%s%d", i ? ", " : "", map[i]);
    text_add(text, "}");
}

/* PRINT_KIND(field) prints a field of that kind of the struct `from`. */
#define PRINT_INT(field) text_add(text, "%lld", (long long)from->field)
#define PRINT_INTS(field) print_ints(text, COUNT(from->field), from->field)
#define PRINT_FLOAT(field) text_add_c_float(text, (double)from->field)
#define PRINT_C_MAP(field) print_map(text, from->field, from->c)
#define PRINT_K_MAP(field) print_map(text, from->field, from->k)
#define PRINT_IMPL(field) text_add(text, "&dnn_%s", from->field->name)
#define PRINT_KERNELS(field) text_add(text, "&kernels")
#define PRINT_PROBLEM(field) dnn_print_problem(text, &from->field)
#define PRINT(kind, type, name, ...)  \
    text_add(text, " ." #name " = "); \
    PRINT_##kind(name);               \
    text_add(text, ",");

void dnn_print_problem(struct text *text, const struct dnn_problem *from) {
    text_add(text, "{");
    DNN_PROBLEM(PRINT)
    text_add(text, "}");
}

void dnn_print_plan(struct text *text, const struct dnn_plan *from) {
    text_add(text, "{");
    DNN_PLAN(PRINT)
    text_add(text, "}");
}

/*
 * The interpreter: runs a nest's code where there is no C compiler.
 *
 *   dfp_kernel.code  ->  [this file]  ->  the same results as the compiled text
 *
 * One instruction works on a row: the active columns of a strip, times the lanes of a block. If a window
 * extends beyond the image's edge, some columns are inactive for some taps. The conditions of loops are
 * linear in the strip's variable, so the active columns are always a range. The code comes from code.c and is
 * not checked.
 */
#include "dfp/code.h"

#include <string.h>

#define LANES 4 /* all processors have such vectors; this file is compiled without flags for others */
#define LANE(v, l) (v)[l]
#pragma GCC diagnostic ignored \
    "-Wpsabi" /* vectors of doubles are passed to static functions only */
#define TEXT(...) __VA_ARGS__
#include "dfp/vector.h"
#include "dfp/vector_curve.h"
#include "dfp/vector_one.h"
/* behind vector.h, whose types it uses */

#include "dfp/kernel_types.h"

struct machine {
    const int64_t *code, *pc, *arg, *vars;
    void *const *ptr;
    float *tile, *reg;
    int64_t var[NEST_VARS];
    int strip, lane_var;
    int64_t first, end;   /* active columns of the strip */
    int64_t row, row_end; /* the iterations of the grid's last loop that the tasks cover */
};

/* ---- Operands ---- */

static int64_t next(struct machine *m) { return *m->pc++; }

static int64_t read_size(struct machine *m) {
    int64_t arg = next(m), number = next(m);
    return arg < 0 ? number : m->arg[arg];
}

static double read_double(struct machine *m) {
    double value;
    memcpy(&value, m->pc++, sizeof value);
    return value;
}

static int64_t read_sum(struct machine *m, int64_t *strip_coef);

/* The value of a variable. Quotients and remainders are computed from their sums. */
static int64_t find_var(struct machine *m, int64_t var) {
    const int64_t *entry = m->vars + 1 + 4 * var, *pc = m->pc;
    if (!entry[1]) return m->var[var];
    int64_t ignored;
    m->pc = m->code + entry[1];
    int64_t of = read_sum(m, &ignored);
    m->pc = entry + 2;
    int64_t divisor = read_size(m);
    m->pc = pc;
    return entry[0] == VAR_DIV ? div_floor(of, divisor) : mod_floor(of, divisor);
}

/* The sum in the strip's first column, and its step from column to column. */
static int64_t read_sum(struct machine *m, int64_t *strip_coef) {
    int64_t sum = 0;
    *strip_coef = 0;
    for (int64_t n = next(m); n > 0; n--) {
        int64_t var = next(m), coef = read_size(m);
        if (var == m->strip) *strip_coef = coef;
        sum += coef * find_var(m, var);
    }
    return sum + read_size(m);
}

/* A register, and its columns that are active here: [begin, end), of `inner` floats each. */
struct place {
    float *at;
    int64_t columns, inner, begin, end;
};

static struct place read_place(struct machine *m) {
    int64_t columns = next(m), inner = next(m);
    return (struct place){m->reg + next(m), columns, inner, columns ? m->first : 0,
                          columns ? m->end : 1};
}

/* The memory of a tensor, or of scratch. */
static void *read_memory(struct machine *m, enum sol_dtype *dtype) {
    int64_t pointer = next(m);
    *dtype = (enum sol_dtype)next(m);
    return pointer < 0 ? m->tile : m->ptr[pointer];
}

/* ---- Rows ---- */

#define CALL_1(name) name(x)
#define CALL_2(name) name(x, y)
#define CALL_3(name) name(x, y, z)

/* Whole vectors, then the rest with partial accesses: what is behind the active columns may be sums of other columns, which must
 * not change. */
#define ROW(name, value)                                                                           \
    static void row_##name(float *to, const float *a, const float *b, const float *c, int64_t n) { \
        int64_t i = 0;                                                                             \
        for (; i + LANES <= n; i += LANES) {                                                       \
            vec x = load(a + i), y = load(b + i), z = load(c + i);                                 \
            (void)y, (void)z;                                                                      \
            store(to + i, value);                                                                  \
        }                                                                                          \
        if (i == n) return;                                                                        \
        int left = (int)(n - i);                                                                   \
        vec x = load_part(a + i, left), y = load_part(b + i, left), z = load_part(c + i, left);    \
        (void)y, (void)z;                                                                          \
        store_part(to + i, value, left);                                                           \
    }
#define PRIMITIVE(name, n, ...) ROW(name, CALL_##n(name))
#define OPERATOR(name, symbol) ROW(name, x symbol y)
#define INTEGRAL(name, ...)
#include "ir/primitive.def"

typedef void row_function(float *to, const float *a, const float *b, const float *c, int64_t n);
static row_function *const rows[N_PRIMITIVES] = {
#define PRIMITIVE(name, ...) [PRIMITIVE_##name] = row_##name,
#define INTEGRAL(name, ...)
#include "ir/primitive.def"
};

static void fill_row(float *to, float value, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = value;
}

static void fill_columns(const struct place *to, float value, int64_t begin, int64_t end) {
    fill_row(to->at + begin * to->inner, value, (end - begin) * to->inner);
}

/* The reg of an instruction's operands decides its function. The first operand of a select is a bool, and so is the result of a
 * comparison: both are floats. */
static void run_typed(const struct place *to, const float *a, const float *b, const float *c,
                      enum primitive primitive, enum reg reg) {
    const int64_t begin = to->begin * to->inner, n = to->end * to->inner - begin,
                  wide = begin * reg_floats(reg);
    bool selects = primitive == PRIMITIVE_SELECT,
         compares = primitives[primitive].traits & COMPARES;
    code_rows[reg][primitive](to->at + (compares ? begin : wide), a + (selects ? begin : wide),
                              b + wide, c + wide, n);
}

static void run_arith(struct machine *m) {
    struct place to = read_place(m);
    int64_t begin = to.begin * to.inner;
    float *a = m->reg + next(m), *b = m->reg + next(m), *c = m->reg + next(m);
    enum primitive primitive = (enum primitive)next(m);
    enum reg reg = (enum reg)next(m);
    if (reg != REG_F32) run_typed(&to, a, b, c, primitive, reg);
    else rows[primitive](to.at + begin, a + begin, b + begin, c + begin, to.end * to.inner - begin);
}

static void run_cast(struct machine *m) {
    struct place to = read_place(m);
    const int64_t begin = to.begin * to.inner, n = to.end * to.inner - begin;
    const float *from = m->reg + next(m);
    enum reg reg = (enum reg)next(m);
    enum sol_dtype dtype = (enum sol_dtype)next(m);
    code_cast(reg, dtype, to.at + begin * reg_floats(reg_of(dtype)), from + begin * reg_floats(reg),
              n);
}

/* Copies one value per row, per column or per block to all places of a larger register. */
static void run_broadcast(struct machine *m) {
    struct place to = read_place(m), from = read_place(m);
    const int64_t floats = reg_floats((enum reg)next(m));
    for (int64_t c = to.begin; c < to.end; c++) {
        const float *x = from.at + (from.columns ? c * from.inner : 0) * floats;
        float *y = to.at + c * to.inner * floats;
        const int64_t copies = to.inner / from.inner, n = from.inner * floats;
        if (n == 1) fill_row(y, *x, copies);
        else
            for (int64_t i = 0; i < copies; i++) memcpy(y + i * n, x, sizeof *y * (size_t)n);
    }
}

/* ---- Conditions ---- */

/* Narrows [*first, *end) to the columns in which low <= base + column * step < high. */
static void narrow(int64_t base, int64_t step, int64_t low, int64_t high, int64_t *first,
                   int64_t *end) {
    if (step == 0) {
        if (base < low || base >= high) *end = *first;
        return;
    }
    if (step < 0) { /* the same condition, mirrored */
        int64_t old_low = low;
        low = 1 - high;
        high = 1 - old_low;
        base = -base;
        step = -step;
    }
    *first = max_int(*first, div_ceil(low - base, step));
    *end = max_int(*first, min_int(*end, div_ceil(high - base, step)));
}

/* Reads ranges and narrows the columns by those that are linear in the column; false if there are others. */
static bool read_ranges(struct machine *m, int64_t *first, int64_t *end) {
    bool linear = true;
    for (int64_t n = next(m); n > 0; n--) {
        int64_t step, base = read_sum(m, &step), low = read_size(m), high = read_size(m);
        if (next(m)) narrow(base, step, low, high, first, end);
        else linear = false;
    }
    return linear;
}

/* Do all ranges hold for the element that set_point has chosen? */
static bool holds_here(struct machine *m) {
    bool holds = true;
    for (int64_t n = next(m); n > 0; n--) {
        int64_t step, x = read_sum(m, &step), low = read_size(m), high = read_size(m);
        holds &= x >= low && x < high;
        next(m);
    }
    return holds;
}

/* The strip's variable normally has the value of the first column. set_point sets it to a column, and the lane; unset_point
 * undoes this. */
static void set_point(struct machine *m, int64_t column, int64_t lane) {
    if (m->strip >= 0) m->var[m->strip] += column;
    if (m->lane_var >= 0) m->var[m->lane_var] = lane;
}

static void unset_point(struct machine *m, int64_t column) {
    if (m->strip >= 0) m->var[m->strip] -= column;
    if (m->lane_var >= 0) m->var[m->lane_var] = 0;
}

/* The code has the number of channels in the last block of each segment; all other blocks are full. */
static void run_valid(struct machine *m) {
    struct place to = read_place(m);
    int64_t var = next(m), n = next(m);
    for (int64_t c = to.begin; c < to.end; c++) {
        int64_t block = m->var[var] + (var == m->strip ? c : 0), valid = to.inner;
        for (int64_t i = 0; i < n; i++)
            if (m->pc[2 * i] == block) valid = m->pc[2 * i + 1];
        for (int64_t l = 0; l < to.inner; l++) to.at[c * to.inner + l] = l < valid;
    }
    m->pc += 2 * n;
}

/* ---- Memory ---- */

struct access {
    const int64_t *sum, *ranges;
    int64_t offset, column_step, lane_step;
    bool single; /* element by element */
};

/* Keeps the position of the sum, which is evaluated again per element if it is not linear. */
static struct access read_access(struct machine *m) {
    struct access a = {.sum = m->pc};
    int64_t ignored;
    a.offset = read_sum(m, &ignored);
    a.column_step = read_size(m);
    a.lane_step = read_size(m);
    a.single = next(m);
    return a;
}

static int64_t find_offset(struct machine *m, const struct access *a) {
    int64_t ignored;
    m->pc = a->sum;
    return read_sum(m, &ignored);
}

/* Loads columns [first, end) of a register. */
static void load_columns(float *to, const float *from, const struct access *a, int64_t inner,
                         int64_t first, int64_t end) {
    int64_t step = a->column_step;
    from += a->offset;
    if (end <= first) return;
    if (step == inner && (inner == 1 || a->lane_step == 1)) {
        memcpy(to + first * inner, from + first * step,
               sizeof *to * (size_t)((end - first) * inner));
    } else if (inner == 1) {
        for (int64_t c = first; c < end; c++) to[c] = from[c * step];
    } else {
        for (int64_t c = first; c < end; c++) {
            const float *x = from + c * step;
            float *y = to + c * inner;
            if (a->lane_step == 1) memcpy(y, x, sizeof *y * (size_t)inner);
            else
                for (int64_t l = 0; l < inner; l++) y[l] = x[l * a->lane_step];
        }
    }
}

/* Loads with any index, such as a quotient, and any condition: formulas are evaluated per element. Elements whose conditions fail
 * are not changed. If `from` is NULL, the others become 1. */
static void load_singly(struct machine *m, struct place to, const float *from,
                        const struct access *a) {
    const int64_t *after = m->pc;
    for (int64_t c = to.begin; c < to.end; c++)
        for (int64_t l = 0; l < to.inner; l++) {
            set_point(m, c, l);
            m->pc = a->ranges;
            if (holds_here(m)) to.at[c * to.inner + l] = from ? from[find_offset(m, a)] : 1;
            unset_point(m, c);
        }
    m->pc = after;
}

static void run_range(struct machine *m) {
    struct place to = read_place(m);
    const struct access none = {.ranges = m->pc};
    int64_t first = to.begin, last = to.end;
    fill_columns(&to, 0, to.begin, to.end);
    if (read_ranges(m, &first, &last)) fill_columns(&to, 1, first, last);
    else load_singly(m, to, NULL, &none);
}

/* The same for elements of any type. */
static void load_singly_typed(struct machine *m, struct place to, enum sol_dtype dtype,
                              const char *from, const struct access *a) {
    const int64_t *after = m->pc, floats = reg_floats(reg_of(dtype));
    for (int64_t c = to.begin; c < to.end; c++)
        for (int64_t l = 0; l < to.inner; l++) {
            set_point(m, c, l);
            m->pc = a->ranges;
            if (holds_here(m))
                code_load(dtype, to.at + (c * to.inner + l) * floats,
                          from + find_offset(m, a) * size_element(dtype), 1, 1);
            unset_point(m, c);
        }
    m->pc = after;
}

static void load_typed(struct machine *m, struct place to, enum sol_dtype dtype, const char *from,
                       double fill, struct access *a) {
    int64_t first = to.begin, last = to.end, size = size_element(dtype);
    const int64_t floats = reg_floats(reg_of(dtype)) * to.inner;
    bool linear = read_ranges(m, &first, &last) && !a->single;
    code_fill(reg_of(dtype), to.at + to.begin * floats, fill, (to.end - to.begin) * to.inner);
    if (!linear) load_singly_typed(m, to, dtype, from, a);
    else if (to.inner == 1 && first < last)
        code_load(dtype, to.at + first * floats, from + (a->offset + first * a->column_step) * size,
                  a->column_step, last - first);
    else
        for (int64_t c = first; c < last; c++)
            code_load(dtype, to.at + c * floats, from + (a->offset + c * a->column_step) * size,
                      a->lane_step, to.inner);
}

/* Columns outside of [first, last) are padding and get the fill; columns inside need no further test. */
static void run_load(struct machine *m) {
    struct place to = read_place(m);
    enum sol_dtype dtype;
    const float *from = read_memory(m, &dtype);
    double fill = read_double(m);
    struct access a = read_access(m);
    int64_t first = to.begin, last = to.end;
    a.ranges = m->pc;
    if (dtype != SOL_F32) {
        load_typed(m, to, dtype, (const char *)from, fill, &a);
        return;
    }
    bool linear = read_ranges(m, &first, &last) && !a.single;
    if (!linear) last = first;
    fill_columns(&to, (float)fill, to.begin, first);
    fill_columns(&to, (float)fill, last, to.end);
    if (linear) load_columns(to.at, from, &a, to.inner, first, last);
    else load_singly(m, to, from, &a);
}

static void run_index(struct machine *m) {
    struct place to = read_place(m);
    const struct access sum = {.sum = m->pc};
    for (int64_t c = to.begin; c < to.end; c++) {
        set_point(m, c, 0);
        int64_t value = find_offset(m, &sum);
        memcpy(to.at + 2 * c, &value, sizeof value);
        unset_point(m, c);
    }
    if (to.begin >= to.end) find_offset(m, &sum); /* moves behind the sum */
}

static void store_typed(const struct place *from, enum sol_dtype dtype, char *to,
                        const struct access *a) {
    const int64_t size = size_element(dtype), floats = reg_floats(reg_of(dtype)) * from->inner;
    for (int64_t c = from->begin; c < from->end; c++)
        code_store(dtype, to + (a->offset + c * a->column_step) * size, from->at + c * floats,
                   a->lane_step, from->inner);
}

static void run_store(struct machine *m) {
    struct place from = read_place(m);
    enum sol_dtype dtype;
    float *to = read_memory(m, &dtype);
    struct access a = read_access(m);
    bool dense = a.lane_step == 1 || from.inner == 1;
    if (dtype != SOL_F32) {
        store_typed(&from, dtype, (char *)to, &a);
        return;
    }
    to += a.offset;
    if (dense && a.column_step == from.inner) {
        memcpy(to + from.begin * from.inner, from.at + from.begin * from.inner,
               sizeof *to * (size_t)((from.end - from.begin) * from.inner));
        return;
    }
    for (int64_t c = from.begin; c < from.end; c++)
        for (int64_t l = 0; l < from.inner; l++)
            to[c * a.column_step + l * a.lane_step] = from.at[c * from.inner + l];
}

/* ---- Reductions and loops ---- */

static void run_set(struct machine *m) {
    struct place to = read_place(m);
    enum reg reg = (enum reg)next(m);
    code_fill(reg, to.at, read_double(m), to.columns ? CODE_STRIP : to.inner);
}

/* to = to combined with x */
static void combine_row(enum primitive primitive, enum reg reg, float *to, const float *x,
                        int64_t n) {
    if (reg == REG_F32) rows[primitive](to, to, x, to, n);
    else code_rows[reg][primitive](to, to, x, to, n);
}

/* Combines the columns by halves: the rounding error is smaller than in one chain of sums. */
static void run_fold(struct machine *m) {
    enum primitive primitive = (enum primitive)next(m);
    enum reg reg = (enum reg)next(m);
    int64_t inner = next(m), floats = reg_floats(reg);
    float *to = m->reg + next(m), *from = m->reg + next(m);
    for (int64_t n = next(m) / 2; n > 0; n /= 2)
        combine_row(primitive, reg, from, from + n * inner * floats, n * inner);
    combine_row(primitive, reg, to, from, inner);
}

static void run_body(struct machine *m);

/* Runs the body for the current value (or strip of values) of the loop's variable, in the columns in which the loop's
 * ranges hold. */
static void run_columns(struct machine *m, const int64_t *ranges) {
    int64_t first = m->first, end = m->end;
    m->pc = ranges;
    read_ranges(m, &m->first, &m->end);
    if (m->first < m->end) run_body(m);
    m->first = first;
    m->end = end;
}

/* Runs a loop in strips of `width` columns; the body's instructions then work on that many values. */
static void run_strips(struct machine *m, int64_t var, int64_t begin, int64_t end, int64_t width,
                       const int64_t *ranges) {
    m->strip = (int)var;
    for (int64_t at = begin; at < end; at += width) {
        m->var[var] = at;
        m->first = 0;
        m->end = min_int(width, end - at);
        run_columns(m, ranges);
    }
    m->strip = -1;
    m->first = 0;
    m->end = 1;
}

static void run_loop(struct machine *m) {
    int64_t var = next(m), is_row = next(m), extent = read_size(m), words = next(m);
    const int64_t *after = m->pc + words;
    int64_t begin = is_row ? m->row : 0, end = is_row ? m->row_end : extent, width = next(m);
    const int64_t *ranges = m->pc;
    if (width) run_strips(m, var, begin, end, width, ranges);
    for (int64_t i = begin; i < end && !width; i++) {
        m->var[var] = i;
        run_columns(m, ranges);
    }
    m->pc = after;
}

static void run_body(struct machine *m) {
    for (;;) {
        switch ((enum code_op)next(m)) {
        case CODE_END: return;
        case CODE_ARITH: run_arith(m); break;
        case CODE_BROADCAST: run_broadcast(m); break;
        case CODE_CAST: run_cast(m); break;
        case CODE_INDEX: run_index(m); break;
        case CODE_LOAD: run_load(m); break;
        case CODE_STORE: run_store(m); break;
        case CODE_RANGE: run_range(m); break;
        case CODE_VALID: run_valid(m); break;
        case CODE_SET: run_set(m); break;
        case CODE_FOLD: run_fold(m); break;
        case CODE_LOOP: run_loop(m); break;
        }
    }
}

/* ---- Tasks ---- */

static void set_constants(struct machine *m) {
    m->pc = m->code + m->code[HEAD_CONSTANTS];
    for (int64_t n = next(m); n > 0; n--) {
        float *to = m->reg + next(m);
        enum reg reg = (enum reg)next(m);
        code_fill(reg, to, read_double(m), 1);
    }
}

static void set_margins(struct machine *m) {
    m->pc = m->code + m->code[HEAD_MARGINS];
    for (int64_t n = next(m); n > 0; n--) {
        enum reg reg = (enum reg)next(m);
        float *to = m->tile + next(m) * reg_floats(reg);
        double value = read_double(m);
        code_fill(reg, to, value, next(m));
    }
}

/* Sets the grid's variables for the task `begin` and the tasks behind it that differ only in the chunk. Returns the number of
 * these tasks. */
static int64_t begin_run(struct machine *m, int64_t begin, int64_t end) {
    int64_t var[NEST_VARS], extent[NEST_VARS];
    m->pc = m->code + m->code[HEAD_GRID];
    int64_t n = next(m);
    for (int64_t i = 0; i < n; i++) {
        var[i] = next(m);
        extent[i] = read_size(m);
    }
    int64_t chunks = read_size(m), chunk = read_size(m), first = begin % chunks;
    int64_t run = min_int(end - begin, chunks - first), task = begin / chunks;
    for (int64_t i = n - 2; i >= 0; i--) {
        m->var[var[i]] = task % extent[i];
        task /= extent[i];
    }
    m->row = first * chunk;
    if (n) m->row_end = min_int((first + run) * chunk, extent[n - 1]);
    return run;
}

void dfp_interpret(const void *code, void *const *ptr, const int64_t *arg, char *scratch,
                   int64_t begin, int64_t end) {
    const int64_t *words = code;
    struct machine m = {.code = words, .ptr = ptr, .arg = arg, .strip = -1, .end = 1};
    m.vars = words + words[HEAD_VARS];
    m.lane_var = (int)words[HEAD_LANE_VAR];
    m.tile = (float *)scratch;
    m.reg = m.tile + words[HEAD_TILE];
    set_constants(&m);
    set_margins(&m);
    while (begin < end) {
        begin += begin_run(&m, begin, end);
        m.pc = words + words[HEAD_BODY];
        run_body(&m);
    }
}

/*
 * Windows of two dims: their rows are combined before their columns.
 *
 *   the point expression of a pooling  ->  [this file]  ->  two expressions, with a row of values between them
 *
 * y[i][j] = max over r, s of x[2*i + r][2*j + s] becomes
 *     row[i][w] = max over r of x[2*i + r][w]        a value of its own: a stage keeps it in scratch
 *     y[i][j]   = max over s of row[i][2*j + s]
 * so that a window of 5 by 5 reads 5 + 5 values instead of 25, and a vector of a row is loaded from memory as a whole, at
 * any stride. In scratch the row has margins, which hold the combine's neutral value: where the padding is. So no
 * tap of the columns needs a test, and each vector is loaded as a whole. The margins are written once per call of the kernel.
 */
#include "dfp/nest.h"

/* ---- Which expressions are windows ---- */

/* An index of a window: out * stride + tap * dilation + base. */
struct tap {
    int64_t stride, dilation, base;
};

static bool add_term(struct tap *t, const struct index *x, int out, int tap) {
    if (x->op == INDEX_ADD) return add_term(t, x->a, out, tap) && add_term(t, x->b, out, tap);
    bool times = x->op == INDEX_MUL;
    const struct index *var = times ? x->a : x;
    const struct size factor = times ? x->b->value : size_const(1);
    if (x->op == INDEX_CONST && size_is_const(x->value)) t->base += size_value(x->value);
    else if (var->op != INDEX_VAR || !size_is_const(factor)) return false;
    else if (var->var == out) t->stride += size_value(factor);
    else if (var->var == tap) t->dilation += size_value(factor);
    else return false;
    return true;
}

static bool is_own(const struct index *x, int var) { return x->op == INDEX_VAR && x->var == var; }

/* The reduction over two dims of one load at taps of rows and columns, or NULL. It may be below other operations. */
static struct expr *find_window(struct expr *e, struct tap tap[2]) {
    for (int i = 0; i < 3 && e->arg[i] && e->kind != EXPR_REDUCE; i++) {
        struct expr *found = find_window(e->arg[i], tap);
        if (found) return found;
    }
    const struct expr *load = e->arg[0];
    if (e->kind != EXPR_REDUCE || e->n_vars != 2 || load->kind != EXPR_LOAD) return NULL;
    if (load->n_index != 4 || !is_own(load->index[0], 0) || !is_own(load->index[1], 1)) return NULL;
    for (int d = 0; d < 2; d++) {
        tap[d] = (struct tap){0};
        if (!add_term(&tap[d], load->index[2 + d], 2 + d, e->first_var + d)) return NULL;
        if (tap[d].stride < 1 || tap[d].dilation < 1) return NULL;
        if (!size_is_const(e->extent[d])) return NULL;
    }
    bool fits = !load->checked || load->fill == combines[e->combine].neutral;
    return fits && load->type == e->type ? e : NULL;
}

/* ---- Whether it is worth it ---- */

/* Loads of a vector whose elements are `stride` apart, and the instructions that combine it. */
static double cost_tap(int64_t stride, int lanes) {
    const double combine = 2;
    return combine + (stride == 1 ? 1 : stride == 2 ? 3 : 1.5 * lanes);
}

/* Compares the numbers of instructions for one row of results. Tests at the image's edges count as a tap of each row. */
static bool is_cheaper(const struct expr *window, const struct tap tap[2], int64_t in, int64_t out,
                       int lanes) {
    const double rows = (double)size_value(window->extent[0]),
                 columns = (double)size_value(window->extent[1]);
    const double in_vectors = (double)ceil_div(in, lanes),
                 out_vectors = (double)ceil_div(out, lanes);
    const double column = cost_tap(lanes > 1 ? tap[1].stride : 1, lanes);
    const double tests = window->arg[0]->checked ? 2 * rows : 0;
    const double whole = out_vectors * (rows * columns * column + tests);
    return in_vectors * (rows * cost_tap(1, lanes) + 1) + out_vectors * columns * column < whole;
}

/* ---- The two expressions ---- */

static const struct index *make_index(struct arena *a, struct tap t, int out, int tap) {
    const struct index *x = index_mul(a, index_var(a, out), size_const(t.stride));
    x = index_add(a, x, index_mul(a, index_var(a, tap), size_const(t.dilation)));
    return index_add(a, x, index_const(a, t.base));
}

static struct expr *copy_expr(struct arena *arena, const struct expr *e) {
    return arena_copy(arena, e, sizeof *e);
}

/* Changes the load below a reduction: of `from`, with index d at `tap`, the others at the point itself. */
static void set_load(struct arena *arena, struct expr *window, struct tensor *from, int d,
                     struct tap tap) {
    struct expr *load = copy_expr(arena, window->arg[0]);
    load->tensor = from;
    load->index = ARENA_ARRAY(arena, const struct index *, 4);
    for (int i = 0; i < 4; i++) load->index[i] = index_var(arena, i);
    load->index[d] = make_index(arena, tap, d, window->first_var);
    window->arg[0] = load;
    window->n_vars = 1;
    window->extent = arena_copy(arena, &window->extent[d - 2], sizeof *window->extent);
}

/* The row's margins: taps may begin `before` it, and the last vector of results reads up to `behind` it. */
static struct margins find_margins(const struct nest *nest, const struct expr *window,
                                   struct tap tap, int64_t in, int64_t out) {
    const int lanes = nest->lanes;
    const int64_t taps = size_value(window->extent[1]);
    const int64_t last = (out + lanes) * tap.stride + (taps - 1) * tap.dilation + tap.base;
    const struct node reduce = {.combine = window->combine, .to = window->type};
    return (struct margins){.before = max_i64(0, -tap.base),
                            .behind = max_i64(0, last - in) + lanes,
                            .fill = reduce_neutral(&reduce)};
}

bool nest_split_window(struct nest *nest, struct expr *e, struct tensor *y, struct value *row) {
    struct tap tap[2];
    struct expr *window = find_window(e, tap);
    if (!window || !nest->splits_windows) return false;
    const struct tensor *x = window->arg[0]->tensor;
    if (!size_is_const(x->dim[3]) || !size_is_const(y->dim[3])) return false;
    int64_t in = size_value(x->dim[3]), out = size_value(y->dim[3]);
    if (in < 2 || out < 2 || size_is(y->dim[2], 1)) return false;
    if (!is_cheaper(window, tap, in, out, y->layout.block ? 1 : nest->lanes)) return false;
    struct tensor *t = arena_copy(nest->arena, y, sizeof *y);
    t->dtype = window->type;
    t->dim[3] = x->dim[3];
    *row = (struct value){.tensor = t, .expr = copy_expr(nest->arena, window), .n_vars = 5};
    row->margins = find_margins(nest, window, tap[1], in, out);
    set_load(nest->arena, row->expr, window->arg[0]->tensor, 2, tap[0]);
    set_load(nest->arena, window, t, 3, tap[1]);
    return true;
}

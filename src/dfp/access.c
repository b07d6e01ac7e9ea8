/*
 * Printing C: loads, stores, and conditions that differ from lane to lane.
 *
 *   print.c, emit.c: an instruction of a block  ->  [this file]  ->  lines of text
 *
 * In the partial version of a loop over lanes, accesses touch n elements only. Where an access needs a loop over lanes, the text
 * calls a function of vector.h if possible: in a kernel's text each such loop becomes a branch per lane, which takes most of the
 * C compiler's time.
 */
#include "dfp/print.h"

#include <inttypes.h>

static bool ranges_are_vector(const struct printer *p, const struct item *item) {
    for (int i = 0; i < item->n_ranges; i++)
        if (print_is_vector(p, affine_deps(p->nest, item->range[i]->x))) return true;
    return false;
}

static const char *count_text(const struct printer *p) { return p->partial ? "n" : "LANES"; }

/* ---- Loads ---- */

/* Accesses of f32 have names without a suffix; "bool" is a macro of C. */
const char *print_suffix(const struct value *v) {
    static const char *const suffixes[SOL_N_DTYPES] = {
#define SUFFIX(code, name, type, family) "_" name,
        SOL_DTYPE_LIST(SUFFIX)
#undef SUFFIX
    };
    enum sol_dtype dtype = nest_stored_type(v);
    return dtype == SOL_F32 ? "" : dtype == SOL_BOOL ? "_truth" : suffixes[dtype];
}

void print_pointer(struct printer *p, const struct value *v) {
    enum sol_dtype dtype = nest_stored_type(v);
    print_need_types(p, dtype != SOL_F32);
    if (!nest_in_scratch(v)) text_add(p->text, "p%d", v->ptr);
    else if (dtype == SOL_F32) text_add(p->text, "tile");
    else text_add(p->text, "((%s *)(void *)tile)", size_c_type(dtype));
}

/* The variable by which an access differs between lanes: the position in a block, or the loop that runs over
 * lanes. */
static int lane_of(const struct printer *p, uint64_t deps) {
    if (p->nest->lane_var >= 0 && (deps & var_bit(p->nest->lane_var))) return p->nest->lane_var;
    return p->lane;
}

static const struct size one = {.n = 1, .term = {{.coef = 1}}};

/* The distance from lane to lane, in elements; false if it is not constant, since a quotient depends on the lane. */
static bool find_step(const struct printer *p, const struct affine *offset, int lane,
                      const struct size **step) {
    *step = affine_find_coef(offset, lane);
    for (int i = 0; i < offset->n; i++) {
        int var = offset->term[i].var;
        if (var != lane && (p->nest->var[var].deps & var_bit(lane))) return false;
    }
    return true;
}

/* Each iteration of a strip has its own scratch. */
static void print_strip(struct printer *p, const struct value *v) {
    struct nest *nest = p->nest;
    if (size_is(nest->strip, 0) || !nest_in_scratch(v)) return;
    int row = nest->grid.at[nest->grid.n - 1];
    text_add(p->text, " + (i%d - i%d_first) * a%d", row, row, nest_arg(nest, &v->scratch_step));
}

static void print_address(struct printer *p, const struct value *v, const struct affine *offset) {
    print_pointer(p, v);
    text_add(p->text, " + ");
    /* If the grid runs over lanes, scratch holds a vector per value, so its offsets have no term in the lane. */
    print_sum(p, offset, false, false, -1);
    print_strip(p, v);
}

/* An element of f32; elements of other types are widened: get_u8(address). */
static void print_element(struct printer *p, const struct value *v, const struct affine *offset,
                          bool in_lane) {
    bool widens = *print_suffix(v);
    if (widens) text_add(p->text, "get%s(", print_suffix(v));
    print_pointer(p, v);
    text_add(p->text, widens ? " + " : "[");
    print_sum(p, offset, in_lane, false, -1);
    print_strip(p, v);
    text_add(p->text, widens ? ")" : "]");
}

/* The first element at an address, also if it is one for all lanes. */
static void print_first(struct printer *p, const struct value *v, const struct affine *offset) {
    const char *suffix = print_suffix(v);
    text_add(p->text, "%s%s(", *suffix ? "get" : "", suffix);
    print_address(p, v, offset);
    text_add(p->text, *suffix ? ")" : ")[0]");
}

/* A vector whose lanes lie `step` apart. Behind a row with margins, the lanes that are not used can be read. */
static void print_vector_load(struct printer *p, const struct value *v, const struct affine *offset,
                              const struct size *step) {
    const char *suffix = print_suffix(v);
    bool dense = size_is(*step, 1), second = size_is(*step, 2) && !*suffix;
    bool partial = p->partial && !(value_has_margins(v) && (dense || second));
    const char *name = dense ? "load" : second ? "gather2" : "gather";
    text_add(p->text, "%s%s%s(", name, partial ? "_part" : "", suffix);
    print_address(p, v, offset);
    if (!dense && !second) {
        text_add(p->text, ", ");
        print_size(p, step, false);
    }
    text_add(p->text, partial ? ", n)" : ")");
}

/* A loop over lanes, for loads that have no simpler form. The vector v<id> is declared already. */
static void print_lane_loads(struct printer *p, const struct item *item) {
    const struct node *n = item->node;
    print_line(p, "v%d = ", n->id);
    print_number(p, n->reg, n->fill, true);
    text_add(p->text, ";\n");
    print_line(p, "for (int l = 0; l < %s; l++)\n", count_text(p));
    print_line(p, "    ");
    if (item->n_ranges) {
        text_add(p->text, "if (");
        print_conditions(p, item->range, item->n_ranges, true);
        text_add(p->text, ") ");
    }
    text_add(p->text, "LANE(v%d, l) = ", n->id);
    print_element(p, n->from, n->offset, true);
    text_add(p->text, ";\n");
}

/* Are all conditions linear in the lane, and constant or growing? Then they hold in a range of lanes: in all of them if they
 * hold in the first and the last, as for most vectors, which are inside the image. */
static bool is_monotone(struct printer *p, const struct item *item, int lane) {
    const struct size *step;
    for (int i = 0; i < item->n_ranges; i++) {
        struct size coef = affine_coef(item->range[i]->x, lane);
        bool grows = size_is_const(coef) && size_value(coef) >= 0;
        if (!grows || !find_step(p, item->range[i]->x, lane, &step)) return false;
    }
    return true;
}

/* Prints the range of lanes [from, to) in which the conditions hold. A condition that is the same in all lanes empties it if it
 * fails. */
static void print_lane_range(struct printer *p, const struct item *item, int lane) {
    print_line(p, "int64_t from = 0, to = %s;\n", count_text(p));
    for (int i = 0; i < item->n_ranges; i++) {
        const struct range *r = item->range[i];
        int64_t coef = size_value(affine_coef(r->x, lane));
        if (coef) {
            print_bounds(p, r, coef, -1, "from", "to");
            continue;
        }
        print_line(p, "if (!(");
        print_condition(p, r, false);
        text_add(p->text, ")) to = 0;\n");
    }
}

static void print_edge_test(struct printer *p, const struct item *item, int lane) {
    for (int i = 0; i < item->n_ranges; i++) {
        const struct range *r = item->range[i];
        struct size coef = affine_coef(r->x, lane);
        text_add(p->text, "%s", i ? " && " : "");
        print_condition(p, r, false);
        if (size_is(coef, 0) || !print_is_bound(r->high)) continue;
        text_add(p->text, " && ");
        print_sum(p, r->x, false, true, -1);
        text_add(p->text, " + (%s - 1) * %" PRId64 " < ", count_text(p), size_value(coef));
        print_size(p, &r->high, false);
    }
}

static void print_clipped_load(struct printer *p, const struct item *item, int lane,
                               const struct size *step) {
    const struct node *n = item->node;
    print_lane_range(p, item, lane);
    print_line(p, "v%d = load_lanes%s(", n->id, print_suffix(n->from));
    print_address(p, n->from, n->offset);
    text_add(p->text, ", ");
    print_size(p, step, false);
    text_add(p->text, ", ");
    print_number(p, n->reg, n->fill, false);
    text_add(p->text, ", from, to);\n");
}

/* if (conditions hold in the first and the last lane) v = load(...); else v = load_lanes(..., from, to); in a version for windows that
 * extend beyond the edge only the latter, without the test. */
static void print_edge_load(struct printer *p, const struct item *item, int lane,
                            const struct size *step) {
    const struct node *n = item->node;
    if (!p->is_edge) {
        print_line(p, "if (");
        print_edge_test(p, item, lane);
        text_add(p->text, ") {\n");
        print_line(p, "    v%d = ", n->id);
        print_vector_load(p, n->from, n->offset, step);
        text_add(p->text, ";\n");
        print_line(p, "} else {\n");
    } else {
        print_line(p, "{\n");
    }
    p->indent++;
    print_clipped_load(p, item, lane, step);
    p->indent--;
    print_line(p, "}\n");
}

/* vec v = fill; if (conditions) v = load(...); for conditions that are the same in all lanes. */
static void print_guarded_load(struct printer *p, const struct item *item, bool vector,
                               const struct size *step) {
    const struct node *n = item->node;
    print_line(p, "%s v%d = ", print_type(n->reg, vector), n->id);
    print_number(p, n->reg, n->fill, vector);
    text_add(p->text, ";\n");
    print_line(p, "if (");
    print_conditions(p, item->range, item->n_ranges, false);
    text_add(p->text, ") v%d = ", n->id);
    if (vector) print_vector_load(p, n->from, n->offset, step);
    else print_first(p, n->from, n->offset);
    text_add(p->text, ";\n");
}

/* Is the value in scratch while the grid runs over lanes? Then it is one vector, even if it does not depend on the lane. */
static bool is_grid_tile(const struct printer *p, const struct value *v) {
    return nest_in_scratch(v) && p->nest->grid_lane;
}

static void print_vector_item(struct printer *p, const struct item *item) {
    const struct node *n = item->node;
    const struct size *step = &one;
    int lane = lane_of(p, n->deps);
    bool even = is_grid_tile(p, n->from) || find_step(p, n->offset, lane, &step);
    bool edge = ranges_are_vector(p, item);
    if (!even || edge) print_line(p, "%s v%d;\n", print_type(n->reg, true), n->id);
    if (!even || (edge && !is_monotone(p, item, lane))) {
        print_lane_loads(p, item);
    } else if (edge) {
        print_edge_load(p, item, lane, step);
    } else if (item->n_ranges) {
        print_guarded_load(p, item, true, step);
    } else {
        print_declaration(p, n);
        if (size_is(*step, 0)) {
            text_add(p->text, "splat%s(", reg_suffix(n->reg));
            print_first(p, n->from, n->offset);
            text_add(p->text, ")");
        } else {
            print_vector_load(p, n->from, n->offset, step);
        }
        text_add(p->text, ";\n");
    }
}

/* The item without the conditions that hold here. */
static struct item drop_known(struct printer *p, const struct item *item) {
    struct item open = *item;
    open.n_ranges = 0;
    open.range = ARENA_ARRAY(p->nest->arena, const struct range *, item->n_ranges);
    for (int i = 0; i < item->n_ranges; i++)
        if (!print_is_known(p, item->range[i])) open.range[open.n_ranges++] = item->range[i];
    return open;
}

/*
 * The cheapest of: a scalar, a splat, a vector, a gather, a loop over lanes. Conditions are tested
 * once if they are the same in all lanes, else in the first and the last lane if possible, else in each.
 */
void print_load(struct printer *p, const struct item *guarded) {
    const struct item open = drop_known(p, guarded), *item = &open;
    const struct node *n = item->node;
    if (print_is_vector(p, n->deps)) {
        print_vector_item(p, item);
    } else if (item->n_ranges) {
        print_guarded_load(p, item, false, NULL);
    } else {
        print_declaration(p, n);
        print_element(p, n->from, n->offset, false);
        text_add(p->text, ";\n");
    }
}

/* ---- Conditions ---- */

static void print_truth(struct printer *p, const struct item *item, bool in_lane) {
    text_add(p->text, "(");
    print_conditions(p, item->range, item->n_ranges, in_lane);
    text_add(p->text, ") ? 1.0f : 0.0f;\n");
}

void print_range(struct printer *p, const struct item *guarded) {
    const struct item open = drop_known(p, guarded), *item = &open;
    const struct node *n = item->node;
    if (!item->n_ranges) {
        print_declaration(p, n);
        print_number(p, REG_F32, 1, print_is_vector(p, n->deps));
        text_add(p->text, ";\n");
        return;
    }
    if (!print_is_vector(p, n->deps)) {
        print_declaration(p, n);
        print_truth(p, item, false);
        return;
    }
    print_line(p, "vec v%d;\n", n->id);
    if (is_monotone(p, item, lane_of(p, n->deps))) {
        print_line(p, "{\n");
        p->indent++;
        print_lane_range(p, item, lane_of(p, n->deps));
        print_line(p, "v%d = valid_range(from, to);\n", n->id);
        p->indent--;
        print_line(p, "}\n");
        return;
    }
    print_line(p, "for (int l = 0; l < LANES; l++) LANE(v%d, l) = ", n->id);
    print_truth(p, item, true);
}

/* ---- Stores ---- */

void print_store(struct printer *p, const struct item *item) {
    const struct value *v = item->value;
    uint64_t deps = affine_deps(p->nest, v->at);
    const struct size *step = &one;
    bool vector = print_is_vector(p, deps) || is_grid_tile(p, v);
    const char *suffix = print_suffix(v);
    if (!vector && !*suffix) {
        print_line(p, "");
        print_element(p, v, v->at, false);
        text_add(p->text, " = ");
        print_operand(p, item->arg[0], false);
        text_add(p->text, ";\n");
        return;
    }
    if (!vector) {
        print_line(p, "put%s(", suffix);
        print_address(p, v, v->at);
        text_add(p->text, ", ");
        print_operand(p, item->arg[0], false);
        text_add(p->text, ");\n");
        return;
    }
    /* A root is stored at its own point, which is linear in every variable. */
    if (!is_grid_tile(p, v)) find_step(p, v->at, lane_of(p, deps), &step);
    bool dense = size_is(*step, 1);
    print_line(p, "%s%s%s(", dense ? "store" : "scatter", p->partial ? "_part" : "", suffix);
    print_address(p, v, v->at);
    if (!dense) {
        text_add(p->text, ", ");
        print_size(p, step, false);
    }
    text_add(p->text, ", ");
    print_operand(p, item->arg[0], true);
    text_add(p->text, p->partial ? ", n);\n" : ");\n");
}

/*
 * Printing C: what print.c (sums, arithmetic), access.c (loads, stores, conditions) and emit.c (loops, the function) share.
 *
 *   emit.c: blocks  ->  print.c: their items  ->  access.c: those that access memory  ->  printer->text
 *                   ->  inner.c: which iterations of a loop have windows inside the image
 */
#ifndef DFP_PRINT_H
#define DFP_PRINT_H

#include "dfp/dialect.h"
#include "dfp/nest.h"

struct printer {
    struct nest *nest;
    const struct dfp_dialect *dialect;
    struct text *text;
    int lane;      /* the variable that runs over lanes here, -1: none */
    bool partial;  /* in the version of a loop's body for n < LANES lanes */
    bool unrolled; /* in the version of a reduction's body for its vector u */
    bool is_wide;  /* in a reduction of WIDE vectors at once, for vector u */
    bool is_edge; /* in the version of a body for windows that may extend beyond the image's edge */
    int indent;
    VEC(const struct range *) known; /* conditions that hold here: inner.c */
};

void print_line(struct printer *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A number if it is part of the structure (`is_number`, or 0 or 1), else an argument a<i>. */
void print_size(struct printer *p, const struct size *size, bool is_number);
/* The sum without the term of variable `without` (-1: all terms), in lane `l` of the text, or in the first lane. */
void print_sum(struct printer *p, const struct affine *a, bool in_lane, bool is_number,
               int without);
void print_condition(struct printer *p, const struct range *r, bool in_lane);
void print_conditions(struct printer *p, const struct range *const *r, int n, bool in_lane);
/* Lines that raise `begin` and lower `end`, names of variables of the text, so that `r` holds for all i in [begin, end). The
 * sum is A + coef * i, where A is r->x without the term of `without`, and coef > 0:
 * low <= A + coef * i < high gives ceil((low - A) / coef) <= i < ceil((high - A) / coef). */
void print_bounds(struct printer *p, const struct range *r, int64_t coef, int without,
                  const char *begin, const char *end);
bool print_is_bound(struct size size); /* false: so large that it stands for infinity */
bool print_is_vector(const struct printer *p, uint64_t deps); /* does it differ between lanes? */
/* "float", "vec", "int64_t", "vec_i64", ...: the type of a value in the text */
const char *print_type(enum reg reg, bool vector);
/* The suffix of functions that access memory: "" for f32, else "_u8", ... */
const char *print_suffix(const struct value *v);
void print_pointer(struct printer *p,
                   const struct value *v); /* to its first element, or to scratch */
/* "1" for functions of one value, "" for those of vectors. Portable C has no vectors of other types than f32. */
const char *print_one(const struct printer *p, enum reg reg, bool vector);
/* Notes that the text needs the functions of dfp/kernel_types.h, if `is_rare`. */
void print_need_types(struct printer *p, bool is_rare);
/* If `as_vector`, a single value is printed as splat(value). */
void print_number(struct printer *p, enum reg reg, double value, bool as_vector);
void print_operand(struct printer *p, const struct node *n, bool as_vector);
/* "const vec v7 = " */
void print_declaration(struct printer *p, const struct node *n);
void print_node(struct printer *p, const struct item *item);
void print_load(struct printer *p, const struct item *item);
void print_range(struct printer *p, const struct item *item);
void print_store(struct printer *p, const struct item *item);

/* ---- emit.c: for dialects ---- */
void print_end(struct printer *p, const struct block *b); /* the end of the loop's iterations */
/* The loop over lanes, by LANES iterations at a time; behind it there may be some left. */
void print_lane_steps(struct printer *p, const struct block *b, int n_known);
/* "INDEPENDENT ", if the dialect has hints and the loop's iterations are independent, else "". */
const char *print_hint(const struct printer *p, const struct block *b);
/* The loop's body. If `n_known` conditions hold in inner iterations, in two versions; `width` is the text of the number of iterations
 * that it computes at once. */
void print_versions(struct printer *p, const struct block *b, int n_known, const char *width);
void print_body(struct printer *p, const struct block *b);
void print_item(struct printer *p, const struct item *item);
void print_loops(struct printer *p, const struct block *outer); /* all loops of a reduction */
/* Around the part of a body that is for vector u of a row of WIDE ones. */
void print_wide_begin(struct printer *p);
void print_wide_end(struct printer *p);

/* ---- inner.c ---- */
bool print_is_known(const struct printer *p, const struct range *r);
/* Adds the conditions of windows in the body of the loop that hold in its inner iterations to `known`. Returns their number. */
int print_find_known(struct printer *p, const struct block *b);
/* Raises i<k>_inner and lowers i<k>_outer of the text, so that the last n of `known` hold in the iterations between them. */
void print_inner_bounds(struct printer *p, const struct block *b, int n);

#endif

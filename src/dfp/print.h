/*
 * Printing C: what print.c (values), access.c (loads, stores) and emit.c (loops, the function) share.
 */
#ifndef DFP_PRINT_H
#define DFP_PRINT_H

#include "dfp/nest.h"

struct printer {
    struct nest *nest;
    struct text *text;
    int lane;      /* variable that runs over lanes here, -1: none */
    bool partial;  /* in the version for n < LANES lanes */
    bool interior; /* in the version for windows that lie inside the image */
    int indent;
};

void print_line(struct printer *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A number where it belongs to the structure (`is_number`, 0, 1), else an argument. */
void print_size(struct printer *p, const struct size *size, bool is_number);
/* The sum without the term of variable `without`; in lane `l`, or in the first lane. */
void print_sum(struct printer *p, const struct affine *a, bool in_lane, bool is_number,
               int without);
void print_condition(struct printer *p, const struct range *r, bool in_lane);
void print_conditions(struct printer *p, const struct range *const *r, int n, bool in_lane);
/* Lines that raise `begin` and lower `end`, names of variables, to where the condition holds for A + coef * i, A being the sum without
 * the term of `without`: low <= A + c * i < high gives ceil((low - A) / c) <= i < ceil((high - A) / c). */
void print_bounds(struct printer *p, const struct range *r, int64_t coef, int without,
                  const char *begin, const char *end);
bool print_is_bound(struct size size);
bool print_is_vector(const struct printer *p, uint64_t deps);
/* As vectors where these are wanted. */
void print_number(struct printer *p, double value, bool as_vector);
void print_operand(struct printer *p, const struct node *n, bool as_vector);
/* "const vec v7 = " */
void print_declaration(struct printer *p, const struct node *n);
void print_node(struct printer *p, const struct item *item);
void print_load(struct printer *p, const struct item *item);
void print_range(struct printer *p, const struct item *item);
void print_store(struct printer *p, const struct item *item);

#endif

/* What the files of the page share: page.c (the network, memory, tables), page_head.c (what was measured, where and when). */
#ifndef SOL_PAGE_H
#define SOL_PAGE_H

#include "base/base.h"
#include "run/bind.h"
#include "run/program.h"

#include <sol/sol.h>

struct page {
    struct text text;
    const struct sol_program *program;
    const struct binding *binding;
    const struct sol_step_time *step;
    const int64_t *symbols;
    int n;
    int64_t batch; /* the first size of the first input */
    double seconds, longest;
    int n_lanes; /* of arrows on the left */
};

extern const char page_style[];
/* Names come from a user's program or file: nothing in them is HTML, or invisible. */
void page_add_text(struct page *page, const char *string);
/* A number as a cell of a table, with that many digits behind the point. */
void page_add_cell(struct page *page, double value, int digits);
/* Up to the first picture. */
void page_add_head(struct page *page, const char *title);

#endif

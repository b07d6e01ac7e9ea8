/* Inside of storage.c: strided views around attention layers, see view.c. */
#ifndef SOL_VIEW_H
#define SOL_VIEW_H

#include "plan/plan.h"

struct views {
    struct plan *plan;
    int n; /* tensors of the model when storage is planned; copies that are inserted later are no views */
    bool *may_be; /* by tensor id: can all readers read a view? */
};

void view_init(struct views *views, struct plan *plan);
/* Makes the output of a layer that moves values a view of its input, if it can. The input's storage is decided. */
bool view_set(const struct views *views, const struct layer *l);
/* If a single permute reads the attention layer's output, the kernel writes it in the permute's order: returns that permute, else
 * NULL. */
const struct layer *view_find_permute(const struct views *views, const struct layer *attention);
/* Places the attention layer's output in that of `permute`, whose storage is decided. */
void view_set_output(const struct views *views, const struct layer *permute);

#endif

/*
 * Module GATHER: the steps of layers that read or add rows by indices which are known at the call.
 *
 *   cluster of one gather, scatter_sum or resample -> build_gather -> step gather_run, scatter_run (run/gather.c), resample_run
 */
#include "plan/build.h"

static enum sol_status build_rows(struct build *b, const struct cluster *cluster) {
    const struct layer *l = cluster->layers.at[0];
    const struct tensor *table = l->in[0], *numbers = l->in[1];
    int axis = (int)l->attr.axis;
    const int64_t bytes = size_element(table->dtype);
    struct size stride = size_scale(b->plan->storage[table->id].stride[0], bytes),
                inner = size_scale(ir_count(table, axis + 1, table->rank), bytes);
    struct buffer_ref ptr[] = {build_ref(b, table), build_ref(b, numbers), build_ref(b, l->out[0])};
    struct size arg[GATHER_N_ARGS] = {
        [GATHER_OUTER] = ir_count(table, 0, axis),
        [GATHER_PLANES] = ir_count(table, 1, axis),
        [GATHER_STRIDE] = stride,
        [GATHER_ROWS] = table->dim[axis],
        [GATHER_ROW_STRIDE] = axis ? inner : stride,
        [GATHER_INNER] = inner,
        [GATHER_INDICES] = ir_elements(numbers),
        [GATHER_INDEX_SIZE] = size_const(size_element(numbers->dtype)),
        [GATHER_LEAST] = size_scale(table->dim[axis], l->attr.wraps ? -1 : 0)};
    return build_movement(b, cluster,
                          (struct step){.kind = &step_gather,
                                        .n_ptr = COUNT(ptr),
                                        .ptr = ptr,
                                        .n_arg = COUNT(arg),
                                        .arg = arg,
                                        .name = "gather"});
}

/* The inputs and the output have no gaps: storage.c. */
static enum sol_status build_scatter(struct build *b, const struct cluster *cluster) {
    const struct layer *l = cluster->layers.at[0];
    const struct tensor *x = l->in[0], *numbers = l->in[1];
    const int axis = (int)l->attr.axis;
    const struct size rows = l->out[0]->dim[axis];
    struct buffer_ref ptr[] = {build_ref(b, x), build_ref(b, numbers), build_ref(b, l->out[0])};
    struct size arg[SCATTER_N_ARGS] = {[SCATTER_BATCHES] = ir_count(numbers, 0, axis),
                                       [SCATTER_INDICES] = ir_count(numbers, axis, numbers->rank),
                                       [SCATTER_ROWS] = rows,
                                       [SCATTER_INNER] = ir_count(x, numbers->rank, x->rank),
                                       [SCATTER_DTYPE] = size_const(x->dtype),
                                       [SCATTER_INDEX_SIZE] =
                                           size_const(size_element(numbers->dtype)),
                                       [SCATTER_LEAST] = size_scale(rows, l->attr.wraps ? -1 : 0)};
    return build_movement(b, cluster,
                          (struct step){.kind = &step_scatter,
                                        .n_ptr = COUNT(ptr),
                                        .ptr = ptr,
                                        .n_arg = COUNT(arg),
                                        .arg = arg,
                                        .name = "scatter_sum"});
}

static struct buffer_ref tap_ref(struct build *b, const struct layer *l, int input) {
    return build_ref(b, input < l->n_in ? l->in[input] : NULL);
}

/* x as [outer][rows][columns][inner]. Of one dim that is resampled: the last dim is columns, any other one rows of dense elements. */
static enum sol_status build_resample(struct build *b, const struct cluster *cluster) {
    const struct layer *l = cluster->layers.at[0];
    const struct tensor *x = l->in[0], *y = l->out[0];
    const int axis = (int)l->attr.axis, last = x->rank - 1;
    const bool has_two = l->n_in > 3, has_rows = has_two || axis < last;
    const int columns = has_two ? 3 : has_rows ? l->n_in : 1;
    struct buffer_ref ptr[RESAMPLE_N_POINTERS] = {build_ref(b, x),
                                                  build_ref(b, y),
                                                  tap_ref(b, l, has_rows ? 1 : l->n_in),
                                                  tap_ref(b, l, has_rows ? 2 : l->n_in),
                                                  tap_ref(b, l, columns),
                                                  tap_ref(b, l, columns + 1)};
    const struct size one = size_const(1), none = size_const(0);
    struct size arg[RESAMPLE_N_ARGS] = {
        [RESAMPLE_OUTER] = ir_count(x, 0, axis),
        [RESAMPLE_PLANES] = ir_count(x, 1, axis),
        [RESAMPLE_IN_STRIDE] = b->plan->storage[x->id].stride[0],
        [RESAMPLE_OUT_STRIDE] = b->plan->storage[y->id].stride[0],
        [RESAMPLE_ROWS_IN] = has_rows ? x->dim[axis] : one,
        [RESAMPLE_ROWS] = has_rows ? y->dim[axis] : one,
        [RESAMPLE_ROW_TAPS] = has_rows ? l->in[1]->dim[0] : none,
        [RESAMPLE_COLUMNS_IN] = has_two    ? x->dim[axis + 1]
                                : has_rows ? ir_count(x, axis + 1, x->rank)
                                           : x->dim[axis],
        [RESAMPLE_COLUMNS] = has_two    ? y->dim[axis + 1]
                             : has_rows ? ir_count(x, axis + 1, x->rank)
                                        : y->dim[axis],
        [RESAMPLE_COLUMN_TAPS] = has_two    ? l->in[3]->dim[0]
                                 : has_rows ? none
                                            : l->in[1]->dim[0],
        [RESAMPLE_INNER] = has_two ? ir_count(x, axis + 2, x->rank) : one,
        [RESAMPLE_INDEX_SIZE] = size_const(size_element(l->in[1]->dtype))};
    return build_movement(b, cluster,
                          (struct step){.kind = &step_resample,
                                        .n_ptr = COUNT(ptr),
                                        .ptr = ptr,
                                        .n_arg = COUNT(arg),
                                        .arg = arg,
                                        .name = "resample"});
}

enum sol_status build_gather(struct build *b, const struct cluster *cluster) {
    switch (cluster->layers.at[0]->kind) {
    case LAYER_resample: return build_resample(b, cluster);
    case LAYER_scatter_sum: return build_scatter(b, cluster);
    default: return build_rows(b, cluster);
    }
}

/* Adding layers to a model. */
#include "ir/make.h"

#include <float.h>

struct tensor *make_layer(struct model *m, enum layer_kind kind, int n_in, struct tensor *const *in,
                          const struct attr *attr, const char *origin) {
    struct tensor *out;
    for (int i = 0; i < n_in; i++)
        if (!in[i]) return NULL;
    return ir_add(m, kind, n_in, in, attr, origin, &out) ? NULL : out;
}

struct tensor *make_scalar(struct model *m, enum sol_dtype dtype, double value) {
    struct attr attr = ir_default_attr();
    attr.value = value;
    attr.dtype = dtype;
    return make_layer(m, LAYER_scalar, 0, NULL, &attr, NULL);
}

struct tensor *make_unary(struct model *m, enum layer_kind kind, struct tensor *x,
                          const char *origin) {
    return make_layer(m, kind, 1, &x, NULL, origin);
}

struct tensor *make_binary(struct model *m, enum layer_kind kind, struct tensor *a,
                           struct tensor *b, const char *origin) {
    return make_layer(m, kind, 2, (struct tensor *[]){a, b}, NULL, origin);
}

struct tensor *make_with(struct model *m, enum layer_kind kind, struct tensor *x, double value,
                         const char *origin) {
    return x ? make_binary(m, kind, x, make_scalar(m, x->dtype, value), origin) : NULL;
}

struct tensor *make_reduce(struct model *m, enum layer_kind kind, struct tensor *x, int n,
                           const int64_t *axes, bool keepdim, const char *origin) {
    struct attr attr = ir_default_attr();
    attr.n_axes = n;
    for (int i = 0; i < n; i++) attr.axes[i] = axes[i];
    attr.keepdim = keepdim;
    return make_layer(m, kind, 1, &x, &attr, origin);
}

struct tensor *make_reshape(struct model *m, struct tensor *x, int rank, const struct size *dim) {
    struct attr attr = ir_default_attr();
    attr.n_shape = rank;
    for (int i = 0; i < rank; i++) attr.shape[i] = dim[i];
    return make_layer(m, LAYER_reshape, 1, &x, &attr, NULL);
}

struct tensor *make_permute(struct model *m, struct tensor *x, int n, const int64_t *axes,
                            const char *origin) {
    struct attr attr = ir_default_attr();
    attr.n_axes = n;
    for (int i = 0; i < n; i++) attr.axes[i] = axes[i];
    return make_layer(m, LAYER_permute, 1, &x, &attr, origin);
}

struct tensor *make_transpose(struct model *m, struct tensor *x, const char *origin) {
    int64_t axes[SOL_MAX_RANK];
    if (!x) return NULL;
    for (int d = 0; d < x->rank; d++) axes[d] = d;
    axes[x->rank - 1] = x->rank - 2;
    axes[x->rank - 2] = x->rank - 1;
    return make_permute(m, x, x->rank, axes, origin);
}

struct tensor *make_slice(struct model *m, struct tensor *x, int axis, int64_t start, int64_t step,
                          struct size n, const char *origin) {
    struct attr attr = ir_default_attr();
    if (!x || (start == 0 && step == 1 && size_equal(x->dim[axis], n))) return x;
    attr.axis = axis;
    attr.start = size_const(start);
    attr.step = step;
    attr.n_shape = 1;
    attr.shape[0] = n;
    return make_layer(m, LAYER_slice, 1, &x, &attr, origin);
}

struct tensor *make_expand(struct model *m, struct tensor *x, int rank, const struct size *dim,
                           const char *origin) {
    struct attr attr = ir_default_attr();
    bool same = x && x->rank == rank;
    attr.n_shape = rank;
    for (int i = 0; i < rank; i++) {
        attr.shape[i] = dim[i];
        same = same && size_equal(x->dim[i], dim[i]);
    }
    return same ? x : make_layer(m, LAYER_expand, 1, &x, &attr, origin);
}

struct tensor *make_repeat(struct model *m, struct tensor *x, int64_t n, const char *origin) {
    struct attr attr = ir_default_attr();
    struct size k = x->dim[0], all = size_scale(k, n);
    attr.n_shape = 2;
    attr.shape[0] = k;
    attr.shape[1] = size_const(n);
    x = make_reshape(m, x, 2, (struct size[]){k, size_const(1)});
    x = make_layer(m, LAYER_expand, 1, &x, &attr, origin);
    return x ? make_reshape(m, x, 1, &all) : NULL;
}

struct tensor *make_positions(struct model *m, enum sol_dtype dtype, int rank, int64_t axis,
                              struct size n) {
    struct attr attr = ir_default_attr();
    struct size dim[SOL_MAX_RANK];
    for (int d = 0; d < rank; d++) dim[d] = size_const(1);
    dim[axis] = attr.shape[0] = n;
    attr.n_shape = 1;
    attr.dtype = dtype;
    struct tensor *at = make_layer(m, LAYER_arange, 0, NULL, &attr, NULL);
    return at && rank > 1 ? make_reshape(m, at, rank, dim) : at;
}

/* f16 and bf16 are computed as f32 (pass/widen.c). */
double make_largest(const struct tensor *x) {
    return x->dtype == SOL_F64 ? DBL_MAX : (double)FLT_MAX;
}

struct tensor *make_cast(struct model *m, struct tensor *x, enum sol_dtype dtype) {
    struct attr attr = ir_default_attr();
    attr.dtype = dtype;
    if (x && x->dtype == dtype) return x;
    return make_layer(m, LAYER_cast, 1, &x, &attr, NULL);
}

/* Functions that several implementations use; dnn.h describes them. */
#include "dnn/dnn.h"

const struct dnn_isa *dnn_find_isa(const struct dnn_kernels *kernels) {
    const struct dnn_isa *isa = dnn_isas;
    while (isa->name && isa->kernels != kernels) isa++;
    return isa;
}

double dnn_flops_per_s(const struct dnn_kernels *kernels) {
    const double clock_hz = 3e9;
    return dnn_find_isa(kernels)->flops_per_cycle * clock_hz;
}

bool dnn_without_dot;

void dnn_call_epilogue(const struct dnn_call *call, int64_t n, int64_t k_block, int64_t pixel,
                       int64_t n_rows, int64_t n_columns, int64_t width) {
    if (!call->epilogue) return;
    if (n_columns == width) n_columns *= n_rows, n_rows = 1;
    for (int64_t i = 0; i < n_rows; i++)
        call->epilogue(call->epilogue_user, n, k_block, pixel + i * width, (int)n_columns);
}

const char *dnn_refuse(const struct dnn_impl *impl, const struct dnn_problem *problem) {
    if (!impl->any_type &&
        (problem->x_type != SOL_F32 || problem->w_type != SOL_F32 || problem->y_type != SOL_F32))
        return "an element type that is not f32";
    if (problem->kd && !impl->volumes) return "volumes";
    return impl->refuse(problem);
}

bool dnn_keeps_groups(const int *map, int stored, int model, int groups) {
    const int stored_group = stored / groups, model_group = model / groups;
    if (model % groups) return false;
    if (!map) return stored == model;
    for (int i = 0; i < stored; i++)
        if (map[i] >= 0 && map[i] / model_group != i / stored_group) return false;
    return true;
}

const char *dnn_refuse_linear(const struct dnn_problem *problem) {
    if (problem->kind != DNN_LINEAR) return "not a linear layer";
    if (problem->groups != 1) return "more than one group";
    if (!problem->x_plain || !problem->y_plain) return "x or y is not plain";
    if (problem->residual && !problem->residual_plain) return "residual is not plain";
    if (problem->prologue) return "has a prologue";
    if (problem->c_map || problem->k_map)
        return "channels are rearranged, the weight is used in place";
    return NULL;
}

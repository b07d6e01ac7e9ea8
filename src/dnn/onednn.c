/*
 * Convolutions and linear layers by oneDNN, if it is installed.
 *
 *   problem -> chunks of output channels -> a key per chunk (equal, except perhaps the last) -> onednn_table.c
 *
 * A task is one chunk of output channels, of one sample (conv) or of all rows (linear). A conv runs the library on one sample
 * at a time; a linear on tiles of a fixed number of rows, the last one padded. Chunks and tiles depend on the problem alone,
 * so results depend neither on the number of threads nor on the batch. Chunks slow the library's kernels by 0-5% (measured,
 * oneDNN 3.2, Zen 5).
 *
 * SOL adds residual and activation itself, in a second pass (finish_kernel.c has the reason).
 */
#include "dnn/onednn.h"
#include "dnn/list.h"
#include "run/program.h"

#include <math.h>
#include <string.h>

/*
 * Cost model for cores of 3 GHz, as direct.c's. The library's kernels are about as fast as direct's (measured on ResNet's
 * shapes). The estimate is a little higher than direct's: a near tie, so that autotuning times both.
 */
static const double efficiency = 0.8, depthwise_efficiency = 0.5;
static const double core_bytes_per_s = 40e9, memory_bytes_per_s = 55e9;
static const double task_s = 1e-6;

/* Least work of a chunk, to be worth a task of its own: flops for a conv, bytes of weights for a linear. */
static const double chunk_flops = 1e6;
static const double chunk_bytes = 256 << 10;
static const int64_t max_chunks = 8;
static const int64_t max_rows = 32; /* of a linear layer's tile */
static const int64_t columns = 64;  /* the library packs matrices in strips of 64 columns */

/* Indices into dnn_plan.param. */
enum {
    CHUNK_K, /* output channels of a chunk; the last chunk may have fewer */
    N_CHUNKS,
    ROWS, /* rows of a linear layer's tile; conv: 1 */
    FULL_SIZE /* bytes of a full chunk's weights */,
    SCRATCH_X,
    SCRATCH_Y
};

/* ---- Refusal ---- */

/* Number of groups of the stored channels; padding may add groups to those of the model. 0: x and y do not divide into the
 * same number of groups of the model's sizes. */
static int count_groups(const struct dnn_problem *p) {
    if (p->groups == 1) return 1;
    const int c = p->c_model / p->groups, k = p->k_model / p->groups;
    if (p->c_model % p->groups || p->k_model % p->groups || p->c % c || p->k % k) return 0;
    return p->c / c == p->k / k ? p->c / c : 0;
}

/* True if the n stored channels from `first` on are group `group` of the model, in order; group < 0: all padding. */
static bool is_whole(const int *map, int first, int n, int group) {
    for (int i = 0; i < n; i++)
        if (dnn_model_channel(map, first + i) != (group < 0 ? -1 : group * n + i)) return false;
    return true;
}

static bool keeps_groups(const struct dnn_problem *p) {
    const int n = count_groups(p);
    if (n == 0) return false;
    const int c = p->c / n, k = p->k / n;
    for (int g = 0; g < n && p->groups > 1; g++) {
        const int first = dnn_model_channel(p->c_map, g * c), group = first < 0 ? -1 : first / c;
        if (!is_whole(p->c_map, g * c, c, group) || !is_whole(p->k_map, g * k, k, group))
            return false;
    }
    return true;
}

static const char *refuse_conv(const struct dnn_problem *p) {
    if (p->transposed || p->turned) return "transposed";
    if (p->y_plain) return "y is not blocked";
    if (p->lanes != 16 && p->lanes != 8) return "no blocks of 16 or 8 channels";
    if (p->open) return "sizes of images are open";
    if (p->h < 1 || p->w < 1 || p->oh < 1 || p->ow < 1) return "empty image";
    if (!p->x_plain && p->c % p->lanes) return "channels do not fill blocks";
    if (p->k % p->lanes) return "channels do not fill blocks";
    if (p->residual && p->residual_plain) return "residual is not blocked";
    if (p->prologue) return "has a prologue";
    return keeps_groups(p) ? NULL : "stored channels mix groups";
}

/* ---- Chunks ---- */

/* Chunks are multiples of this number of channels of y: full blocks of y and, with groups, full groups whose channels of x
 * are full blocks. */
static int64_t find_unit(const struct dnn_problem *p) {
    if (p->kind == DNN_LINEAR) return columns;
    if (p->groups == 1) return p->lanes;
    const int groups = count_groups(p), c = p->c / groups, k = p->k / groups;
    int n = 1;
    while ((!p->x_plain && n * c % p->lanes) || n * k % p->lanes) n++;
    return (int64_t)n * k;
}

/* Of one sample of a conv (rows == 1), or of `rows` rows of a linear. */
static double count_flops(const struct dnn_problem *p, int64_t rows) {
    const int per_group = p->groups == 1 ? p->c : p->c_model / p->groups;
    return 2.0 * (double)rows * p->k * p->oh * p->ow * per_group * p->kh * p->kw;
}

/* Least channels of y per chunk. Every chunk reads all of x, so 1x1 convolutions, which use a value of x in few products, are
 * 20% slower in chunks of 16 than of 32. */
static int64_t min_channels(const struct dnn_problem *p) {
    return p->groups == 1 && p->kh * p->kw == 1 ? 32 : 16;
}

static void set_chunks(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const bool linear = p->kind == DNN_LINEAR;
    plan->param[ROWS] = linear ? min_i64(max_i64(1, p->batch_hint), max_rows) : 1;
    const double parts = linear ? 4.0 * p->c * p->k / chunk_bytes : count_flops(p, 1) / chunk_flops;
    const int64_t max = linear ? 8 * max_chunks : min_i64(max_chunks, p->k / min_channels(p));
    const int64_t n = max_i64(1, parts < (double)max ? (int64_t)parts : max);
    plan->param[CHUNK_K] = min_i64(p->k, round_up(ceil_div(p->k, n), find_unit(p)));
    plan->param[N_CHUNKS] = ceil_div(p->k, plan->param[CHUNK_K]);
}

static int64_t chunk_channels(const struct dnn_plan *plan, int64_t chunk) {
    return min_i64(plan->param[CHUNK_K], plan->problem.k - chunk * plan->param[CHUNK_K]);
}

static struct onednn_key make_key(const struct dnn_plan *plan, int64_t chunk) {
    const struct dnn_problem *p = &plan->problem;
    const int k = (int)chunk_channels(plan, chunk), groups = count_groups(p);
    struct onednn_key key = {
        .kind = (int)p->kind, .rows = (int)plan->param[ROWS], .c = p->c, .k = k, .bias = p->bias};
    if (p->kind == DNN_LINEAR) return key;
    key.lanes = p->lanes, key.groups = groups == 1 ? 1 : k / (p->k / groups);
    key.c = p->c / groups * key.groups;
    key.h = p->h, key.w = p->w, key.oh = p->oh, key.ow = p->ow, key.kh = p->kh, key.kw = p->kw;
    key.sh = p->sh, key.sw = p->sw, key.pt = p->pt, key.pl = p->pl, key.dh = p->dh, key.dw = p->dw;
    key.x_plain = p->x_plain, key.y_plain = p->y_plain;
    return key;
}

/* Fills in the plan except its cost. Returns NULL, or the reason why the library refuses the first or the last chunk. */
static const char *divide(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    struct onednn_facts full, last;
    set_chunks(plan);
    const int64_t n = plan->param[N_CHUNKS], rows = plan->param[ROWS];
    const struct onednn_key full_key = make_key(plan, 0), last_key = make_key(plan, n - 1);
    int before = vendor_enter(&onednn.vendor);
    const char *reason = onednn_check(&full_key, &full);
    if (!reason) reason = onednn_check(&last_key, &last);
    vendor_leave(&onednn.vendor, before);
    if (reason) return reason;
    const bool tiled = p->kind == DNN_LINEAR && rows > 1;
    const size_t inside =
        full.scratch_size > last.scratch_size ? full.scratch_size : last.scratch_size;
    plan->param[FULL_SIZE] = round_up((int64_t)full.packed_size, 64);
    plan->param[SCRATCH_X] = tiled * round_up(rows * p->c * 4, 64);
    plan->param[SCRATCH_Y] = tiled * round_up(rows * plan->param[CHUNK_K] * 4, 64);
    plan->packed_size =
        (size_t)((n - 1) * plan->param[FULL_SIZE] + round_up((int64_t)last.packed_size, 64));
    plan->scratch_size =
        (size_t)round_up(plan->param[SCRATCH_X] + plan->param[SCRATCH_Y] + (int64_t)inside, 64);
    plan->n_pack_tasks = n;
    return NULL;
}

static const char *refuse(const struct dnn_problem *problem) {
    struct dnn_plan plan = {.problem = *problem};
    const char *reason =
        problem->kind == DNN_CONV ? refuse_conv(problem) : dnn_refuse_linear(problem);
    if (reason) return reason;
    return onednn_open() ? divide(&plan) : onednn.vendor.detail;
}

/* ---- Plan ---- */

static double estimate(const struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t batch = max_i64(1, p->batch_hint), threads = p->threads;
    const int64_t tiles = ceil_div(batch, plan->param[ROWS]);
    const bool depthwise = p->groups > 1 && p->c_model == p->groups;
    const double rate =
        (depthwise ? depthwise_efficiency : efficiency) * dnn_flops_per_s(plan->kernels);
    const double compute = (double)tiles * count_flops(p, plan->param[ROWS]) / rate;
    const double images =
        (double)p->c * p->h * p->w + (double)p->k * p->oh * p->ow * (p->residual || p->act ? 3 : 1);
    const double moved = 4 * (double)batch * images / core_bytes_per_s;
    const double weights =
        (double)plan->packed_size / fmin((double)threads * core_bytes_per_s, memory_bytes_per_s);
    const int64_t n = plan->param[N_CHUNKS] * (p->kind == DNN_CONV ? batch : 1);
    const double uneven = (double)ceil_div(n, threads) / (double)n;
    return weights + uneven * (fmax(compute, moved) + (double)n * task_s);
}

/* divide may fail here though it succeeded in refuse (no memory). Then the cost is infinite and packed_size is 0; to run such
 * a plan is an error (run_range). */
static void make_plan(struct dnn_plan *plan) {
    plan->cost = divide(plan) ? INFINITY : estimate(plan);
}

/* ---- Packing ---- */

/* Copies the weights of stored output channel `stored` as [c][kh][kw], with zeros for padding channels of x and y. */
static void gather_channel(const struct dnn_problem *p, const float *weight, int stored,
                           float *to) {
    const int k = dnn_model_channel(p->k_map, stored), in_group = p->c_model / p->groups;
    const int c = p->groups == 1 ? p->c : in_group, taps = p->kh * p->kw;
    for (int i = 0; i < c; i++, to += taps) {
        const int channel = p->groups == 1 ? dnn_model_channel(p->c_map, i) : i;
        for (int t = 0; t < taps; t++)
            to[t] = k < 0 || channel < 0 ? 0 : weight[((int64_t)k * in_group + channel) * taps + t];
    }
}

static enum sol_status pack_gathered(const struct dnn_plan *plan, const struct onednn_key *key,
                                     const float *weight, int64_t first, float *packed) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t size = (int64_t)(p->groups == 1 ? p->c : p->c_model / p->groups) * p->kh * p->kw;
    float *dense = mem_alloc((size_t)(key->k * size) * sizeof(float), 64);
    if (!dense) return fail(SOL_ENOMEM, "no memory to pack weights for oneDNN");
    for (int k = 0; k < key->k; k++) gather_channel(p, weight, (int)first + k, dense + k * size);
    enum sol_status status = onednn_pack(key, dense, packed);
    mem_free(dense);
    return status;
}

static enum sol_status pack_chunk(const struct dnn_plan *plan, const float *weight, float *packed,
                                  int64_t chunk) {
    const struct dnn_problem *p = &plan->problem;
    const struct onednn_key key = make_key(plan, chunk);
    const int64_t first = chunk * plan->param[CHUNK_K];
    float *to = packed + chunk * plan->param[FULL_SIZE] / 4;
    if (p->c_map || p->k_map) return pack_gathered(plan, &key, weight, first, to);
    return onednn_pack(&key, weight + first * (p->c / p->groups) * p->kh * p->kw, to);
}

static void pack(const struct dnn_plan *plan, const float *weight, float *packed, int64_t chunk) {
    int before = vendor_enter(&onednn.vendor);
    enum sol_status status = pack_chunk(plan, weight, packed, chunk);
    vendor_leave(&onednn.vendor, before);
    if (status) exec_fail(status);
}

/* ---- Run ---- */

/* Task: (sample, chunk), the chunk fastest; linear: a chunk. */
static int64_t n_tasks(const struct dnn_plan *plan, int64_t batch) {
    if (plan->problem.kind == DNN_LINEAR) return batch ? plan->param[N_CHUNKS] : 0;
    return batch * plan->param[N_CHUNKS];
}

static void finish(const struct dnn_plan *plan, const float *sum, const float *residual, float *y,
                   int64_t n) {
    const struct dnn_problem *p = &plan->problem;
    if (sum != y || residual || p->act != DNN_ACT_NONE)
        plan->kernels->finish(p, sum, NULL, residual, y, n);
}

static struct onednn_tensors make_tensors(const struct dnn_plan *plan, const struct dnn_call *call,
                                          char *scratch, int64_t chunk) {
    const int64_t first = chunk * plan->param[CHUNK_K];
    return (struct onednn_tensors){.packed = call->packed + chunk * plan->param[FULL_SIZE] / 4,
                                   .bias = call->bias ? call->bias + first : NULL,
                                   .scratch =
                                       scratch + plan->param[SCRATCH_X] + plan->param[SCRATCH_Y]};
}

/* Computes one chunk of one sample (`image`). Its channel blocks are contiguous in the sample. */
static enum sol_status run_image(const struct dnn_plan *plan, const struct dnn_call *call,
                                 struct onednn_use *use, char *scratch, int64_t image,
                                 int64_t chunk) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t pixels = (int64_t)p->oh * p->ow, first = chunk * plan->param[CHUNK_K];
    const int64_t first_c =
        p->groups == 1 ? 0 : first / (p->k_model / p->groups) * (p->c_model / p->groups);
    struct onednn_tensors tensors = make_tensors(plan, call, scratch, chunk);
    tensors.x = call->x + image * call->x_stride + first_c * p->h * p->w;
    tensors.y = call->y + image * call->y_stride + first * pixels;
    TRY(onednn_execute(use, &tensors));
    const float *residual =
        p->residual ? call->residual + image * call->residual_stride + first * pixels : NULL;
    finish(plan, tensors.y, residual, tensors.y, chunk_channels(plan, chunk) * pixels);
    for (int64_t k = first; k < first + chunk_channels(plan, chunk); k += p->lanes)
        dnn_call_epilogue(call, image, k / p->lanes, 0, p->oh, p->ow, p->ow);
    return SOL_OK;
}

/* The rows of x for one tile: in place if the tile is full, else a copy padded with rows of zeros. */
static const float *take_rows(const struct dnn_plan *plan, const struct dnn_call *call,
                              char *scratch, int64_t row, int64_t n) {
    const int64_t c = plan->problem.c, rows = plan->param[ROWS];
    const float *x = call->x + row * c;
    if (n == rows) return x;
    float *copy = (float *)(void *)scratch;
    memcpy(copy, x, (size_t)(n * c) * sizeof(float));
    memset(copy + n * c, 0, (size_t)((rows - n) * c) * sizeof(float));
    return copy;
}

/* Computes one chunk of all rows of a linear, tile by tile. The library writes dense tiles [row][k], but in y the rows of a
 * chunk are p->k apart; so tiles of more than one row go through scratch. */
static enum sol_status run_rows(const struct dnn_plan *plan, const struct dnn_call *call,
                                struct onednn_use *use, char *scratch, int64_t chunk) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t first = chunk * plan->param[CHUNK_K], k = chunk_channels(plan, chunk);
    struct onednn_tensors tensors = make_tensors(plan, call, scratch, chunk);
    for (int64_t row = 0; row < call->batch; row += plan->param[ROWS]) {
        const int64_t n = min_i64(plan->param[ROWS], call->batch - row);
        float *y = call->y + row * p->k + first;
        tensors.x = take_rows(plan, call, scratch, row, n);
        tensors.y =
            plan->param[SCRATCH_Y] ? (float *)(void *)(scratch + plan->param[SCRATCH_X]) : y;
        TRY(onednn_execute(use, &tensors));
        for (int64_t i = 0; i < n; i++) {
            const float *residual = p->residual ? call->residual + (row + i) * p->k + first : NULL;
            finish(plan, tensors.y + i * k, residual, y + i * p->k, k);
            if (call->epilogue) call->epilogue(call->epilogue_user, row + i, 0, first, (int)k);
        }
    }
    return SOL_OK;
}

/* uses[0] is the primitive of full chunks, uses[1] that of the last chunk. Each is taken at most once per range of tasks; the
 * caller gives them back. */
static enum sol_status run_range(const struct dnn_plan *plan, const struct dnn_call *call,
                                 char *scratch, int64_t begin, int64_t end,
                                 struct onednn_use *uses[2]) {
    const int64_t n = plan->param[N_CHUNKS];
    if (!plan->packed_size) return fail(SOL_EDEVICE, "oneDNN could not plan this layer");
    for (int64_t task = begin; task < end; task++) {
        const int64_t chunk = task % n;
        struct onednn_use **use = &uses[chunk == n - 1];
        const struct onednn_key key = make_key(plan, chunk);
        if (!*use) TRY(onednn_take(&key, use));
        if (plan->problem.kind == DNN_LINEAR) TRY(run_rows(plan, call, *use, scratch, chunk));
        else TRY(run_image(plan, call, *use, scratch, task / n, chunk));
    }
    return SOL_OK;
}

static void run(const struct dnn_plan *plan, const struct dnn_call *call, void *scratch,
                int64_t begin, int64_t end) {
    struct onednn_use *uses[2] = {NULL, NULL};
    int before = vendor_enter(&onednn.vendor);
    enum sol_status status = run_range(plan, call, scratch, begin, end, uses);
    onednn_give_back(uses[0]);
    onednn_give_back(uses[1]);
    vendor_leave(&onednn.vendor, before);
    if (status) exec_fail(status);
}

static const char *probe(bool *available) {
    *available = onednn_open();
    return onednn.vendor.detail;
}

const struct dnn_impl dnn_onednn = {.name = "onednn",
                                    .refuse = refuse,
                                    .plan = make_plan,
                                    .pack = pack,
                                    .n_tasks = n_tasks,
                                    .run = run,
                                    .probe = probe};

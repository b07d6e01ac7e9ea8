/*
 * The functions of the steps of gradients of recurrent layers: the walk back through time, and packing.
 *
 *   run/exec.c -> step_recurrent_grad -> dnn_recurrent_walk (recurrent_walk.c) -> run_task -> kernels->recurrent_grad
 *
 * The walk has one step more than the layer: after the first step of time, the gradient of the state before it. A sample takes part from its
 * last step on; if its last step is computed last (reverse), it ends early, and waits for the others.
 *
 * Invariants: steps beyond a sample's length have the gradient 0. The order of a sum does not depend on the division into tasks.
 */
#include "dnn/recurrent_grad.h"

#include "dnn/list.h"
#include "dnn/recurrent_rows.h"
#include "dnn/recurrent_walk.h"

#include <math.h>
#include <string.h>

/* ---- Plain loops ---- */

#define RECURRENT_LOOPS "dnn/recurrent_grad_plain.h"
#include "dnn/recurrent_reals.h"

static void run_plain(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                      int64_t begin, int64_t end) {
    (void)scratch;
    const int64_t bad = (arg[RECURRENT_IS_DOUBLE] ? plain_f64 : plain_f32)(ptr, arg, begin, end);
    if (bad) dnn_recurrent_fail(step, arg, ptr[RECURRENT_GRAD_LENGTHS], bad - 1);
}

const struct step_kind step_recurrent_grad_plain = {
    .name = "recurrent_grad_plain", .run = run_plain, .n_tasks = dnn_recurrent_n_samples};

/* ---- Packing ---- */

static void pack_tile(const int64_t *arg, const float *weight, float *packed, int64_t tile) {
    const int64_t units = arg[RECURRENT_UNITS], width = arg[RECURRENT_TILE];
    const int64_t inner = units * dnn_recurrent_gates(arg[RECURRENT_KIND]), unit = tile * width;
    const int64_t n = min_i64(width, units - unit);
    packed += tile * inner * width;
    for (int64_t k = 0; k < inner; k++, packed += width) {
        memcpy(packed, weight + k * units + unit, (size_t)n * sizeof(float));
        memset(packed + n, 0, (size_t)(width - n) * sizeof(float));
    }
}

static void pack_tiles(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                       int64_t begin, int64_t end) {
    (void)step, (void)scratch;
    for (int64_t tile = begin; tile < end; tile++) pack_tile(arg, ptr[0], ptr[1], tile);
}

const struct step_kind step_recurrent_grad_pack = {
    .name = "recurrent_grad_pack", .run = pack_tiles, .n_tasks = dnn_recurrent_n_pack_tasks};

/* ---- All steps of time ---- */

/* Samples of a task. The weight of a tile stays in L2 while they are computed. */
#define ROWS 24
struct recurrent {
    const struct dnn_kernels *kernels;
    const int64_t *arg;
    const float *weight, *cell; /* the first cells of an lstm */
    const int64_t *length;      /* NULL: all samples have all steps */
    struct dnn_rows gates, dy, out;
    struct dnn_rows states;   /* before the steps of a gru */
    int64_t inner, tile_size; /* values of g; floats of a packed tile */
    int64_t n_tiles, n_parts; /* of the samples */
};

static int64_t length_of(const struct recurrent *r, int64_t n) {
    return r->length ? r->length[n] : r->arg[RECURRENT_STEPS];
}

/* The step of time of a sample that is computed as number `i`. */
static int64_t time_of(const struct recurrent *r, int64_t n, int64_t i) {
    return r->arg[RECURRENT_REVERSE] ? length_of(r, n) - 1 - i : i;
}

/* The cell before a step: the last column of the gates of the step that was computed before. */
static const float *cell_before(const struct recurrent *r, int64_t time, int64_t n) {
    const int64_t units = r->arg[RECURRENT_UNITS];
    if (time == time_of(r, n, 0)) return r->cell + n * units;
    return dnn_row_at(&r->gates, r->arg[RECURRENT_REVERSE] ? time + 1 : time - 1, n) + 4 * units;
}

/* `behind`: the step of time whose g is multiplied by the weight; -1: none, the last state's gradient is dh. */
static struct recurrent_grad_row row_of(const struct recurrent *r, int64_t behind, int64_t n) {
    const int64_t steps = r->arg[RECURRENT_STEPS], units = r->arg[RECURRENT_UNITS];
    float *last = dnn_row_at(&r->out, steps, n), *carry = last + units;
    const float *more = r->arg[RECURRENT_KIND] == RECURRENT_GRU ? carry : NULL;
    return (struct recurrent_grad_row){
        .after = behind < 0 ? NULL : dnn_row_at(&r->out, behind, n),
        .more = behind < 0 ? dnn_row_at(&r->dy, steps, n) : more,
        .carry = carry,
        .out = last,
    };
}

/* The row of a step of time. */
static struct recurrent_grad_row step_row(const struct recurrent *r, int64_t time, int64_t n) {
    const bool back = r->arg[RECURRENT_REVERSE];
    const int64_t last = time_of(r, n, length_of(r, n) - 1);
    struct recurrent_grad_row row = row_of(r, time == last ? -1 : back ? time - 1 : time + 1, n);
    row.dy = dnn_row_at(&r->dy, time, n);
    row.gates = dnn_row_at(&r->gates, time, n);
    row.out = dnn_row_at(&r->out, time, n);
    if (r->cell) row.before = cell_before(r, time, n);
    if (r->states.at) row.before = dnn_row_at(&r->states, time, n);
    return row;
}

/* Task: tile task / n_parts, for part task % n_parts of the samples, first those without a product. Samples beyond their length get zeros. */
static void run_task(void *user, int64_t step, int64_t task) {
    const struct recurrent *r = user;
    const int64_t steps = r->arg[RECURRENT_STEPS], units = r->arg[RECURRENT_UNITS];
    const bool is_first = step == steps; /* the first states */
    const int64_t time = r->arg[RECURRENT_REVERSE] ? step : steps - 1 - step;
    const int64_t tile = task / r->n_parts, from = task % r->n_parts * ROWS;
    const int64_t unit = tile * r->arg[RECURRENT_TILE];
    const int64_t to = min_i64(from + ROWS, r->arg[RECURRENT_SAMPLES]);
    const int64_t kind = is_first ? RECURRENT_FIRST : r->arg[RECURRENT_KIND];
    const float *weight = r->weight + tile * r->tile_size;
    struct recurrent_grad_row alone[ROWS], row[ROWS];
    int n_alone = 0, n = 0;
    for (int64_t i = from; i < to; i++) {
        if (!is_first && time >= length_of(r, i)) {
            dnn_clear_row(&r->out, time, i, unit, min_i64(r->arg[RECURRENT_TILE], units - unit));
            continue;
        }
        const int64_t first = length_of(r, i) ? time_of(r, i, 0) : -1;
        const struct recurrent_grad_row next =
            is_first ? row_of(r, first, i) : step_row(r, time, i);
        if (next.after) row[n++] = next;
        else alone[n_alone++] = next;
    }
    r->kernels->recurrent_grad(kind, units, unit, 0, weight, n_alone, alone);
    r->kernels->recurrent_grad(kind, units, unit, r->inner, weight, n, row);
}

/* ---- The step ---- */

static void init_recurrent(const struct step *step, void *const *ptr, const int64_t *arg,
                           struct recurrent *r) {
    const int64_t kind = arg[RECURRENT_KIND], units = arg[RECURRENT_UNITS];
    const bool is_lstm = kind == RECURRENT_LSTM;
    const int64_t inner = units * dnn_recurrent_gates(kind);
    *r = (struct recurrent){
        .kernels = step->data,
        .arg = arg,
        .weight = ptr[RECURRENT_GRAD_WEIGHT],
        .length = ptr[RECURRENT_GRAD_LENGTHS],
        .gates = dnn_make_rows(arg, ptr[RECURRENT_GRAD_GATES], dnn_recurrent_kept(kind), 0),
        .dy = dnn_make_rows(arg, ptr[RECURRENT_GRAD_DY], 1, 1 + is_lstm),
        .out = dnn_make_rows(arg, ptr[RECURRENT_GRAD_OUT], dnn_recurrent_columns(kind), 1),
        .inner = inner,
        .tile_size = arg[RECURRENT_TILE] * inner,
        .n_tiles = ceil_div(units, arg[RECURRENT_TILE]),
        .n_parts = ceil_div(arg[RECURRENT_SAMPLES], ROWS)};
    if (is_lstm) r->cell = ptr[RECURRENT_GRAD_MORE];
    if (kind == RECURRENT_GRU) r->states = dnn_make_rows(arg, ptr[RECURRENT_GRAD_MORE], 1, 0);
}

/* Of an lstm, copies the gradients of the last cells to where the walk changes them. Returns the number of a sample with a wrong length; -1:
 * there is none. */
static int64_t begin_run(const struct recurrent *r) {
    const int64_t steps = r->arg[RECURRENT_STEPS], units = r->arg[RECURRENT_UNITS];
    for (int64_t i = 0; i < r->arg[RECURRENT_SAMPLES]; i++) {
        if (length_of(r, i) < 0 || length_of(r, i) > steps) return i;
        if (r->arg[RECURRENT_KIND] == RECURRENT_LSTM)
            memcpy(dnn_row_at(&r->out, steps, i) + units, dnn_row_at(&r->dy, steps + 1, i),
                   (size_t)units * sizeof(float));
    }
    return -1;
}

/* The columns behind the gradients of the first state and cell are zero. */
static void end_run(const struct recurrent *r) {
    const int64_t steps = r->arg[RECURRENT_STEPS], units = r->arg[RECURRENT_UNITS];
    const int64_t used = r->arg[RECURRENT_KIND] == RECURRENT_LSTM ? 2 : 1;
    const int64_t rest = dnn_recurrent_columns(r->arg[RECURRENT_KIND]) - used;
    for (int64_t i = 0; i < r->arg[RECURRENT_SAMPLES]; i++)
        memset(dnn_row_at(&r->out, steps, i) + used * units, 0,
               (size_t)(rest * units) * sizeof(float));
}

static void run_steps(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                      int64_t begin, int64_t end) {
    (void)scratch, (void)begin, (void)end;
    const int64_t steps = arg[RECURRENT_STEPS], samples = arg[RECURRENT_SAMPLES];
    struct recurrent r;
    init_recurrent(step, ptr, arg, &r);
    const int64_t bad = begin_run(&r);
    if (bad >= 0) {
        dnn_recurrent_fail(step, arg, r.length, bad);
        return;
    }
    dnn_recurrent_walk(steps + 1, r.n_tiles * r.n_parts, samples * arg[RECURRENT_UNITS] * r.inner,
                       run_task, &r);
    end_run(&r);
}

const struct step_kind step_recurrent_grad = {.name = "recurrent_grad",
                                              .run = run_steps,
                                              .n_tasks = dnn_recurrent_one_task,
                                              .on_caller = true};

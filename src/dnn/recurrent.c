/*
 * The functions of the steps of recurrent layers: the loop over steps of time, and packing.
 *
 *   run/exec.c -> step_recurrent -> dnn_recurrent_walk (recurrent_walk.c) -> run_task -> kernels->recurrent
 *
 * The state before a step of time is the state of the step before in y itself, so there is no other copy of it. The cell of an
 * lstm lies in the last rows of y, where the caller expects the last one.
 *
 * Invariants: a sample beyond its length is not computed, its states are zero. The order of a sum does not depend on the division
 * into tasks. This file is part of deployed libraries.
 */
#include "dnn/recurrent.h"

#include "dnn/list.h"
#include "dnn/recurrent_rows.h"
#include "dnn/recurrent_walk.h"

#include <math.h>
#include <string.h>

/* ---- Plain loops ---- */

#define RECURRENT_LOOPS "dnn/recurrent_plain.h"
#include "dnn/recurrent_reals.h"

void dnn_recurrent_fail(const struct step *step, const int64_t *arg, const int64_t *length,
                        int64_t n) {
    exec_fail(fail(SOL_EINDEX, "%s: " RECURRENT_LENGTH_MESSAGE, step->name, (long long)n,
                   (long long)length[n], (long long)arg[RECURRENT_STEPS]));
}

static void run_plain(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                      int64_t begin, int64_t end) {
    (void)scratch;
    int64_t bad = (arg[RECURRENT_IS_DOUBLE] ? plain_f64 : plain_f32)(ptr, arg, begin, end);
    if (bad) dnn_recurrent_fail(step, arg, ptr[RECURRENT_LENGTHS], bad - 1);
}

int64_t dnn_recurrent_n_samples(const struct step *step, const int64_t *arg) {
    (void)step;
    return arg[RECURRENT_SAMPLES];
}

int64_t dnn_recurrent_one_task(const struct step *step, const int64_t *arg) {
    (void)step;
    return arg[RECURRENT_SAMPLES] > 0;
}

const struct step_kind step_recurrent_plain = {
    .name = "recurrent_plain", .run = run_plain, .n_tasks = dnn_recurrent_n_samples};

/* ---- Packing ---- */

int64_t dnn_recurrent_n_pack_tasks(const struct step *step, const int64_t *arg) {
    (void)step;
    return ceil_div(arg[RECURRENT_UNITS], arg[RECURRENT_TILE]);
}

/* Vector v, lane l of a tile belongs to gate v and unit l, or with one gate to unit v * lanes + l. */
static void pack_tile(const int64_t *arg, const float *weight, float *packed, int64_t tile) {
    const int64_t kind = arg[RECURRENT_KIND], units = arg[RECURRENT_UNITS];
    const int gates = dnn_recurrent_gates(kind), vectors = dnn_recurrent_vectors(kind);
    const int64_t n = arg[RECURRENT_TILE], lanes = gates > 1 ? n : n / vectors;
    packed += tile * units * vectors * lanes;
    for (int64_t i = 0; i < vectors * lanes; i++) {
        const int64_t gate = gates > 1 ? i / lanes : 0,
                      unit = tile * n + (gates > 1 ? i % lanes : i);
        const float *from = weight + (gate * units + unit) * units;
        for (int64_t k = 0; k < units; k++)
            packed[k * vectors * lanes + i] = unit < units ? from[k] : 0;
    }
}

static void pack_tiles(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                       int64_t begin, int64_t end) {
    (void)step, (void)scratch;
    for (int64_t tile = begin; tile < end; tile++) pack_tile(arg, ptr[0], ptr[1], tile);
}

const struct step_kind step_recurrent_pack = {
    .name = "recurrent_pack", .run = pack_tiles, .n_tasks = dnn_recurrent_n_pack_tasks};

/* ---- All steps of time ---- */

/* Samples of a task. The weight of a tile stays in L2 while they are computed. */
#define ROWS 24
struct recurrent {
    const struct dnn_kernels *kernels;
    const int64_t *arg;
    const float *weight, *state, *more;
    const int64_t *length;      /* NULL: all samples have all steps */
    struct dnn_rows x, y, kept; /* kept: the gates, if they are */
    int64_t n_tiles, tile_size; /* floats of a packed tile */
    int64_t n_parts;            /* of the samples */
};

static int64_t length_of(const struct recurrent *r, int64_t n) {
    return r->length ? r->length[n] : r->arg[RECURRENT_STEPS];
}

/* The state of a sample before a step of time. */
static const float *state_before(const struct recurrent *r, int64_t time, int64_t n) {
    const bool back = r->arg[RECURRENT_REVERSE];
    const int64_t first = back ? length_of(r, n) - 1 : 0;
    if (time == first) return r->state + n * r->arg[RECURRENT_UNITS];
    return dnn_row_at(&r->y, back ? time + 1 : time - 1, n);
}

static struct recurrent_row row_of(const struct recurrent *r, int64_t time, int64_t n) {
    return (struct recurrent_row){.x = dnn_row_at(&r->x, time, n),
                                  .h = state_before(r, time, n),
                                  .y = dnn_row_at(&r->y, time, n),
                                  .cell = dnn_row_at(&r->y, r->arg[RECURRENT_STEPS] + 1, n),
                                  .kept = r->kept.at ? dnn_row_at(&r->kept, time, n) : NULL};
}

/* Task: tile task / n_parts, for part task % n_parts of the samples. Samples beyond their length get zeros. */
static void run_task(void *user, int64_t step, int64_t task) {
    const struct recurrent *r = user;
    const int64_t time = r->arg[RECURRENT_REVERSE] ? r->arg[RECURRENT_STEPS] - 1 - step : step;
    const int64_t tile = task / r->n_parts, first = task % r->n_parts * ROWS;
    const int64_t units = r->arg[RECURRENT_UNITS], n_tile = r->arg[RECURRENT_TILE];
    const int64_t end = min_i64(first + ROWS, r->arg[RECURRENT_SAMPLES]);
    const int64_t unit = tile * n_tile, width = min_i64(n_tile, units - unit);
    struct recurrent_row row[ROWS];
    int n = 0;
    for (int64_t i = first; i < end; i++) {
        if (time < length_of(r, i)) {
            row[n++] = row_of(r, time, i);
            continue;
        }
        dnn_clear_row(&r->y, time, i, unit, width);
        if (r->kept.at) dnn_clear_row(&r->kept, time, i, unit, width);
    }
    r->kernels->recurrent(r->arg[RECURRENT_KIND], units, unit, r->weight + tile * r->tile_size,
                          r->more, n, row);
}

static void init_recurrent(const struct step *step, void *const *ptr, const int64_t *arg,
                           struct recurrent *r) {
    const int64_t kind = arg[RECURRENT_KIND], units = arg[RECURRENT_UNITS];
    const int gates = dnn_recurrent_gates(kind), extra = 1 + (kind == RECURRENT_LSTM);
    *r = (struct recurrent){
        .kernels = step->data,
        .arg = arg,
        .weight = ptr[RECURRENT_WEIGHT],
        .state = ptr[RECURRENT_STATE],
        .more = ptr[RECURRENT_MORE],
        .length = ptr[RECURRENT_LENGTHS],
        .x = dnn_make_rows(arg, ptr[RECURRENT_X], gates, 0),
        .y = dnn_make_rows(arg, ptr[RECURRENT_Y], 1, extra),
        .kept = dnn_make_rows(arg, ptr[RECURRENT_KEPT], dnn_recurrent_kept(kind), 0),
        .n_tiles = ceil_div(units, arg[RECURRENT_TILE]),
        .tile_size = arg[RECURRENT_TILE] * units * gates,
        .n_parts = ceil_div(arg[RECURRENT_SAMPLES], ROWS)};
}

/* Copies the first cells to the place of the last ones. Returns the number of a sample with a wrong length; -1: there is none. */
static int64_t begin_run(const struct recurrent *r) {
    const int64_t steps = r->arg[RECURRENT_STEPS], units = r->arg[RECURRENT_UNITS];
    for (int64_t i = 0; i < r->arg[RECURRENT_SAMPLES]; i++) {
        if (length_of(r, i) < 0 || length_of(r, i) > steps) return i;
        if (r->arg[RECURRENT_KIND] == RECURRENT_LSTM)
            memcpy(dnn_row_at(&r->y, steps + 1, i), r->more + i * units,
                   (size_t)units * sizeof(float));
    }
    return -1;
}

/* Copies the last state of each sample behind the states of all steps. */
static void end_run(const struct recurrent *r) {
    const int64_t steps = r->arg[RECURRENT_STEPS], units = r->arg[RECURRENT_UNITS];
    for (int64_t i = 0; i < r->arg[RECURRENT_SAMPLES]; i++) {
        const int64_t n = length_of(r, i);
        const float *last =
            n ? dnn_row_at(&r->y, r->arg[RECURRENT_REVERSE] ? 0 : n - 1, i) : r->state + i * units;
        memcpy(dnn_row_at(&r->y, steps, i), last, (size_t)units * sizeof(float));
    }
}

static void run_steps(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                      int64_t begin, int64_t end) {
    (void)scratch, (void)begin, (void)end;
    struct recurrent r;
    init_recurrent(step, ptr, arg, &r);
    const int64_t bad = begin_run(&r);
    if (bad >= 0) {
        dnn_recurrent_fail(step, arg, r.length, bad);
        return;
    }
    const int64_t units = arg[RECURRENT_UNITS];
    dnn_recurrent_walk(arg[RECURRENT_STEPS], r.n_tiles * r.n_parts,
                       arg[RECURRENT_SAMPLES] * units * units *
                           dnn_recurrent_gates(arg[RECURRENT_KIND]),
                       run_task, &r);
    end_run(&r);
}

const struct step_kind step_recurrent = {
    .name = "recurrent", .run = run_steps, .n_tasks = dnn_recurrent_one_task, .on_caller = true};

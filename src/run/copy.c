/*
 * The copy step: reorders values without computing anything.
 *
 *   plan/movement.c makes the table -> plan/build.c makes the step -> copy_run
 *
 * A table describes any reordering of values (into and out of channel blocks, channel shuffle, slice, flatten) of one sample,
 * or of a whole tensor. It has, for each stored output channel, the position of its first value in the input, and one
 * stride from pixel to pixel for all channels.
 *
 * The update step copies bytes as they are, from a new value to the caller's parameter.
 */
#include "run/program.h"

#include <string.h>

static int64_t copy_n_tasks(const struct step *step, const int64_t *arg) {
    const struct copy_table *table = step->data;
    return arg[COPY_N] * (table->form.number ? copy_form_n_tasks(&table->form) : table->n_outer);
}

/* Position of the first pixel of a stored channel: the blocks before it have `pixels` pixels each. */
static int64_t first_pixel(const struct copy_table *table, int32_t channel, int64_t pixels) {
    if (channel < 0) return -1;
    const int64_t lane = channel % table->in_lanes;
    return (channel - lane) * pixels + lane;
}

/* The form of a table whose bases are positions, if its channels and lanes do not depend on each other. */
static void find_form(struct arena *arena, struct copy_table *table) {
    const int64_t n = (int64_t)table->n_outer * table->lanes,
                  pixels = (table->n_pixels - 1) * table->pixel_stride;
    struct copy_source source = {.n_dims = 2,
                                 .dim = {table->n_outer, table->lanes},
                                 .pixels = table->n_pixels,
                                 .pixel_stride = table->pixel_stride,
                                 .element = table->element};
    int64_t *at = ARENA_ARRAY(arena, int64_t, n + 1);
    for (int64_t i = 0; i < n; i++) {
        at[i] = table->base[i];
        source.n_in = max_i64(source.n_in, at[i] + pixels + 1);
    }
    source.at = at;
    if (!copy_form_find(arena, &source, &table->form)) table->form.number = NULL;
}

static enum sol_status copy_adapt(const struct step *step, const int64_t *arg, struct arena *arena,
                                  const struct step **out) {
    const struct copy_table *open = step->data;
    const int64_t n = (int64_t)open->n_outer * open->lanes, pixels = arg[COPY_PIXELS];
    int32_t *base = ARENA_ARRAY(arena, int32_t, n + 1);
    struct copy_table table = *open;
    struct step copy = *step;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = first_pixel(open, open->base[i], pixels);
        if (at > INT32_MAX || pixels > INT32_MAX)
            return fail(SOL_EUNSUPPORTED, "%s: an image of %lld pixels is too large", step->layers,
                        (long long)pixels);
        base[i] = (int32_t)at;
    }
    table.n_pixels = (int)pixels;
    table.base = base;
    if (pixels) find_form(arena, &table);
    copy.data = arena_copy(arena, &table, sizeof table);
    *out = arena_copy(arena, &copy, sizeof copy);
    return SOL_OK;
}

/* Are the n channels of a block consecutive in the input, too? Then one memcpy moves them. */
static bool is_run(const int32_t *base, int n) {
    for (int l = 0; l < n; l++)
        if (base[l] < 0 || base[l] != base[0] + l) return false;
    return true;
}

/*
 * The functions of one size of elements; T is an unsigned type, as bits are moved, not values.
 *
 * copy_row copies one channel to consecutive elements, copy_lines blocks of consecutive channels, copy_block one block of channels.
 * Pixels are copy_block's outer loop, so that output is written in order. Its inner loop is unrolled, because the time of the
 * short loop would depend on its address: where it crossed a cache line, a channel shuffle took 1.8 times as long (Zen 5). Elements
 * may have the type of the table's own numbers: without restrict and local copies, these would be loaded again for each element.
 */
#define COPY(T)                                                                                 \
    static void copy_row_##T(const T *in, T *out, int64_t n, int64_t stride) {                  \
        if (stride == 1) memcpy(out, in, (size_t)n * sizeof *out);                              \
        else                                                                                    \
            for (int64_t p = 0; p < n; p++) out[p] = in[p * stride];                            \
    }                                                                                           \
    static void copy_lines_##T(const struct copy_table *t, const T *in, T *out) {               \
        const int n = t->n_pixels;                                                              \
        const int64_t step = t->pixel_stride, lanes = t->lanes;                                 \
        for (int p = 0; p < n; p++, in += step, out += lanes)                                   \
            memcpy(out, in, (size_t)lanes * sizeof *out);                                       \
    }                                                                                           \
    static void copy_block_##T(const struct copy_table *t, const int32_t *restrict base,        \
                               const T *restrict in, T *restrict out) {                         \
        const int n = t->n_pixels, lanes = t->lanes;                                            \
        const int64_t step = t->pixel_stride;                                                   \
        for (int p = 0; p < n; p++, in += step, out += lanes) {                                 \
            _Pragma("GCC unroll 8") for (int l = 0; l < lanes; l++) out[l] =                    \
                base[l] < 0 ? 0 : in[base[l]];                                                  \
        }                                                                                       \
    }                                                                                           \
    static void copy_task_##T(const struct copy_table *t, void *const *ptr, const int64_t *arg, \
                              int64_t task) {                                                   \
        int64_t n = task / t->n_outer, o = task % t->n_outer;                                   \
        const T *in = (const T *)ptr[0] + n * arg[1];                                           \
        T *out = (T *)ptr[1] + n * arg[2] + o * t->n_pixels * t->lanes;                         \
        const int32_t *base = t->base + o * t->lanes;                                           \
        if (t->lanes == 1 && base[0] >= 0)                                                      \
            copy_row_##T(in + base[0], out, t->n_pixels, t->pixel_stride);                      \
        else if (is_run(base, t->lanes)) copy_lines_##T(t, in + base[0], out);                  \
        else copy_block_##T(t, base, in, out);                                                  \
    }
COPY(uint8_t)
COPY(uint16_t)
COPY(uint32_t)
COPY(uint64_t)

/* Moves tasks [begin, end) of all samples by the form. */
static void run_form(const struct copy_table *t, void *const *ptr, const int64_t *arg,
                     int64_t begin, int64_t end) {
    const int64_t n_tasks = copy_form_n_tasks(&t->form);
    for (int64_t n = begin / n_tasks; begin < end; n++) {
        const int64_t last = min_i64(end, (n + 1) * n_tasks);
        copy_form_run(&t->form, t->element,
                      (const char *)ptr[0] + n * arg[COPY_IN_STRIDE] * t->element,
                      (char *)ptr[1] + n * arg[COPY_OUT_STRIDE] * t->element, begin - n * n_tasks,
                      last - n * n_tasks);
        begin = last;
    }
}

static void copy_run(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                     int64_t begin, int64_t end) {
    (void)scratch;
    const struct copy_table *t = step->data;
    if (t->form.number) {
        run_form(t, ptr, arg, begin, end);
        return;
    }
    for (int64_t task = begin; task < end; task++) {
        switch (t->element) {
        case 1: copy_task_uint8_t(t, ptr, arg, task); break;
        case 2: copy_task_uint16_t(t, ptr, arg, task); break;
        case 4: copy_task_uint32_t(t, ptr, arg, task); break;
        default: copy_task_uint64_t(t, ptr, arg, task); break;
        }
    }
}

const struct step_kind step_copy = {
    .name = "copy", .run = copy_run, .n_tasks = copy_n_tasks, .adapt = copy_adapt};

#define UPDATE_PIECE 65536 /* bytes per task */

static int64_t update_n_tasks(const struct step *step, const int64_t *arg) {
    (void)step;
    return ceil_div(arg[0], UPDATE_PIECE);
}

static void update_run(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                       int64_t begin, int64_t end) {
    (void)step, (void)scratch;
    const int64_t from = begin * UPDATE_PIECE, to = min_i64(end * UPDATE_PIECE, arg[0]);
    memcpy((char *)ptr[1] + from, (const char *)ptr[0] + from, (size_t)(to - from));
}

const struct step_kind step_update = {
    .name = "update", .run = update_run, .n_tasks = update_n_tasks};

/* Finds the form of a copy: copy_form.h. */
#include "run/copy_form.h"

#define MAX_COLUMNS 4096  /* of merged dims: a table of columns stays in the first cache */
#define ENOUGH_COLUMNS 64 /* dims with less are merged: each row costs the time of some columns */
#define LEAST_RUN 8       /* elements: shorter runs are not worth a call */
#define LEAST_ROWS 4

struct dim {
    int64_t n, step; /* step: distance in the output */
    int64_t
        *at; /* by index: distance in the input from the index `reference`; COPY_NONE: it is 0 */
};

struct finding {
    struct arena *arena;
    const int64_t *source;
    int64_t
        reference; /* an element of the output that is copied; the positions of others are relative to it */
    int64_t n_in;
    int element, n;
    struct dim dim[COPY_FORM_DIMS];
};

/* ---- Dims ---- */

static void read_dim(struct finding *f, struct dim *d) {
    const int64_t index = f->reference / d->step % d->n, origin = f->source[f->reference];
    d->at = ARENA_ARRAY(f->arena, int64_t, d->n);
    for (int64_t i = 0; i < d->n; i++) {
        const int64_t at = f->source[f->reference + (i - index) * d->step];
        d->at[i] = at < 0 ? COPY_NONE : at - origin;
    }
}

static bool read_dims(struct finding *f, int n_dims, const int64_t *dim, int64_t n) {
    int64_t step = n;
    while (f->reference < n && f->source[f->reference] < 0) f->reference++;
    if (f->reference == n) return false; /* all are 0 */
    for (int i = 0; i < n_dims; i++) {
        step /= dim[i];
        if (dim[i] == 1) continue;
        f->dim[f->n] = (struct dim){.n = dim[i], .step = step};
        read_dim(f, &f->dim[f->n++]);
    }
    return true;
}

/* Is every position the sum of its dims' numbers? `base`: the sum over the dims outside of dim `d`. */
static bool is_sum(const struct finding *f, int d, int64_t base, int64_t *i) {
    const struct dim *dim = &f->dim[d];
    for (int64_t k = 0; k < dim->n; k++) {
        const int64_t sum =
            base == COPY_NONE || dim->at[k] == COPY_NONE ? COPY_NONE : base + dim->at[k];
        if (d + 1 < f->n) {
            if (!is_sum(f, d + 1, sum, i)) return false;
            continue;
        }
        const int64_t at = f->source[(*i)++];
        if (sum == COPY_NONE ? at >= 0 : at != sum) return false;
    }
    return true;
}

/* Replaces dims d and d + 1 by one. */
static void merge(struct finding *f, int d) {
    const struct dim a = f->dim[d], b = f->dim[d + 1];
    struct dim both = {.n = a.n * b.n, .step = b.step};
    both.at = ARENA_ARRAY(f->arena, int64_t, both.n);
    for (int64_t i = 0; i < both.n; i++) {
        const int64_t outer = a.at[i / b.n], inner = b.at[i % b.n];
        both.at[i] = outer == COPY_NONE || inner == COPY_NONE ? COPY_NONE : outer + inner;
    }
    f->dim[d] = both;
    for (int i = d + 1; i + 1 < f->n; i++) f->dim[i] = f->dim[i + 1];
    f->n--;
}

static bool has_constant_step(const struct dim *d) {
    for (int64_t i = 1; i < d->n; i++)
        if (d->at[i] == COPY_NONE || d->at[i - 1] == COPY_NONE ||
            d->at[i] - d->at[i - 1] != d->at[1] - d->at[0])
            return false;
    return true;
}

/* Merges dims that are one dim in the input, too. */
static void merge_regular(struct finding *f) {
    for (int d = f->n - 2; d >= 0; d--) {
        const struct dim *a = &f->dim[d], *b = &f->dim[d + 1];
        if (a->n * b->n <= MAX_COLUMNS && has_constant_step(a) && has_constant_step(b) &&
            a->at[1] - a->at[0] == (b->at[1] - b->at[0]) * b->n)
            merge(f, d);
    }
}

/* Merges the innermost dims, down to dim number `first`, until there are enough columns. */
static void merge_columns(struct finding *f, int first) {
    while (f->n - 2 >= first && f->dim[f->n - 1].n < ENOUGH_COLUMNS &&
           f->dim[f->n - 1].n * f->dim[f->n - 2].n <= MAX_COLUMNS)
        merge(f, f->n - 2);
}

/* ---- Kinds ---- */

/* Does a run go on at index i? Elements that are 0 are runs of their own. */
static bool continues(const struct dim *d, int64_t i) {
    if (d->at[i] == COPY_NONE || d->at[i - 1] == COPY_NONE) return d->at[i] == d->at[i - 1];
    return d->at[i] == d->at[i - 1] + 1;
}

static int64_t count_runs(const struct dim *d) {
    int64_t n = 1;
    for (int64_t i = 1; i < d->n; i++) n += !continues(d, i);
    return n;
}

static bool has_runs(const struct dim *d) { return count_runs(d) * LEAST_RUN <= d->n; }

/* The dim whose neighbors are consecutive in the input, mostly; -1: none. */
static int find_rows(const struct finding *f) {
    int best = -1;
    for (int d = 0; d + 1 < f->n; d++) {
        const struct dim *dim = &f->dim[d];
        if (dim->n >= LEAST_ROWS && count_runs(dim) * LEAST_ROWS <= dim->n &&
            (best < 0 || dim->n > f->dim[best].n))
            best = d;
    }
    return best;
}

/* The least and greatest distance of a dim's elements from the reference. */
static void find_bounds(const struct dim *d, int64_t *low, int64_t *high) {
    *low = *high = 0;
    for (int64_t i = 0; i < d->n; i++) {
        if (d->at[i] == COPY_NONE) continue;
        *low = min_i64(*low, d->at[i]);
        *high = max_i64(*high, d->at[i]);
    }
}

/* The first element of the window of columns from `from` on, moved so that the window is inside of the input, in which the
 * other dims' positions are from `low` to `high`. False if the columns are not in one window. */
static bool find_window(const struct finding *f, const struct dim *d, int64_t from, int64_t low,
                        int64_t high, int64_t *first) {
    int64_t least = INT64_MAX, most = INT64_MIN;
    const int n = copy_window(f->element);
    for (int64_t i = from; i < from + n; i++) {
        if (d->at[i] == COPY_NONE) continue;
        least = min_i64(least, d->at[i]);
        most = max_i64(most, d->at[i]);
    }
    if (most == INT64_MIN) least = most = max_i64(-low, 0);
    *first = max_i64(-low, min_i64(least, f->n_in - n - high));
    return *first >= -low && *first + n + high <= f->n_in && *first <= least && most < *first + n;
}

/* The last window overlaps the one before. */
static int32_t *find_windows(const struct finding *f) {
    const struct dim *d = &f->dim[f->n - 1];
    const int n = copy_window(f->element);
    int64_t low = f->source[f->reference], high = low, a, b;
    int32_t *window = ARENA_ARRAY(f->arena, int32_t, ceil_div(d->n, n));
    if (d->n < n) return NULL;
    for (int i = 0; i + 1 < f->n; i++) {
        find_bounds(&f->dim[i], &a, &b);
        low += a;
        high += b;
    }
    for (int64_t i = 0; i < d->n; i += n) {
        int64_t first, from = min_i64(i, d->n - n);
        if (!find_window(f, d, from, low, high, &first)) return NULL;
        window[i / n] = (int32_t)first;
    }
    return window;
}

/* Windows with the same places of their columns, at the same distance; the last one, which may overlap, needs the places only. */
static bool is_regular(const struct dim *d, int n, const int32_t *window) {
    const int64_t step = d->n < 2 * n ? 0 : window[1] - window[0];
    for (int64_t i = 0; i < d->n; i += n) {
        const int64_t from = min_i64(i, d->n - n), first = window[i / n];
        if (from == i && first != window[0] + i / n * step) return false;
        for (int k = 0; k < n; k++)
            if (d->at[from + k] == COPY_NONE || d->at[from + k] - first != d->at[k] - window[0])
                return false;
    }
    return true;
}

/* {first column, position or COPY_NONE, length} of each run. */
static int32_t *list_runs(const struct finding *f, int n) {
    const struct dim *d = &f->dim[f->n - 1];
    int32_t *run = ARENA_ARRAY(f->arena, int32_t, 3 * n), *at = run - 3;
    for (int64_t i = 0; i < d->n; i++) {
        if (!i || !continues(d, i)) {
            at += 3;
            at[0] = (int32_t)i;
            at[1] = (int32_t)d->at[i];
        }
        at[2]++;
    }
    return run;
}

/* ---- The form ---- */

static bool has_holes(const struct dim *d) {
    for (int64_t i = 0; i < d->n; i++)
        if (d->at[i] == COPY_NONE) return true;
    return false;
}

/* Fills in from[] and to[]: all combinations of the dims except for the columns and the rows. */
static void list_parts(const struct finding *f, int rows, int64_t n, int32_t *from, int32_t *to) {
    for (int64_t p = 0; p < n; p++) {
        int64_t rest = p, in = f->source[f->reference], out = 0;
        for (int d = f->n - 2; d >= 0; d--) {
            const struct dim *dim = &f->dim[d];
            if (d == rows) continue;
            const int64_t at = dim->at[rest % dim->n];
            out += rest % dim->n * dim->step;
            in = in < 0 || at == COPY_NONE ? -1 : in + at;
            rest /= dim->n;
        }
        from[p] = (int32_t)in;
        to[p] = (int32_t)out;
    }
}

static void fill_form(const struct finding *f, int rows, const int32_t *more,
                      struct copy_form *out) {
    const struct dim *columns = &f->dim[f->n - 1];
    int64_t n = 1;
    for (int d = 0; d + 1 < f->n; d++)
        if (d != rows) n *= f->dim[d].n;
    out->n_parts = (int)n;
    out->n_rows = rows < 0 ? 1 : (int)f->dim[rows].n;
    out->n_columns = (int)columns->n;
    out->block = COPY_LINE / f->element;
    out->has_holes = has_holes(columns);
    out->row_step = rows < 0 ? 0 : f->dim[rows].step;
    int32_t *number = ARENA_ARRAY(f->arena, int32_t, copy_form_numbers(out));
    list_parts(f, rows, n, number, number + n);
    int32_t *at = number + 2 * n;
    if (rows < 0) *at++ = 0;
    for (int r = 0; rows >= 0 && r < out->n_rows; r++) *at++ = (int32_t)f->dim[rows].at[r];
    for (int c = 0; c < out->n_columns; c++) *at++ = (int32_t)columns->at[c];
    for (int i = 0; i < out->n_more; i++) *at++ = more[i];
    out->number = number;
}

/* Columns narrower than a vector are joined, if windows of vectors are then possible. */
static void join_narrow(struct finding *f) {
    struct finding joined = *f;
    if (f->dim[f->n - 1].n >= copy_window(f->element)) return;
    merge_columns(&joined, 0);
    if (find_windows(&joined)) *f = joined;
}

/* Chooses the kind: the first that moves whole vectors. */
static void choose(struct finding *f, struct copy_form *out) {
    int rows = -1;
    join_narrow(f);
    int32_t *more = has_runs(&f->dim[f->n - 1]) ? NULL : find_windows(f);
    if (!more && !has_runs(&f->dim[f->n - 1])) rows = find_rows(f);
    if (rows >= 0 && has_holes(&f->dim[rows])) rows = -1;
    merge_columns(f, rows + 1);
    const struct dim *columns = &f->dim[f->n - 1];
    *out = (struct copy_form){.kind = rows < 0 ? COPY_ELEMENTS : COPY_TURNED};
    if (rows < 0 && has_runs(columns)) {
        out->kind = COPY_RUNS;
        out->n_more = 3 * (int)count_runs(columns);
        more = list_runs(f, out->n_more / 3);
    } else if (rows < 0 && (more = find_windows(f))) {
        out->kind = COPY_WINDOWS;
        out->n_more = (int)ceil_div(columns->n, copy_window(f->element));
        out->is_regular = is_regular(columns, copy_window(f->element), more);
    }
    fill_form(f, rows, more, out);
}

/* The largest divisor of n up to the most columns. */
static int64_t divide_pixels(int64_t n) {
    int64_t d = min_i64(n, MAX_COLUMNS);
    while (n % d) d--;
    return d < ENOUGH_COLUMNS ? n : d;
}

static void insert(struct finding *f, int d, int64_t n, int64_t step, int64_t stride) {
    for (int i = f->n++; i > d; i--) f->dim[i] = f->dim[i - 1];
    f->dim[d] = (struct dim){.n = n, .step = step, .at = ARENA_ARRAY(f->arena, int64_t, n)};
    for (int64_t i = 0; i < n; i++) f->dim[d].at[i] = i * stride;
}

/* Inserts the pixels before the last dim, as two dims if they are many. */
static void insert_pixels(struct finding *f, const struct copy_source *s) {
    const int64_t lanes = s->dim[s->n_dims - 1], inner = divide_pixels(s->pixels);
    const int place = f->n && f->dim[f->n - 1].step == 1 && lanes > 1 ? f->n - 1 : f->n;
    for (int d = 0; d < place; d++) f->dim[d].step *= s->pixels;
    insert(f, place, inner, lanes, s->pixel_stride);
    if (inner < s->pixels)
        insert(f, place, s->pixels / inner, lanes * inner, inner * s->pixel_stride);
}

bool copy_form_find(struct arena *arena, const struct copy_source *s, struct copy_form *out) {
    struct finding f = {.arena = arena, .source = s->at, .n_in = s->n_in, .element = s->element};
    int64_t n = 1, i = 0;
    for (int d = 0; d < s->n_dims; d++) n *= s->dim[d];
    if (n < 1 || s->n_in > INT32_MAX || n * max_i64(1, s->pixels) > INT32_MAX) return false;
    if (!read_dims(&f, s->n_dims, s->dim, n)) return false;
    if (f.n && !is_sum(&f, 0, s->at[f.reference], &i)) return false;
    if (s->pixels) insert_pixels(&f, s);
    if (!f.n) return false;
    merge_regular(&f);
    choose(&f, out);
    return true;
}

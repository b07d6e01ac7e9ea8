/*
 * Movements: layers that only move values (reshape, permute, slice, copy) become one copy with a table.
 *
 *   a chain, or a group with one input and one output (plan/group.c) -> run it on element numbers -> table of positions (run/copy.c)
 *
 * At compile time the layers run once on the numbers 0, 1, 2, .. of the input's elements instead of on values. The number that
 * ends up at an output element is the input element to copy there, -1 where a pad or place puts a zero. If the layers keep samples apart, the
 * table describes one sample and is applied to each sample of the batch; else it describes the whole tensor.
 *
 * Open pixels: if the last dims of a sample are open, and each layer of the chain keeps them as they are, the chain runs on the
 * numbers of the dims before them (channels, or groups of channels) instead of on elements, and the table is for channels.
 */
#include "plan/plan.h"
#include "run/program.h"

#include <math.h>
#include <string.h>

/* The most elements that a table describes; larger movements become DFP kernels. Less for constants: they are moved only once,
 * but the table would stay in the program. */
#define MOVEMENT_MAX (1 << 24)
#define MOVEMENT_MAX_CONSTANT (1 << 14)

/* Do both tensors have the batch as first dim? A vector of constant size has none: its dim is the channels of a parameter. */
static bool is_batched(const struct tensor *a, const struct tensor *b) {
    if (a->rank == 0 || b->rank == 0 || !size_equal(a->dim[0], b->dim[0])) return false;
    return (a->rank > 1 && b->rank > 1) || !size_is_const(a->dim[0]);
}

/* Does it move values along its attribute axis, by `start` and `step`? */
static bool moves_along_axis(const struct layer *l) {
    return l->kind == LAYER_slice || l->kind == LAYER_place;
}

bool movement_keeps_batch(const struct layer *l) {
    const int rank = l->in[0]->rank;
    if (!is_batched(l->in[0], l->out[0])) return false;
    if (l->kind == LAYER_permute) return l->attr.axes[0] == 0;
    if (l->kind == LAYER_expand) return rank == l->out[0]->rank;
    if (l->kind == LAYER_pad) return rank > 2;
    const bool has_axis = moves_along_axis(l) || l->kind == LAYER_concat;
    return !has_axis || l->attr.axis != 0;
}

/* The first dim of a sample's open pixels; the rank if all its dims are known. A blocked image's channels are dim 1 alone, so the
 * pixels of any image begin behind it. */
static int find_pixels(const struct tensor *t) {
    int open = 1;
    while (open < t->rank && size_is_const(t->dim[open])) open++;
    return t->rank == 4 && open == 3 ? 2 : open;
}

/* Does the layer move channels, or groups of channels, whose open pixels stay as they are? */
static bool keeps_pixels(const struct layer *l) {
    const struct tensor *in = l->in[0], *out = l->out[0];
    int from = find_pixels(in), to = find_pixels(out);
    if (from < 2 || to < 2 || !is_batched(in, out) || from >= in->rank || to >= out->rank)
        return false;
    if (!size_equal(ir_count(in, from, in->rank), ir_count(out, to, out->rank))) return false;
    if (moves_along_axis(l)) return l->attr.axis > 0 && l->attr.axis < from;
    for (int d = 0; d < in->rank && l->kind == LAYER_permute; d++)
        if ((d == 0 || d >= from) && l->attr.axes[d] != d) return false;
    return true;
}

/* Elements per sample if `batched`, else of the whole tensor; -1 if that is not constant or too many. */
static int64_t count_elements(const struct tensor *t, bool batched) {
    struct size n = ir_count(t, batched, t->rank);
    return size_is_const(n) && size_value(n) <= MOVEMENT_MAX ? size_value(n) : -1;
}

/* Scalars are constants of the generated text and have no memory to move from. */
bool movement_is_possible(const struct layer *l) {
    if (!(layer_infos[l->kind].traits & MOVEMENT)) return false;
    if (l->in[0]->producer->kind == LAYER_scalar) return false;
    if (moves_along_axis(l) && !size_is_const(l->attr.start)) return false;
    if (keeps_pixels(l)) return true;
    bool batched = movement_keeps_batch(l);
    int64_t in = count_elements(l->in[0], batched), out = count_elements(l->out[0], batched);
    if (ir_is_constant(l->out[0]) && max_i64(in, out) > MOVEMENT_MAX_CONSTANT) return false;
    return in >= 0 && out >= 0;
}

/* An expand before a pointwise layer is cheaper as a broadcast, so expands and concats move only inside of a group. */
bool movement_fits_group(const struct layer *l) {
    if (ir_is_constant(l->out[0])) return false;
    if (l->kind != LAYER_expand && l->kind != LAYER_concat &&
        (l->kind != LAYER_pad || l->attr.value != 0 || signbit(l->attr.value)))
        return movement_is_possible(l) && !keeps_pixels(l);
    bool batched = movement_keeps_batch(l);
    for (int i = 0; i < l->n_in; i++)
        if (l->in[i]->producer->kind == LAYER_scalar || count_elements(l->in[i], batched) < 0)
            return false;
    return count_elements(l->out[0], batched) > 0;
}

/* ---- Running layers on element numbers ---- */

struct moving {
    struct arena *arena;
    bool batched;
    bool is_open; /* the elements are channels of open pixels */
    struct layer *const *layers;
    int n;
    int32_t **
        at; /* by layer, then by element of its output: number of the input element of all layers, or -1 */
    int32_t *identity; /* of the input */
};

/* The dims that the chain runs on: without the batch, and without open pixels. */
static int first_dim(const struct moving *m) { return m->batched ? 1 : 0; }
static int end_dim(const struct moving *m, const struct tensor *t) {
    return m->is_open ? find_pixels(t) : t->rank;
}

static int64_t count_moved(const struct moving *m, const struct tensor *t) {
    struct size n = ir_count(t, first_dim(m), end_dim(m, t));
    return size_is_const(n) && size_value(n) <= MOVEMENT_MAX ? size_value(n) : -1;
}

/* A region of a tensor: `step` is the distance between neighbors of a dim. */
struct region {
    int32_t *at;
    int64_t step[SOL_MAX_RANK];
};

static struct region view_region(const struct moving *m, const struct tensor *t, int32_t *at) {
    struct region r = {.at = at};
    int64_t step = 1;
    for (int d = end_dim(m, t) - 1; d >= first_dim(m); d--) {
        r.step[d] = step;
        step *= size_value(t->dim[d]);
    }
    return r;
}

/* Copies the numbers of a region with the dims [d, end) of `t`. */
static void copy_region(const struct tensor *t, int d, int end, struct region to,
                        struct region from) {
    if (d == end) {
        *to.at = *from.at;
        return;
    }
    const int64_t n = size_value(t->dim[d]), out = to.step[d], in = from.step[d];
    if (d + 1 == end) {
        for (int64_t i = 0; i < n; i++) to.at[i * out] = from.at[i * in];
        return;
    }
    for (int64_t i = 0; i < n; i++, to.at += out, from.at += in)
        copy_region(t, d + 1, end, to, from);
}

/* The numbers of the elements of one of a layer's inputs. */
static int32_t *numbers_of(const struct moving *m, const struct tensor *t) {
    for (int i = 0; i < m->n; i++)
        if (m->layers[i]->out[0] == t) return m->at[i];
    return m->identity;
}

/* An expand's new dims, and those that it repeats, have step 0. */
static struct region expand_region(const struct layer *l, struct region in) {
    struct region out = {.at = in.at};
    const int front = l->out[0]->rank - l->in[0]->rank;
    for (int d = front; d < l->out[0]->rank; d++)
        if (size_equal(l->in[0]->dim[d - front], l->out[0]->dim[d]))
            out.step[d] = in.step[d - front];
    return out;
}

/* The elements of the input of a permute, slice or expand, in the order of the output. */
static struct region select_region(const struct layer *l, struct region in) {
    struct region out = in;
    const int axis = (int)l->attr.axis;
    if (l->kind == LAYER_expand) return expand_region(l, in);
    for (int d = 0; d < l->out[0]->rank && l->kind == LAYER_permute; d++)
        out.step[d] = in.step[l->attr.axes[d]];
    if (l->kind == LAYER_slice) {
        out.at += size_value(l->attr.start) * in.step[axis];
        out.step[axis] *= l->attr.step;
    }
    return out;
}

/* Does the layer write its inputs into parts of the output? */
static bool writes_parts(const struct layer *l) {
    return l->kind == LAYER_concat || l->kind == LAYER_pad || l->kind == LAYER_place;
}

static void move_into(struct moving *m, const struct layer *l, struct region to) {
    const int rank = l->out[0]->rank;
    for (int i = 0; i < 2 && l->kind == LAYER_pad; i++)
        to.at += l->attr.pad[i] * to.step[rank - 2 + i];
    if (l->kind == LAYER_place) {
        to.at += size_value(l->attr.start) * to.step[l->attr.axis];
        to.step[l->attr.axis] *= l->attr.step;
    }
    for (int i = 0; i < l->n_in; i++) {
        const struct tensor *part = l->in[i];
        copy_region(part, first_dim(m), end_dim(m, part), to,
                    view_region(m, part, numbers_of(m, part)));
        if (l->kind == LAYER_concat)
            to.at += size_value(part->dim[l->attr.axis]) * to.step[l->attr.axis];
    }
}

static int32_t *move(struct moving *m, const struct layer *l) {
    const struct tensor *in = l->in[0], *out = l->out[0];
    int32_t *from = numbers_of(m, in);
    if (l->kind == LAYER_reshape || l->kind == LAYER_copy)
        return from; /* the order stays the same */
    const int64_t n = count_moved(m, out);
    int32_t *at = ARENA_ARRAY(m->arena, int32_t, n + 1);
    const struct region to = view_region(m, out, at);
    for (int64_t i = 0; i < n && writes_parts(l); i++) at[i] = -1;
    if (writes_parts(l)) move_into(m, l, to);
    else if (n)
        copy_region(out, first_dim(m), end_dim(m, out), to,
                    select_region(l, view_region(m, in, from)));
    return at;
}

/* ---- From element numbers to stored positions ---- */

/* How a copy treats a tensor: as images of channels of pixels. `images` > 1 only for a blocked tensor that moves as a whole. */
struct image {
    int64_t images, channels, pixels;
    int lanes, stored;
};

static struct image view_image(const struct tensor *t, bool batched) {
    struct image image = {1, 1, count_elements(t, batched), 1, 1};
    int axis = layout_channel_axis(t);
    if (t->layout.block) {
        if (!batched && axis) image.images = size_value(t->dim[0]);
        image.channels = size_value(t->dim[axis]);
        image.lanes = t->layout.block;
        image.stored = t->layout.stored;
    } else if (t->rank > axis + 1 && (batched || axis == 0 || size_is(t->dim[0], 1))) {
        image.channels = image.stored = (int)size_value(t->dim[axis]);
    }
    image.pixels /= max_i64(1, image.images * image.channels);
    return image;
}

/* Stored position of element number i; -1 of none. */
static int64_t position(const struct tensor *t, const struct image *image, int64_t i) {
    if (!t->layout.block || i < 0) return i;
    int64_t p = i % image->pixels, n = i / image->pixels / image->channels,
            c = layout_position(&t->layout, (int)(i / image->pixels % image->channels));
    return n * image->stored * image->pixels + c / image->lanes * image->pixels * image->lanes +
           p * image->lanes + c % image->lanes;
}

/* Is the distance from pixel to pixel of the source the same everywhere, and none of them 0? Then a table needs one base per channel
 * only. */
static bool find_pixel_stride(const struct image *image, const int64_t *source, int64_t *stride) {
    *stride = 0;
    for (int64_t c = 0; c < image->channels; c++)
        for (int64_t p = 1; p < image->pixels; p++) {
            int64_t step = source[c * image->pixels + p] - source[c * image->pixels + p - 1];
            if (c == 0 && p == 1) *stride = step;
            if (step != *stride || source[c * image->pixels + p] < 0 ||
                source[c * image->pixels + p - 1] < 0)
                return false;
        }
    return true;
}

static void fill_table(struct arena *arena, const struct tensor *out, const struct image *image,
                       const int64_t *source, struct copy_table *table) {
    int32_t *base = ARENA_ARRAY(arena, int32_t, image->stored + 1);
    for (int c = 0; c < image->stored; c++) base[c] = -1;
    for (int c = 0; c < image->channels; c++) {
        int at = out->layout.block ? layout_position(&out->layout, c) : c;
        base[at] = (int32_t)source[c * image->pixels];
    }
    table->n_outer = image->stored / image->lanes;
    table->n_pixels = (int)image->pixels;
    table->lanes = image->lanes;
    table->base = base;
}

/* The general case: one base per stored element. */
static void fill_pointwise(struct arena *arena, const struct tensor *out, const struct image *image,
                           int64_t n, const int64_t *source, struct copy_table *table) {
    int64_t stored = image->images * image->stored * image->pixels;
    int32_t *base = ARENA_ARRAY(arena, int32_t, stored + 1);
    for (int64_t i = 0; i < stored; i++) base[i] = -1;
    for (int64_t i = 0; i < n; i++) base[position(out, image, i)] = (int32_t)source[i];
    int lanes = out->layout.block ? image->lanes : (int)stored;
    table->n_outer = (int)(stored / max_i64(1, lanes));
    table->n_pixels = 1;
    table->lanes = lanes;
    table->pixel_stride = 0;
    table->base = base;
}

/* A table for open pixels: bases are stored channels. A plain tensor is blocks of one channel. */
static void fill_open(struct moving *m, const int32_t *number, const struct tensor *in,
                      const struct tensor *out, struct copy_table *table) {
    const int64_t n = count_moved(m, out);
    const int lanes = out->layout.block ? out->layout.block : 1;
    const int64_t stored = out->layout.block ? out->layout.stored : n;
    int32_t *base = ARENA_ARRAY(m->arena, int32_t, stored + 1);
    for (int64_t i = 0; i < stored; i++) base[i] = -1;
    for (int64_t i = 0; i < n; i++)
        base[layout_position(&out->layout, (int)i)] = layout_position(&in->layout, number[i]);
    const int in_lanes = in->layout.block ? in->layout.block : 1;
    table->n_outer = (int)(stored / lanes);
    table->n_pixels = 1;
    table->lanes = lanes;
    table->pixel_stride = table->in_lanes = in_lanes;
    table->base = base;
}

/* The dims in which `out` is stored; blocked channels are two dims. */
static int list_dims(const struct moving *m, const struct tensor *out, const struct image *image,
                     int64_t *dim) {
    int n = 0, axis = layout_channel_axis(out);
    for (int d = first_dim(m); d < out->rank; d++) {
        const bool is_blocked = out->layout.block && d == axis;
        dim[n++] = is_blocked ? image->stored / image->lanes : size_value(out->dim[d]);
    }
    if (out->layout.block) dim[n++] = image->lanes;
    return n;
}

/* A plain output may be divided into the dims of any tensor of the chain that has as many elements: a reshape joins and cuts dims,
 * and channels of a blocked input are a sum of numbers only for its own dims. */
static bool find_other_form(struct moving *m, const struct tensor *in, struct copy_source *s,
                            struct copy_form *form) {
    const int64_t n = count_moved(m, m->layers[m->n - 1]->out[0]);
    for (int i = m->n - 2; i >= -1; i--) {
        const struct tensor *t = i < 0 ? in : m->layers[i]->out[0];
        if (count_moved(m, t) != n) continue;
        s->n_dims = 0;
        for (int d = first_dim(m); d < t->rank; d++) s->dim[s->n_dims++] = size_value(t->dim[d]);
        if (copy_form_find(m->arena, s, form)) return true;
    }
    return false;
}

/* Dims that depend on each other, as where an image is rolled and then divided into windows, are one dim with the others, except for
 * the innermost one, if that has whole vectors. */
static bool find_joined_form(struct moving *m, const struct tensor *out, struct copy_source *s,
                             struct copy_form *form) {
    const int64_t n = count_moved(m, out);
    const int64_t last = out->rank > first_dim(m) ? size_value(out->dim[out->rank - 1]) : 1;
    if (last < COPY_WINDOW) return false;
    s->n_dims = 2;
    s->dim[0] = n / last;
    s->dim[1] = last;
    return copy_form_find(m->arena, s, form);
}

/* The form in which vectors move the values; false if there is none. */
static bool find_form(struct moving *m, const struct tensor *in, const struct tensor *out,
                      const struct image *from, const struct image *to, const int64_t *source,
                      struct copy_form *form) {
    const int64_t n = count_moved(m, out), stored = to->images * to->stored * to->pixels;
    int64_t *at = out->layout.block ? ARENA_ARRAY(m->arena, int64_t, stored + 1) : NULL;
    struct copy_source s = {.at = at ? at : source,
                            .n_in = from->images * from->stored * from->pixels,
                            .element = (int)size_element(out->dtype)};
    for (int64_t i = 0; at && i < stored; i++) at[i] = -1;
    for (int64_t i = 0; at && i < n; i++) at[position(out, to, i)] = source[i];
    if (!in->layout.block) s.n_in = count_moved(m, in);
    s.n_dims = list_dims(m, out, to, s.dim);
    if (copy_form_find(m->arena, &s, form)) return true;
    return !at && (find_other_form(m, in, &s, form) || find_joined_form(m, out, &s, form));
}

static void fill_fixed(struct moving *m, const int32_t *number, const struct tensor *in,
                       const struct tensor *out, struct copy_table *table) {
    const int64_t n_out = count_moved(m, out);
    struct image from = view_image(in, m->batched), to = view_image(out, m->batched);
    int64_t *source = ARENA_ARRAY(m->arena, int64_t, n_out + 1);
    for (int64_t i = 0; i < n_out; i++) source[i] = position(in, &from, number[i]);
    if (find_form(m, in, out, &from, &to, source, &table->form)) return;
    table->form.number = NULL;
    if (to.images == 1 && find_pixel_stride(&to, source, &table->pixel_stride))
        fill_table(m->arena, out, &to, source, table);
    else fill_pointwise(m->arena, out, &to, n_out, source, table);
}

enum sol_status movement_table(struct arena *arena, struct layer *const *layers, int n,
                               struct copy_table *table, struct size *batch, struct size *pixels) {
    const struct tensor *in = layers[0]->in[0], *out = layers[n - 1]->out[0];
    struct moving m = {.arena = arena,
                       .batched = true,
                       .is_open = keeps_pixels(layers[0]),
                       .layers = layers,
                       .at = ARENA_ARRAY(arena, int32_t *, n)};
    for (int i = 0; i < n; i++) m.batched = m.batched && movement_keeps_batch(layers[i]);
    for (int i = 0; i < n && m.is_open; i++)
        if (!keeps_pixels(layers[i])) return fail(SOL_EBUG, "movement of open and known pixels");
    int64_t n_in = count_moved(&m, in);
    if (n_in < 0 || count_moved(&m, out) < 0)
        return fail(SOL_EBUG, "movement of an image without constant size");
    m.identity = ARENA_ARRAY(arena, int32_t, n_in + 1);
    for (int64_t i = 0; i < n_in; i++) m.identity[i] = (int32_t)i;
    for (; m.n < n; m.n++) m.at[m.n] = move(&m, layers[m.n]);
    *table = (struct copy_table){.element = (int)size_element(out->dtype)};
    *batch = m.batched ? out->dim[0] : size_const(1);
    *pixels = ir_count(out, end_dim(&m, out), out->rank);
    if (m.is_open) fill_open(&m, m.at[n - 1], in, out, table);
    else fill_fixed(&m, m.at[n - 1], in, out, table);
    return SOL_OK;
}

/* ---- Equal movements ---- */

static bool has_same_type(const struct tensor *a, const struct tensor *b) {
    return a->dtype == b->dtype && ir_same_shape(a, b, -1) && layout_equal(&a->layout, &b->layout);
}

/* Number of the layer that makes `t`; that of all layers, if none of the cluster does. */
static int find_maker(const struct cluster *c, const struct tensor *t) {
    int i = 0;
    while (i < c->layers.n && c->layers.at[i] != t->producer) i++;
    return i;
}

bool movement_equal(const struct cluster *a, const struct cluster *b) {
    bool equal = a->layers.n == b->layers.n;
    for (int i = 0; equal && i < a->layers.n; i++) {
        const struct layer *l = a->layers.at[i], *k = b->layers.at[i];
        equal = l->kind == k->kind && l->n_in == k->n_in && has_same_type(l->out[0], k->out[0]) &&
                !memcmp(&l->attr, &k->attr, sizeof l->attr);
        for (int j = 0; equal && j < l->n_in; j++)
            equal = has_same_type(l->in[j], k->in[j]) &&
                    find_maker(a, l->in[j]) == find_maker(b, k->in[j]);
    }
    return equal;
}

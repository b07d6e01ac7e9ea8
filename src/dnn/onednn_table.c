/*
 * A cache of oneDNN's primitives by key. Programs hold keys only and own no object of the library; equal layers use one entry.
 *
 *   onednn_check (at compile time) -> descriptor, sizes;  onednn_take (at run time) -> primitive, stream, memory objects
 *
 * There is one table per process, as programs outlive compiles and may be copied. It has a fixed size: the least recently
 * used entry without users is evicted, and made again on demand. Packed weights stay valid, as the library chooses their
 * layout from the key alone.
 *
 * Invariants: `lock` protects the whole table, except the entry of a use, which is constant while n_users > 0. Threads call
 * these functions between vendor_enter and vendor_leave, as the library makes primitives for a number of threads.
 */
#include "base/lock.h"
#include "dnn/onednn.h"

#include <string.h>

#define SETS 64
#define WAYS 16 /* entries with the same hash modulo SETS. 1024 entries in all, as in the library's own cache */
#define MAX_ARGS 5

struct entry {
    bool is_made;
    int n_users;
    uint64_t last_use;
    struct onednn_key key;
    void *x, *y, *bias;               /* descriptors of memory; bias may be NULL */
    void *desc, *primitive;           /* the primitive is made when it is first taken */
    const void *weights, *scratchpad; /* descriptors inside desc */
    struct onednn_use *idle;          /* uses that were given back, as a list */
};

struct onednn_use {
    struct entry *entry;
    struct onednn_use *next;
    void *stream;
    int n_args;
    struct onednn_arg arg[MAX_ARGS];
};

static struct entry table[SETS][WAYS];
static uint64_t now;
static struct lock lock = LOCK_INITIALIZER;

/* ---- Descriptors ---- */

/* Row-major: the last dim is contiguous. */
static int describe_dense(void **out, int rank, const int64_t *dims) {
    int64_t strides[5], size = 1;
    for (int d = rank - 1; d >= 0; size *= dims[d--]) strides[d] = size;
    return ONEDNN_CALL(memory_desc_create_with_strides, out, rank, dims, ONEDNN_F32, strides);
}

static int describe_images(void **out, const struct onednn_key *key, bool plain, int channels,
                           int height, int width) {
    const int64_t dims[] = {key->rows, channels, height, width};
    if (plain) return describe_dense(out, 4, dims);
    int tag = key->lanes == 16 ? ONEDNN_TAG_NCHW16C : ONEDNN_TAG_NCHW8C;
    return ONEDNN_CALL(memory_desc_create_with_tag, out, 4, dims, ONEDNN_F32, tag);
}

/* The layout of weights: any: the library chooses; else the framework's, [group][k][c][kh][kw], for a linear [k][c]. */
static int describe_weights(void **out, const struct onednn_key *key, bool any) {
    const int64_t g = key->groups, c = key->c / (g ? g : 1), k = key->k / (g ? g : 1);
    const int64_t conv_dims[] = {g, k, c, key->kh, key->kw};
    const int64_t matrix_dims[] = {c, k}, matrix_strides[] = {1, c};
    const bool linear = key->kind == DNN_LINEAR;
    const int skip = g == 1, rank = linear ? 2 : 5 - skip;
    const int64_t *dims = linear ? matrix_dims : conv_dims + skip;
    if (any)
        return ONEDNN_CALL(memory_desc_create_with_tag, out, rank, dims, ONEDNN_F32,
                           ONEDNN_TAG_ANY);
    if (!linear) return describe_dense(out, rank, dims);
    return ONEDNN_CALL(memory_desc_create_with_strides, out, 2, dims, ONEDNN_F32, matrix_strides);
}

static int describe_tensors(struct entry *e) {
    const struct onednn_key *key = &e->key;
    const bool linear = key->kind == DNN_LINEAR;
    const int64_t x[] = {key->rows, key->c}, y[] = {key->rows, key->k}, bias[] = {1, key->k};
    int status = linear ? describe_dense(&e->x, 2, x)
                        : describe_images(&e->x, key, key->x_plain, key->c, key->h, key->w);
    if (!status)
        status = linear ? describe_dense(&e->y, 2, y)
                        : describe_images(&e->y, key, key->y_plain, key->k, key->oh, key->ow);
    if (status || !key->bias) return status;
    return linear ? describe_dense(&e->bias, 2, bias) : describe_dense(&e->bias, 1, bias + 1);
}

/* Padding at the bottom or right that the kernel's last position needs; 0 if it ends inside the image. */
static int64_t pad_end(int size, int out, int kernel, int step, int pad, int dilation) {
    return max_i64(0,
                   (int64_t)(out - 1) * step + (int64_t)dilation * (kernel - 1) + 1 - size - pad);
}

static int describe_primitive(struct entry *e, const void *weights, const void *attr) {
    const struct onednn_key *key = &e->key;
    const int64_t stride[] = {key->sh, key->sw}, dilation[] = {key->dh - 1, key->dw - 1};
    const int64_t begin[] = {key->pt, key->pl};
    const int64_t end[] = {pad_end(key->h, key->oh, key->kh, key->sh, key->pt, key->dh),
                           pad_end(key->w, key->ow, key->kw, key->sw, key->pl, key->dw)};
    if (key->kind == DNN_LINEAR)
        return ONEDNN_CALL(matmul_primitive_desc_create, &e->desc, onednn.engine, e->x, weights,
                           e->bias, e->y, attr);
    return ONEDNN_CALL(convolution_forward_primitive_desc_create, &e->desc, onednn.engine,
                       ONEDNN_FORWARD_INFERENCE, ONEDNN_CONVOLUTION_DIRECT, e->x, weights, e->bias,
                       e->y, stride, dilation, begin, end, attr);
}

/* ---- Entries ---- */

static void free_use(struct onednn_use *use) {
    if (!use) return;
    for (int i = 0; i < use->n_args; i++) onednn.memory_destroy(use->arg[i].memory);
    if (use->stream) onednn.stream_destroy(use->stream);
    mem_free(use);
}

static void clear_entry(struct entry *e) {
    while (e->idle) {
        struct onednn_use *use = e->idle;
        e->idle = use->next;
        free_use(use);
    }
    if (e->primitive) onednn.primitive_destroy(e->primitive);
    if (e->desc) onednn.primitive_desc_destroy(e->desc);
    if (e->x) onednn.memory_desc_destroy(e->x);
    if (e->y) onednn.memory_desc_destroy(e->y);
    if (e->bias) onednn.memory_desc_destroy(e->bias);
    *e = (struct entry){0};
}

void onednn_forget(void) {
    lock_acquire(&lock);
    for (int i = 0; i < SETS * WAYS; i++) {
        struct entry *e = &table[i / WAYS][i % WAYS];
        if (!e->n_users) clear_entry(e);
    }
    lock_release(&lock);
}

/* By the primitive's name, such as "jit:avx512_core", "brg:avx2", "gemm:jit:f32", "ref:any". The last one is a plain loop and
 * slower than every kernel of SOL. */
static bool is_slow(const struct entry *e) {
    const char *name = NULL;
    if (onednn.primitive_desc_query(e->desc, ONEDNN_QUERY_NAME, 0, &name) || !name) return true;
    return !strncmp(name, "ref", 3) || !strncmp(name, "simple", 6);
}

/* The library chooses the layout of the weights (`any`). SOL provides the scratchpad, so that the library allocates nothing at
 * a call. */
static int describe_all(struct entry *e) {
    void *weights = NULL, *attr = NULL;
    int status = describe_tensors(e);
    if (!status) status = describe_weights(&weights, &e->key, true);
    if (!status) status = ONEDNN_CALL(primitive_attr_create, &attr);
    if (!status)
        status = ONEDNN_CALL(primitive_attr_set_scratchpad_mode, attr, ONEDNN_SCRATCHPAD_USER);
    if (!status) status = describe_primitive(e, weights, attr);
    if (attr) onednn.primitive_attr_destroy(attr);
    if (weights) onednn.memory_desc_destroy(weights);
    return status;
}

static enum sol_status make_entry(struct entry *e, const struct onednn_key *key) {
    e->key = *key;
    TRY(onednn_status(describe_all(e), "describing a kernel"));
    if (is_slow(e)) return fail(SOL_EUNSUPPORTED, "oneDNN has only its reference");
    e->weights = onednn.primitive_desc_query_md(e->desc, ONEDNN_QUERY_WEIGHTS, 0);
    e->scratchpad = onednn.primitive_desc_query_md(e->desc, ONEDNN_QUERY_SCRATCHPAD, 0);
    if (!e->weights || !e->scratchpad)
        return fail(SOL_EDEVICE, "oneDNN does not say how it wants its weights");
    e->is_made = true;
    return SOL_OK;
}

/* The least recently used entry without users; free entries come first. NULL while calls use all WAYS entries of the set. */
static struct entry *find_oldest(struct entry *set) {
    struct entry *oldest = NULL;
    for (int i = 0; i < WAYS; i++)
        if (!set[i].n_users && (!oldest || set[i].last_use < oldest->last_use)) oldest = &set[i];
    return oldest;
}

static struct entry *search(struct entry *set, const struct onednn_key *key) {
    for (int i = 0; i < WAYS; i++)
        if (set[i].is_made && !memcmp(&set[i].key, key, sizeof *key)) return &set[i];
    return NULL;
}

/* Finds or makes the entry. The caller holds the lock. It is released while all entries of the set have users, so that a fork
 * does not wait for these calls. */
static enum sol_status find_entry(const struct onednn_key *key, struct entry **out) {
    struct entry *set = table[hash_bytes(0, key, sizeof *key) % SETS], *e, *room = NULL;
    while (!(e = search(set, key)) && !(room = find_oldest(set))) lock_pause(&lock);
    if (!e) {
        clear_entry(room);
        enum sol_status status = make_entry(room, key);
        if (status) clear_entry(room);
        if (status) return status;
        e = room;
    }
    e->last_use = ++now;
    *out = e;
    return SOL_OK;
}

const char *onednn_check(const struct onednn_key *key, struct onednn_facts *out) {
    struct entry *e = NULL;
    lock_acquire(&lock);
    enum sol_status status = find_entry(key, &e);
    if (!status) {
        out->packed_size = onednn.memory_desc_get_size(e->weights);
        out->scratch_size = onednn.memory_desc_get_size(e->scratchpad);
    }
    lock_release(&lock);
    if (status == SOL_ENOMEM) return "oneDNN has no memory";
    return status ? "oneDNN has no fast kernel for it" : NULL;
}

/* ---- Uses ---- */

static int add_arg(struct onednn_use *use, int name, const void *desc) {
    if (!desc || !onednn.memory_desc_get_size(desc)) return ONEDNN_SUCCESS;
    void *memory = NULL;
    int status = ONEDNN_CALL(memory_create, &memory, desc, onednn.engine, NULL);
    if (!status) use->arg[use->n_args++] = (struct onednn_arg){name, memory};
    return status;
}

static int make_args(struct onednn_use *use, const struct entry *e) {
    int status = ONEDNN_CALL(stream_create, &use->stream, onednn.engine, ONEDNN_IN_ORDER);
    if (!status) status = add_arg(use, ONEDNN_SRC, e->x);
    if (!status) status = add_arg(use, ONEDNN_WEIGHTS, e->weights);
    if (!status) status = add_arg(use, ONEDNN_BIAS, e->bias);
    if (!status) status = add_arg(use, ONEDNN_DST, e->y);
    if (!status) status = add_arg(use, ONEDNN_SCRATCHPAD, e->scratchpad);
    return status;
}

/* Makes a use with a stream and memory objects of its own: threads may run one primitive at the same time, but not with the
 * same stream or memory objects. */
static enum sol_status make_use(struct entry *e, struct onednn_use **out) {
    if (!e->primitive)
        TRY(onednn_status(ONEDNN_CALL(primitive_create, &e->primitive, e->desc),
                          "making a kernel"));
    struct onednn_use *use = mem_alloc(sizeof *use, 16);
    if (!use) return fail(SOL_ENOMEM, "no memory for a kernel of oneDNN");
    use->entry = e;
    int status = make_args(use, e);
    if (status) free_use(use);
    else *out = use;
    return onednn_status(status, "preparing a kernel");
}

enum sol_status onednn_take(const struct onednn_key *key, struct onednn_use **out) {
    struct entry *e = NULL;
    lock_acquire(&lock);
    enum sol_status status = find_entry(key, &e);
    if (!status && e->idle) {
        *out = e->idle;
        e->idle = e->idle->next;
    } else if (!status) {
        status = make_use(e, out);
    }
    if (!status) e->n_users++;
    lock_release(&lock);
    return status;
}

/* The use is kept for the next onednn_take with its key. */
void onednn_give_back(struct onednn_use *use) {
    if (!use) return;
    lock_acquire(&lock);
    use->next = use->entry->idle;
    use->entry->idle = use;
    use->entry->n_users--;
    lock_release(&lock);
}

static void *find_address(const struct onednn_tensors *t, int name) {
    const float *constant = name == ONEDNN_SRC       ? t->x
                            : name == ONEDNN_WEIGHTS ? t->packed
                            : name == ONEDNN_BIAS    ? t->bias
                                                     : NULL;
    return constant ? (void *)(uintptr_t)constant : name == ONEDNN_DST ? (void *)t->y : t->scratch;
}

enum sol_status onednn_execute(struct onednn_use *use, const struct onednn_tensors *tensors) {
    int status = ONEDNN_SUCCESS;
    for (int i = 0; i < use->n_args && !status; i++)
        status = ONEDNN_CALL(memory_set_data_handle, use->arg[i].memory,
                             find_address(tensors, use->arg[i].name));
    if (!status)
        status = ONEDNN_CALL(primitive_execute, use->entry->primitive, use->stream, use->n_args,
                             use->arg);
    return onednn_status(status, "running a kernel");
}

/* ---- Packing ---- */

static int reorder(void *stream, const void *from, const void *to, const float *weight,
                   float *packed) {
    void *desc = NULL, *primitive = NULL, *a = NULL, *b = NULL;
    int status = ONEDNN_CALL(reorder_primitive_desc_create, &desc, from, onednn.engine, to,
                             onednn.engine, NULL);
    if (!status) status = ONEDNN_CALL(primitive_create, &primitive, desc);
    if (!status)
        status = ONEDNN_CALL(memory_create, &a, from, onednn.engine, (void *)(uintptr_t)weight);
    if (!status) status = ONEDNN_CALL(memory_create, &b, to, onednn.engine, packed);
    struct onednn_arg args[] = {{ONEDNN_SRC, a}, {ONEDNN_DST, b}};
    if (!status) status = ONEDNN_CALL(primitive_execute, primitive, stream, COUNT(args), args);
    if (b) onednn.memory_destroy(b);
    if (a) onednn.memory_destroy(a);
    if (primitive) onednn.primitive_destroy(primitive);
    if (desc) onednn.primitive_desc_destroy(desc);
    return status;
}

enum sol_status onednn_pack(const struct onednn_key *key, const float *weight, float *packed) {
    struct onednn_use *use = NULL;
    void *from = NULL;
    TRY(onednn_take(key, &use));
    int status = describe_weights(&from, key, false);
    if (!status) status = reorder(use->stream, from, use->entry->weights, weight, packed);
    if (from) onednn.memory_desc_destroy(from);
    onednn_give_back(use);
    return onednn_status(status, "packing weights");
}

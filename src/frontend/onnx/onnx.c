/*
 * The ONNX frontend's public functions: they read a file into a model with the values of its parameters.
 *
 *   bytes -> proto_read -> onnx_check -> onnx_fix_shapes -> function_inline -> import_graph -> struct sol_onnx
 *
 * Everything that is read is in the arena of a struct sol_onnx. It also keeps the file's bytes, since tensors may point into them.
 */
#include "import.h"

#include <sol/onnx.h>
#include <string.h>

#define OLDEST_OPSET 6
#define NEWEST_OPSET 28
#define NEWEST_IR 14

struct sol_onnx {
    struct arena arena;
    char *file; /* the bytes of the file */
    struct sol_model *model;
    const void *const *params;
    int n_params, n_nodes;
};

void sol_onnx_free(struct sol_onnx *onnx) {
    if (!onnx) return;
    sol_model_free(onnx->model);
    arena_fini(&onnx->arena);
    mem_free(onnx->file);
    mem_free(onnx);
}

struct sol_model *sol_onnx_model(const struct sol_onnx *onnx) { return onnx->model; }

int sol_onnx_n_params(const struct sol_onnx *onnx) { return onnx->n_params; }

const void *const *sol_onnx_params(const struct sol_onnx *onnx) { return onnx->params; }

int sol_onnx_n_nodes(const struct sol_onnx *onnx) { return onnx->n_nodes; }

/* ---- Recognizing ONNX ---- */

/* The field numbers that a message may have, as bits: those of varints, and those with a length. */
struct known {
    uint32_t varints, bytes;
};
#define BIT(n) (UINT32_C(1) << (n))
static const struct known model_fields = {BIT(1) | BIT(5), BIT(2) | BIT(3) | BIT(4) | BIT(6) |
                                                               BIT(7) | BIT(8) | BIT(14) | BIT(20) |
                                                               BIT(25) | BIT(26)};
static const struct known graph_fields = {0, BIT(1) | BIT(2) | BIT(5) | BIT(10) | BIT(11) |
                                                 BIT(12) | BIT(13) | BIT(14) | BIT(15) | BIT(16)};

/* Removes the first field from `in` and returns its number; 0 when it is not one of `known`. If `in` is only the beginning of a
 * message, the content may be cut. */
static int take_known(struct bytes *in, const struct known *known, struct bytes *content) {
    uint64_t tag, value;
    if (wire_value(in, WIRE_VARINT, &tag) || tag >> 3 > 31) return 0;
    uint32_t fields = (tag & 7) == WIRE_BYTES    ? known->bytes
                      : (tag & 7) == WIRE_VARINT ? known->varints
                                                 : 0;
    if (!(fields >> (tag >> 3) & 1) || wire_value(in, WIRE_VARINT, &value)) return 0;
    size_t size = (tag & 7) != WIRE_BYTES ? 0 : value < in->size ? (size_t)value : in->size;
    *content = (struct bytes){in->at, size};
    *in = (struct bytes){in->at + size, in->size - size};
    return (int)(tag >> 3);
}

/* Checks only eight fields: text and other binary formats fail at the first one or two. It stops 12 bytes before the end, where a
 * tag (2 bytes) and a length (10) may be cut. */
static bool is_graph(struct bytes in) {
    struct bytes content;
    for (int i = 0; i < 8 && in.size > 12; i++)
        if (!take_known(&in, &graph_fields, &content)) return false;
    return true;
}

/* Usually some short fields come before the graph, in the order of their numbers; other orders are valid, too. */
bool sol_onnx_is_model(const void *bytes, size_t size) {
    struct bytes in = {bytes, bytes ? size : 0}, content;
    for (int field = -1; field && in.size;) {
        field = take_known(&in, &model_fields, &content);
        if (field == 7) return is_graph(content);
    }
    return false;
}

/* ---- Versions ---- */

static bool is_standard(const char *domain) {
    return !domain || !*domain || !strcmp(domain, "ai.onnx");
}

/* The opset of the standard operators, whose domain is "" or "ai.onnx"; 0 when the file has none. The versions of other domains
 * do not matter here. Some writers list a domain twice; two different versions are an error, since other runtimes disagree: some
 * use the first, others the last. */
static enum sol_status find_opset(const struct onnx_model *model, int64_t *out) {
    *out = 0;
    for (int i = 0; i < model->opsets.n; i++) {
        const struct onnx_opset *set = ITEM(model->opsets, struct onnx_opset, i);
        if (!is_standard(set->domain)) continue;
        if (set->version < 1)
            return fail(SOL_EINVAL, "opset %lld; they begin at 1", (long long)set->version);
        if (*out && *out != set->version)
            return fail(SOL_EINVAL, "two opsets, %lld and %lld", (long long)*out,
                        (long long)set->version);
        *out = set->version;
    }
    return SOL_OK;
}

static enum sol_status check_opset(const struct onnx_model *model, int64_t *out) {
    if (!model->opsets.n) return fail(SOL_EINVAL, "it has no opset");
    TRY(find_opset(model, out));
    if (!*out) *out = NEWEST_OPSET; /* the file declares only other domains */
    if (*out >= OLDEST_OPSET && *out <= NEWEST_OPSET) return SOL_OK;
    return fail(SOL_EUNSUPPORTED, "opset %lld; SOL knows %d to %d", (long long)*out, OLDEST_OPSET,
                NEWEST_OPSET);
}

enum sol_status onnx_check(const struct onnx_model *model, int64_t *opset) {
    if (model->ir_version < 1)
        return fail(SOL_EINVAL, "it is no ONNX model: IR version %lld",
                    (long long)model->ir_version);
    if (model->ir_version > NEWEST_IR)
        return fail(SOL_EUNSUPPORTED, "IR version %lld; SOL knows up to %d",
                    (long long)model->ir_version, NEWEST_IR);
    if (!model->graph) return fail(SOL_EINVAL, "it has no graph");
    return check_opset(model, opset);
}

/* With open rows or lengths, shapes that do not fit may only be unknown to fit: a session computes them as numbers. */
static enum sol_status import_all(struct import *im, const struct onnx_graph *graph) {
    enum sol_status status = import_graph(im, graph);
    if (status != SOL_EINVAL || !im->has_open_dims) return status;
    return fail(SOL_EUNSUPPORTED, "%s", arena_strdup(im->arena, sol_error()));
}

/* After an error `onnx` holds an incomplete model, which finish frees. Nodes are counted after inlining: a call of a function
 * counts as the nodes of the function. */
static enum sol_status import(struct sol_onnx *onnx, struct bytes file, const char *folder,
                              const struct sol_onnx_shape *shapes, int n) {
    struct onnx_model model;
    struct import im = {.arena = &onnx->arena, .folder = folder};
    TRY(proto_read(&onnx->arena, file, &model));
    TRY(onnx_check(&model, &im.opset));
    TRY(onnx_fix_shapes(&onnx->arena, model.graph, shapes, n));
    TRY(function_inline(&onnx->arena, &model));
    onnx->model = im.model = sol_model_new(model.graph->name ? model.graph->name : "onnx");
    if (!im.model) return SOL_ENOMEM;
    TRY(import_all(&im, model.graph));
    onnx->params = im.params.at;
    onnx->n_params = im.params.n;
    onnx->n_nodes = model.graph->nodes.n;
    return SOL_OK;
}

/* Frees `onnx` on failure. When memory runs out while reading, control jumps back to this function. `status` is volatile because
 * it is set after setjmp. */
static enum sol_status finish(struct sol_onnx *onnx, struct bytes file, const char *folder,
                              const struct sol_onnx_shape *shapes, int n, struct sol_onnx **out) {
    jmp_buf out_of_memory;
    volatile enum sol_status status;
    onnx->arena.boundary = &out_of_memory;
    if (setjmp(out_of_memory))
        status = fail(SOL_ENOMEM, "out of memory while reading an ONNX model");
    else status = import(onnx, file, folder, shapes, n);
    onnx->arena.boundary = NULL;
    if (status) sol_onnx_free(onnx);
    else *out = onnx;
    return status;
}

static struct sol_onnx *new_onnx(void) {
    struct sol_onnx *onnx = mem_alloc(sizeof *onnx, 64);
    if (onnx) arena_init(&onnx->arena);
    else (void)fail(SOL_ENOMEM, "no memory for an ONNX model");
    return onnx;
}

/* The bytes are copied, since tensors point into them as long as the model exists. */
enum sol_status sol_onnx_parse_shaped(const void *data, size_t size, const char *folder,
                                      const struct sol_onnx_shape *shapes, int n,
                                      struct sol_onnx **out) {
    if (!data && size) return fail(SOL_EINVAL, "there are no bytes");
    struct sol_onnx *onnx = new_onnx();
    if (!onnx) return SOL_ENOMEM;
    onnx->file = mem_realloc(NULL, size + 1);
    if (!onnx->file) {
        sol_onnx_free(onnx);
        return fail(SOL_ENOMEM, "no memory for an ONNX model of %zu bytes", size);
    }
    if (size) memcpy(onnx->file, data, size);
    return finish(onnx, (struct bytes){(const uint8_t *)onnx->file, size}, folder, shapes, n, out);
}

enum sol_status sol_onnx_parse(const void *data, size_t size, const char *folder,
                               struct sol_onnx **out) {
    return sol_onnx_parse_shaped(data, size, folder, NULL, 0, out);
}

/* The path up to its last slash; "." when there is none. Returns false when it does not fit. */
bool onnx_folder(const char *path, char out[4096]) {
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (n >= 4096) return false;
    memcpy(out, path, n);
    out[n] = 0;
    if (!n) memcpy(out, slash ? "/" : ".", 2);
    return true;
}

enum sol_status sol_onnx_read_shaped(const char *path, const struct sol_onnx_shape *shapes, int n,
                                     struct sol_onnx **out) {
    char folder[4096];
    size_t size;
    if (!path || !onnx_folder(path, folder)) return fail(SOL_EINVAL, "there is no such path");
    struct sol_onnx *onnx = new_onnx();
    if (!onnx) return SOL_ENOMEM;
    enum sol_status status = os_read_any(path, &onnx->file, &size); /* its message has the path */
    if (status) {
        sol_onnx_free(onnx);
        return status;
    }
    status =
        finish(onnx, (struct bytes){(const uint8_t *)onnx->file, size}, folder, shapes, n, out);
    if (status) fail_prefix("%.512s: ", path);
    return status;
}

enum sol_status sol_onnx_read(const char *path, struct sol_onnx **out) {
    return sol_onnx_read_shaped(path, NULL, 0, out);
}

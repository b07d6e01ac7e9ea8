/*
 * The device's compiler, and the kernels of SOL's own that it compiles when they are needed: those that move the pieces of packed copies
 * (run/pack.h).
 *
 *   ve_launch -> ve_prepare_pieces: text -> jit_build -> ve_load, once per open device and direction -> a launch like any other
 *
 * One thread moves all pieces, in their order, as a later piece may have the place of an earlier one.
 */
#include "device/ve/ve.h"

#include "jit/jit.h"

#include <string.h>

/* ---- The compiler ---- */

/* It asks a server for a license, and analyses more than gcc does. What is compiled with less optimization, as the limit for gcc is too
 * short, would compute one value at a time. */
const struct jit_choice ve_compiler = {.what = "compiler ncc",
                                       .variable = ENV_SOL_NCC,
                                       .usual = {"ncc", "/opt/nec/ve/bin/ncc"},
                                       .slowness = 10};

/* ncc reports each loop that it vectorizes, or not, unless it is told not to. By default it multiplies by reciprocals. */
#define NCC_FLAGS                                                                              \
    "-shared -fpic -std=gnu11 -O3 -fopenmp -fno-reciprocal-math -fdiag-vector=0 "              \
    "-fdiag-parallel=0 -fdiag-inline=0 -w"
/* Of compilers for a stand-in of libveda: gcc and clang for this machine. */
#define OTHER_FLAGS                                                                             \
    "-shared -fPIC -std=gnu11 -O3 -fopenmp -ffp-contract=fast -fno-math-errno "                 \
    "-fno-trapping-math -fno-strict-aliasing -w"

/* The first line of ncc's --version is "ncc (NCC) 3.1.0 ..". */
enum sol_status ve_compiler_flags(const char **out) {
    const char *path, *version;
    TRY(jit_compiler_of(&ve_compiler, &path, &version));
    *out = strstr(version, "NCC") ? NCC_FLAGS : OTHER_FLAGS;
    return SOL_OK;
}

/* ---- Pieces ---- */

#define TEXT(label, kernel, gather)                                                              \
    EMBED_TEXT(label, ".ascii \"#define SOL_KERNEL " kernel "\\n#define GATHER " #gather "\\n\"\n" \
               EMBED_FILE("src/device/ve/pieces.h") EMBED_FILE("src/device/ve/entry.h"))
TEXT(ve_scatter_text, "sol_scatter", 0);
TEXT(ve_gather_text, "sol_gather", 1);

static enum sol_status load(struct ve *ve, const char *text, const char *symbol, uint64_t *code) {
    struct jit_loader loader = jit_images;
    struct jit_module *module;
    const char *flags;
    loader.compiler = &ve_compiler;
    TRY(ve_compiler_flags(&flags));
    TRY(jit_build(&loader, flags, &text, 1, false, &module, NULL));
    const struct jit_image *image = jit_object(module, 0);
    enum sol_status status = ve_load(ve, image->data, image->size, symbol, code);
    jit_release(module);
    return status;
}

static enum sol_status find_kernel(struct ve *ve, bool gather, uint64_t *code) {
    struct ve_pieces *p = &ve->pieces[gather];
    enum sol_status status = SOL_OK;
    if (lock_begin(&ve->lock, &p->state)) {
        status = load(ve, gather ? ve_gather_text : ve_scatter_text,
                      gather ? "sol_gather_ve" : "sol_scatter_ve", &p->code);
        lock_end(&ve->lock, &p->state, !status);
    }
    *code = p->code;
    return status;
}

enum sol_status ve_prepare_pieces(struct ve *ve, struct launch *l) {
    if (l->kind != LAUNCH_SCATTER && l->kind != LAUNCH_GATHER) return SOL_OK;
    if (l->n_ptr != l->n_arg + 1)
        return fail(SOL_EINVAL, "ve %d: a size for each piece", ve->number);
    l->n_tasks = l->n_arg;
    return find_kernel(ve, l->kind == LAUNCH_GATHER, &l->code);
}

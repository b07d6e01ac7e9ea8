/*
 * Pieces of packed copies (run/pack.h), which a kernel of SOL's own moves.
 *
 *   ve_launch -> ve_prepare_pieces: text -> jit_build -> ve_load, once per open device and direction -> a launch like any other
 *
 * One thread moves all pieces, in their order, as a later piece may have the place of an earlier one.
 */
#include "device/ve/ve.h"

#define TEXT(label, kernel, gather)                                                      \
    extern const char label[];                                                           \
    __asm__(".section .rodata." #label ",\"a\"\n" #label ":\n"                           \
            ".ascii \"#define SOL_KERNEL " kernel "\\n#define GATHER " #gather "\\n\"\n"   \
            ".incbin \"src/device/ve/pieces.h\"\n.incbin \"src/device/ve/entry.h\"\n"      \
            ".byte 0\n.previous\n");
TEXT(ve_scatter_text, "sol_scatter", 0)
TEXT(ve_gather_text, "sol_gather", 1)

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

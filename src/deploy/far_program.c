/*
 * The part of a program that only far devices need, as C: kernels that the device's compiler has compiled, and constants.
 *
 *   struct far_program -> a file with all images and constants, which the assembler includes -> library_far
 *                      -> far_kernels, constants, far, to which program.c's text refers
 *
 * The library contains src/run/far.c and the device's files as text of sources.c, so a device can be deployed if it has rows there.
 */
#include "deploy/deploy.h"
#include "run/far.h"

#include <string.h>

bool deploy_has_files(const char *device) {
    for (const struct deploy_source *s = deploy_sources; s->name; s++)
        if (!strcmp(s->part, device)) return true;
    return false;
}

/* ---- Packed parameters ---- */

enum sol_status deploy_fetch_packed(struct deployment *d) {
    const size_t size = d->weights->packed.offset[d->program->n_packed];
    return far_fetch_packed(d->weights, arena_alloc(d->arena, size + 1));
}

/* ---- Printing ---- */

struct far_texts {
    struct text images;         /* the file */
    struct text kernels, names; /* rows of far_kernels; a struct kernel for each of them */
    int n;
};

/* Images and constants begin at multiples of 64 bytes. */
static size_t add_image(struct text *images, const void *at, size_t size) {
    static const char zeros[64];
    const size_t begin = images->size;
    text_add_raw(images, at, size);
    text_add_raw(images, zeros, (size_t)round_up((int64_t)size, 64) - size);
    return begin;
}

static void add_kernel(void *user, const struct kernel *kernel) {
    struct far_texts *texts = user;
    const struct far_kernel *far = kernel->far;
    const size_t begin = add_image(&texts->images, far->image, far->size);
    text_add(&texts->kernels, " {library_far + %zu, %zu, \"%s\", 0},\n", begin, far->size,
             far->symbol);
    text_add(&texts->names, "static const struct kernel k_%s = {.far = &far_kernels[%d]};\n",
             far->symbol, texts->n++);
}

static void print_constants(const struct sol_program *p, struct text *text, struct text *images) {
    text_add(text, "static const struct constant constants[] = {\n");
    for (int i = 0; i < p->n_constants; i++)
        text_add(text, " {library_far + %zu, %zu},\n",
                 add_image(images, p->constant[i].at, p->constant[i].size), p->constant[i].size);
    text_add(text, " {0}};\n");
}

enum sol_status deploy_print_far(struct deployment *d, struct text *text) {
    struct far_texts texts = {.n = 0};
    text_init(&texts.images, d->arena);
    text_init(&texts.kernels, d->arena);
    text_init(&texts.names, d->arena);
    deploy_visit_kernels(d, add_kernel, &texts);
    text_add(text, "#include \"run/far.h\"\n");
    deploy_print_included(d, text, "far", "library_far");
    text_add(text, "static struct far_kernel far_kernels[] = {\n%s {0}};\n%s", texts.kernels.at,
             texts.names.at);
    print_constants(d->program, text, &texts.images);
    text_add(text,
             "static size_t constant_offset[%d];\nextern const struct target %s_target;\n"
             "static struct far_program far = {.target = &%s_target, .n_kernels = %d, "
             ".kernel = far_kernels, .constant_offset = constant_offset};\n",
             d->program->n_constants + 1, d->far->name, d->far->name, texts.n);
    return deploy_write_text(d, "far", &texts.images);
}

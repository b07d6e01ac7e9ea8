/*
 * Generated kernels of any device that compiles them by src/jit.
 *
 *   dfp_emit, dfp_make_parts -> device_queue_kernel -> device_link -> kernel->compiled
 *
 * Equal texts are compiled once. Without a C compiler, DFP's interpreter runs the same loop nests, and the log says so once; a far
 * device cannot be used.
 * The queue is build->device.
 */
#include "device/device.h"
#include "dfp/dialect.h"
#include "run/far.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Kernels of one text. */
struct queued_text {
    const char *text, *comment;
    bool is_complete;             /* without a prelude */
    VEC(struct kernel *) kernels; /* in the program */
};
struct kernel_queue {
    VEC(struct queued_text) texts;
    const char *libraries; /* that texts call: struct jit_loader; NULL: none */
};

/* Adds its words, each library's once. */
static void add_library(struct build *b, struct kernel_queue *queue, const char *words) {
    if (!words) return;
    if (!queue->libraries) queue->libraries = words;
    else if (!strstr(queue->libraries, words))
        queue->libraries = arena_printf(b->keep, "%s %s", queue->libraries, words);
}

void device_queue_kernel(struct build *b, const struct dfp_parts *parts) {
    if (!b->device) b->device = ARENA_NEW(b->arena, struct kernel_queue);
    struct kernel_queue *queue = b->device;
    for (int i = 0; i < queue->texts.n; i++) {
        if (strcmp(queue->texts.at[i].text, parts->text)) continue;
        VEC_PUSH(b->arena, &queue->texts.at[i].kernels, parts->kernel);
        return;
    }
    struct queued_text queued = {
        .text = parts->text, .comment = parts->comment, .is_complete = parts->is_complete};
    add_library(b, queue, parts->library);
    VEC_PUSH(b->arena, &queued.kernels, parts->kernel);
    VEC_PUSH(b->arena, &queue->texts, queued);
}

/* The text for the compiler: the kernel's name, prelude, kernel, entry of a far device. */
static const char *complete_text(struct build *b, const struct queued_text *w, const char *entry) {
    struct text text;
    text_init(&text, b->arena);
    text_add(&text, "#define SOL_KERNEL %s\n", dfp_symbol(b->arena, w->text));
    const char *const *prelude = b->plan->caps.dialect->prelude;
    for (; !w->is_complete && *prelude; prelude++) text_add_raw(&text, *prelude, strlen(*prelude));
    if (strstr(w->text, DFP_NEEDS_TYPES)) text_add_raw(&text, dfp_types, strlen(dfp_types));
    text_add_raw(&text, w->text, strlen(w->text));
    text_add_raw(&text, entry, strlen(entry));
    return text.at;
}

/* Writes ./.sol/<name>/<symbol>.c. A failure is only logged, as the file is for debugging. */
static void keep_text(const char *name, const char *symbol, const char *text) {
    char path[512];
    name = name && !strchr(name, '/') && name[0] != '.' ? name : "model";
    mkdir(".sol", 0777);
    snprintf(path, sizeof path, ".sol/%.200s", name);
    mkdir(path, 0777);
    snprintf(path, sizeof path, ".sol/%.200s/%s.c", name, symbol);
    FILE *file = fopen(path, "we");
    if (!file || fputs(text, file) < 0) log_write(LOG_WARN, "cannot write %s", path);
    if (file) fclose(file);
}

/* Shows generated kernels: SOL_DEBUG=kernels prints them, the option `debug` writes them to ./.sol. */
static void show_kernels(struct build *b) {
    struct kernel_queue *queue = b->device;
    bool print = env_has(ENV_SOL_DEBUG, "kernels");
    for (int i = 0; i < queue->texts.n && (print || b->options->debug); i++) {
        const struct queued_text *w = &queue->texts.at[i];
        const char *text =
            arena_printf(b->arena, "/* %s\n * %s */\n%s", dfp_symbol(b->arena, w->text),
                         w->comment ? w->comment : "", w->text);
        if (print) fprintf(stderr, "%s\n", text);
        if (b->options->debug) keep_text(b->options->name, dfp_symbol(b->arena, w->text), text);
    }
}

static void release_module(void *handle) { jit_release(handle); }

static void resolve_kernels(struct build *b, struct jit_module *module) {
    struct kernel_queue *queue = b->device;
    for (int i = 0; i < queue->texts.n; i++) {
        struct queued_text *w = &queue->texts.at[i];
        void *address = jit_find(module, dfp_symbol(b->arena, w->text));
        for (int k = 0; k < w->kernels.n; k++)
            memcpy(&w->kernels.at[k]->compiled, &address, sizeof address);
    }
}

/* If the compiler fails, the interpreter runs the kernels, slower: on the host, so not those of a far device. */
static enum sol_status interpret_instead(const struct build *b) {
    if (b->convert) {
        fail_prefix("the kernels of this device must be compiled: ");
        return SOL_ETOOL;
    }
    LOG_ONCE(LOG_WARN, "generated kernels are interpreted, which is slower: %s", sol_error());
    return SOL_OK;
}

static void report_effort(int n, const struct jit_stats *stats) {
    if (env_has(ENV_SOL_DEBUG, "time"))
        fprintf(
            stderr,
            "%d generated kernels, %d compiled (%d as long ones): %.2f s of processor time of the C compiler, "
            "%.2f s for one\n",
            n, stats->n_compiled, stats->n_quick, stats->processor_s, stats->longest_s);
}

/* Compiles what is queued. */
static enum sol_status build_module(struct build *b, const struct jit_loader *loader,
                                    const char *flags, const char *entry,
                                    struct jit_module **module) {
    struct kernel_queue *queue = b->device;
    show_kernels(b);
    const char **texts = ARENA_ARRAY(b->arena, const char *, queue->texts.n);
    for (int i = 0; i < queue->texts.n; i++)
        texts[i] = complete_text(b, &queue->texts.at[i], entry);
    struct jit_stats stats = {0};
    enum sol_status status =
        jit_build(loader, flags, texts, queue->texts.n, b->options->debug, module, &stats);
    b->program->n_compiled = stats.n_compiled;
    b->program->compiler_s = stats.processor_s;
    report_effort(queue->texts.n, &stats);
    if (status) return status;
    b->program->code = *module;
    b->program->release_code = release_module;
    return SOL_OK;
}

/* Kernels that stay text are interpreted. */
static enum sol_status refuse_text(const struct build *b) {
    return b->convert ? fail(SOL_EUNSUPPORTED, "kernels of this device are always compiled")
                      : SOL_OK;
}

enum sol_status device_link(struct build *b, const struct jit_loader *loader, const char *flags) {
    struct jit_module *module = NULL;
    if (!b->device) return SOL_OK;
    if (b->options->keep_source) return refuse_text(b);
    enum sol_status status = build_module(b, loader, flags, "", &module);
    if (status == SOL_ENOMEM) return status;
    if (status) return interpret_instead(b);
    resolve_kernels(b, module);
    return SOL_OK;
}

/* ---- Far devices ---- */

/* The module refers to its loader, so it lives as long as the program. */
static const struct jit_loader *image_loader(struct build *b, const struct jit_choice *compiler) {
    const struct kernel_queue *queue = b->device;
    struct jit_loader *loader = ARENA_NEW(b->keep, struct jit_loader);
    *loader = jit_images;
    loader->compiler = compiler;
    loader->libraries = queue->libraries;
    return loader;
}

static struct far_kernel *list_images(struct build *b, const struct jit_module *module,
                                      const char *ending) {
    struct kernel_queue *queue = b->device;
    struct far_kernel *all = ARENA_ARRAY(b->keep, struct far_kernel, queue->texts.n);
    for (int i = 0; i < queue->texts.n; i++) {
        const struct queued_text *w = &queue->texts.at[i];
        const struct jit_image *image = jit_object(module, i);
        all[i] = (struct far_kernel){
            .image = image->data,
            .size = image->size,
            .symbol = arena_printf(b->keep, "%s%s", dfp_symbol(b->arena, w->text), ending)};
        for (int k = 0; k < w->kernels.n; k++) w->kernels.at[k]->far = &all[i];
    }
    return all;
}

enum sol_status device_link_far(struct build *b, const struct far_tools *tools) {
    struct kernel_queue *queue = b->device;
    struct jit_module *module = NULL;
    struct far_kernel *all = NULL;
    if (b->options->keep_source) return refuse_text(b);
    if (queue) {
        TRY(build_module(b, image_loader(b, tools->compiler), tools->flags,
                         tools->entry ? tools->entry : "", &module));
        all = list_images(b, module, tools->entry ? tools->ending : "");
    }
    far_attach(b->program, tools->target, b->options->device_number, b->constants.n,
               queue ? queue->texts.n : 0, all);
    return SOL_OK;
}

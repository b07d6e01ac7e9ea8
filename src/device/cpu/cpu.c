/*
 * The device of this machine's CPU (`x86`, `arm64`, or `cpu` on other architectures): own kernels per instruction set, and
 * generated C.
 *
 *   cluster -> DNN: dnn/emit.c | COPY, GATHER: plan/build.c | DFP: C text, collected -> link: compiled, or interpreted
 *
 * Equal texts are compiled once. Without a C compiler, DFP's interpreter runs the same loop nests; the log says so once.
 */
#include "device/cpu/cpu.h"

#include "device/cpu/tune.h"
#include "device/device.h"
#include "dfp/dfp.h"
#include "dfp/step.h"
#include "dnn/emit.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#ifdef __aarch64__
#include <sys/auxv.h>
#endif

/* Kernels of one text, to be compiled by link_kernels. */
struct waiting {
    const char *text, *comment;
    VEC(struct kernel *) kernels; /* in the program */
};
struct jit_queue {
    VEC(struct waiting) kernels;
};

/* ---- Instruction set ---- */

bool cpu_has(const struct dnn_isa *isa) {
#ifdef __x86_64__
    if (!strcmp(isa->name, "avx512")) return CPU_HAS_AVX512;
    if (!strcmp(isa->name, "avx2")) return CPU_HAS_AVX2;
#elif defined __aarch64__
    /* Bits of HWCAP for arm64: vectors and floating point. */
    if (!strcmp(isa->name, "neon"))
        return (getauxval(AT_HWCAP) & (HWCAP_ASIMD | HWCAP_FP)) == (HWCAP_ASIMD | HWCAP_FP);
#endif
    return !strcmp(isa->name, "generic");
}

/* Names of all instruction sets, or of those that this machine has, best first. */
static const char *list_isas(bool all, char out[128]) {
    int n = 0;
    for (const struct dnn_isa *isa = dnn_isas; isa->name && n < 128; isa++)
        if (all || cpu_has(isa))
            n += snprintf(out + n, 128 - (size_t)n, n ? ", %s" : "%s", isa->name);
    return out;
}

const struct dnn_isa *cpu_isa(void) {
    const char *wanted = env_get(ENV_SOL_CPU);
    const struct dnn_isa *best = NULL;
    char names[128];
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++) {
        if (!cpu_has(isa)) continue;
        if (wanted && !strcmp(wanted, isa->name)) return isa;
        if (!best) best = isa;
    }
    if (wanted) env_refuse(ENV_SOL_CPU, list_isas(false, names));
    return best;
}

static const char *say_unavailable(void) { return NULL; }

/* The instruction set to compile for; options->cpu may name one that this machine lacks. NULL with a message: unknown name. */
static const struct dnn_isa *isa_of(const struct sol_options *options) {
    if (!options->cpu) return cpu_isa();
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++)
        if (!strcmp(options->cpu, isa->name)) return isa;
    char names[128];
    (void)fail(SOL_EINVAL, "there are no kernels for the instruction set \"%.32s\": it can be %s",
               options->cpu, list_isas(true, names));
    return NULL;
}

static int get_lanes(const struct sol_options *options) {
    const struct dnn_isa *isa = isa_of(options);
    return isa ? isa->lanes : 0;
}

static const char *name_isa(const struct sol_options *options) { return isa_of(options)->name; }

/* ---- DFP steps ---- */

static void queue_text(struct build *b, const struct dfp_parts *parts) {
    struct jit_queue *queue = b->device;
    for (int i = 0; i < queue->kernels.n; i++) {
        if (strcmp(queue->kernels.at[i].text, parts->text)) continue;
        VEC_PUSH(b->arena, &queue->kernels.at[i].kernels, parts->kernel);
        return;
    }
    struct waiting waiting = {.text = parts->text, .comment = parts->comment};
    VEC_PUSH(b->arena, &waiting.kernels, parts->kernel);
    VEC_PUSH(b->arena, &queue->kernels, waiting);
}

static enum sol_status emit_dfp(struct build *b, const struct cluster *cluster) {
    struct dfp_parts parts = {0};
    TRY(dfp_emit(b, cluster, &parts));
    queue_text(b, &parts);
    return SOL_OK;
}

/* No timing if this machine cannot run the kernels. */
static dnn_tune *tune_of(const struct sol_options *options) {
    return options->no_autotune || !cpu_has(isa_of(options)) ? NULL : cpu_tune;
}

static enum sol_status emit_dnn(struct build *b, const struct cluster *cluster) {
    struct dfp_parts parts = {0};
    const struct dnn_isa *isa = isa_of(b->options);
    dnn_tune *tune = tune_of(b->options);
    if (!cluster->dnn->epilogue) return dnn_emit(b, cluster, isa, tune, NULL);
    TRY(dfp_make_parts(b, cluster->dnn->epilogue, &parts));
    queue_text(b, &parts);
    struct step epilogue = {.data = parts.kernel,
                            .n_ptr = parts.n_ptr,
                            .n_arg = parts.n_arg,
                            .ptr = parts.ptr,
                            .arg = parts.arg,
                            .scratch_size = parts.scratch_size};
    return dnn_emit(b, cluster, isa, tune, &epilogue);
}

static enum sol_status emit(struct build *b, const struct cluster *cluster) {
    if (!b->device) b->device = ARENA_NEW(b->arena, struct jit_queue);
    switch (cluster->module) {
    case MODULE_DNN: return emit_dnn(b, cluster);
    case MODULE_DFP: return emit_dfp(b, cluster);
    case MODULE_COPY: return build_copy(b, cluster);
    case MODULE_GATHER: return build_gather(b, cluster);
    case MODULE_VIEW: break;
    }
    return SOL_OK;
}

/* ---- Linking ---- */

static void *open_object(const char *path) {
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) (void)fail(SOL_ETOOL, "%s", dlerror());
    return object;
}

static void close_object(void *object) { (void)dlclose(object); }

const struct jit_loader cpu_objects = {open_object, dlsym, close_object};

/* The text for the compiler: the kernel's name, prelude, kernel. */
static const char *complete_text(struct build *b, const struct waiting *w) {
    struct text text;
    text_init(&text, b->arena);
    text_add(&text, "#define SOL_KERNEL %s\n", dfp_symbol(b->arena, w->text));
    text_add_raw(&text, dfp_prelude, strlen(dfp_prelude));
    text_add_raw(&text, w->text, strlen(w->text));
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
    struct jit_queue *queue = b->device;
    bool print = env_has(ENV_SOL_DEBUG, "kernels");
    for (int i = 0; i < queue->kernels.n && (print || b->options->debug); i++) {
        const struct waiting *w = &queue->kernels.at[i];
        const char *text =
            arena_printf(b->arena, "/* %s\n * %s */\n%s", dfp_symbol(b->arena, w->text),
                         w->comment ? w->comment : "", w->text);
        if (print) fprintf(stderr, "%s\n", text);
        if (b->options->debug) keep_text(b->options->name, dfp_symbol(b->arena, w->text), text);
    }
}

static void release_module(void *handle) { jit_release(handle); }

static void resolve_kernels(struct build *b, struct jit_module *module) {
    struct jit_queue *queue = b->device;
    for (int i = 0; i < queue->kernels.n; i++) {
        struct waiting *w = &queue->kernels.at[i];
        void *address = jit_find(module, dfp_symbol(b->arena, w->text));
        for (int k = 0; k < w->kernels.n; k++)
            memcpy(&w->kernels.at[k]->compiled, &address, sizeof address);
    }
}

/* If the compiler fails, the interpreter runs the kernels, slower. */
static enum sol_status interpret_instead(void) {
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

static enum sol_status link_kernels(struct build *b) {
    struct jit_queue *queue = b->device;
    if (!queue || !queue->kernels.n || b->options->keep_source) return SOL_OK;
    show_kernels(b);
    const char **texts = ARENA_ARRAY(b->arena, const char *, queue->kernels.n);
    for (int i = 0; i < queue->kernels.n; i++) texts[i] = complete_text(b, &queue->kernels.at[i]);
    const char *flags = arena_printf(
        b->arena, CPU_OBJECT_FLAGS "-std=gnu99 " CPU_KERNEL_FLAGS " %s", isa_of(b->options)->flags);
    struct jit_module *module = NULL;
    struct jit_stats stats = {0};
    enum sol_status status =
        jit_build(&cpu_objects, flags, texts, queue->kernels.n, b->options->debug, &module, &stats);
    b->program->n_compiled = stats.n_compiled;
    b->program->compiler_s = stats.processor_s;
    report_effort(queue->kernels.n, &stats);
    if (status == SOL_ENOMEM) return status;
    if (status) return interpret_instead();
    b->program->code = module;
    b->program->release_code = release_module;
    resolve_kernels(b, module);
    return SOL_OK;
}

const struct device device_cpu = {
    .name = CPU_NAME,
    .what = "CPU, own kernels and generated C",
    .unavailable = say_unavailable,
    .variant = name_isa,
    .lanes = get_lanes,
    .supports_anchor = dnn_supports,
    .refuse_fusion = dfp_refuse,
    .emit = emit,
    .link = link_kernels,
};

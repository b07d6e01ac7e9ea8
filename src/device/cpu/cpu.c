/*
 * The devices `x86` and `arm64` (and, by the same text, any CPU that gcc knows): own kernels by instruction set,
 * generated C by JIT.
 *
 *   cluster -> DNN: dnn/emit.c | COPY: plan/build.c | DFP: C text, collected -> link: compiled, or interpreted
 *
 * Equal texts are compiled once. Without a C compiler the same nests run through DFP's interpreter, said once in the log.
 */
#include "device/cpu/cpu.h"

#include "device/cpu/jit.h"
#include "device/cpu/tune.h"
#include "device/device.h"
#include "dfp/dfp.h"
#include "dnn/emit.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#ifdef __aarch64__
#include <sys/auxv.h>
#endif

typedef void kernel(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin,
                    int64_t end);

/* What a DFP step calls: compiled code, or the nest to interpret. In the program's arena. */
struct entry {
    kernel *compiled;
    const void *code;
};

/* Kernels waiting for the compiler, by text. */
struct waiting {
    const char *text, *comment;
    VEC(struct entry *) entries;
};
struct jit_queue {
    VEC(struct waiting) kernels;
};

/* ---- Instruction set ---- */

bool cpu_has(const struct dnn_isa *isa) {
#ifdef __x86_64__
    if (!strcmp(isa->name, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    if (!strcmp(isa->name, "avx2"))
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#elif defined __aarch64__
    /* Bits of the kernel's HWCAP for arm64: vectors, and the floating point that they come with. */
    if (!strcmp(isa->name, "neon"))
        return (getauxval(AT_HWCAP) & (HWCAP_ASIMD | HWCAP_FP)) == (HWCAP_ASIMD | HWCAP_FP);
#endif
    return !strcmp(isa->name, "generic");
}

const struct dnn_isa *cpu_isa(void) {
    const char *wanted = env_get(ENV_SOL_CPU);
    const struct dnn_isa *best = NULL;
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++) {
        if (!cpu_has(isa)) continue;
        if (wanted && !strcmp(wanted, isa->name)) return isa;
        if (!best) best = isa;
    }
    if (wanted)
        LOG_ONCE(LOG_WARN, "SOL_CPU=%s is not what this machine has; using %s", wanted, best->name);
    return best;
}

/* Flags of generated kernels: the same instruction set as the kernels that were compiled ahead. */
static const char *isa_flags(const struct dnn_isa *isa) {
    if (!strcmp(isa->name, "avx512"))
        return "-mavx512f -mavx512vl -mavx512dq -mavx512bw -mavx2 -mfma -mprefer-vector-width=512 -DLANES=16";
    if (!strcmp(isa->name, "avx2")) return "-mavx2 -mfma -DLANES=8";
    return "-DLANES=4";
}

static const char *say_unavailable(void) { return NULL; }
static int get_lanes(void) { return cpu_isa()->lanes; }

/* ---- DFP steps ---- */

static int64_t count_tasks(const struct step *step, const int64_t *arg) {
    return arg[step->n_arg - 1];
}

static void run_entry(const void *data, void *const *ptr, const int64_t *arg, void *scratch,
                      int64_t begin, int64_t end) {
    const struct entry *entry = data;
    if (entry->compiled) entry->compiled(ptr, arg, scratch, begin, end);
    else dfp_interpret(entry->code, ptr, arg, scratch, begin, end);
}

static void run_step(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                     int64_t begin, int64_t end) {
    run_entry(step->data, ptr, arg, scratch, begin, end);
}

static void queue_text(struct build *b, const struct dfp_kernel *k, struct entry *entry) {
    struct jit_queue *queue = b->device;
    for (int i = 0; i < queue->kernels.n; i++) {
        if (strcmp(queue->kernels.at[i].text, k->text)) continue;
        VEC_PUSH(b->arena, &queue->kernels.at[i].entries, entry);
        return;
    }
    struct waiting waiting = {.text = k->text, .comment = k->comment};
    VEC_PUSH(b->arena, &waiting.entries, entry);
    VEC_PUSH(b->arena, &queue->kernels, waiting);
}

/* A kernel as parts of a step: the nest, what it points to, and its sizes. */
struct parts {
    struct dfp_kernel kernel;
    struct entry *entry;
    struct buffer_ref *ptr;
    struct size *arg; /* room for one more */
};

static enum sol_status generate(struct build *b, const struct cluster *cluster, struct parts *out) {
    struct dfp_kernel *k = &out->kernel;
    TRY(dfp_generate(b->arena, cluster, b->plan->view, b->plan->lanes, k));
    out->entry = ARENA_NEW(b->keep, struct entry);
    out->entry->code = arena_copy(b->keep, k->code, k->code_size);
    queue_text(b, k, out->entry);
    out->ptr = ARENA_ARRAY(b->arena, struct buffer_ref, k->n_ptr + 1);
    for (int i = 0; i < k->n_ptr; i++) out->ptr[i] = build_ref(b, k->ptr[i]);
    out->arg = ARENA_ARRAY(b->arena, struct size, k->n_arg + 1);
    memcpy(out->arg, k->arg, sizeof *out->arg * (size_t)k->n_arg);
    return SOL_OK;
}

static enum sol_status emit_dfp(struct build *b, const struct cluster *cluster) {
    struct parts parts = {0};
    TRY(generate(b, cluster, &parts));
    struct dfp_kernel k = parts.kernel;
    parts.arg[k.n_arg] = k.tasks; /* the kernel does not read it; count_tasks does */
    struct step step = {.run = run_step,
                        .n_tasks = count_tasks,
                        .data = parts.entry,
                        .n_ptr = k.n_ptr,
                        .ptr = parts.ptr,
                        .n_arg = k.n_arg + 1,
                        .arg = parts.arg,
                        .scratch_size = k.scratch_size,
                        .flops = size_scale(k.tasks, (int64_t)k.flops_per_task),
                        .bytes = build_bytes(cluster),
                        .name = "nest",
                        .module = "DFP",
                        .layers = build_describe(b, cluster)};
    return build_step(b, cluster->prepare, &step);
}

static enum sol_status emit_dnn(struct build *b, const struct cluster *cluster) {
    struct parts parts = {0};
    dnn_tune *tune = b->options->no_autotune ? NULL : cpu_tune;
    if (!cluster->epilogue) return dnn_emit(b, cluster, cpu_isa(), tune, NULL);
    TRY(generate(b, cluster->epilogue, &parts));
    struct dnn_epilogue epilogue = {.run = run_entry,
                                    .data = parts.entry,
                                    .n_ptr = parts.kernel.n_ptr,
                                    .n_arg = parts.kernel.n_arg,
                                    .ptr = parts.ptr,
                                    .arg = parts.arg,
                                    .scratch_size = parts.kernel.scratch_size};
    return dnn_emit(b, cluster, cpu_isa(), tune, &epilogue);
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

static const char *symbol_of(struct build *b, const struct waiting *w) {
    return arena_printf(b->arena, "sol_kernel_%016llx",
                        (unsigned long long)hash_bytes(0, w->text, strlen(w->text)));
}

/* The text as the compiler gets it: prelude, name, kernel. */
static const char *complete_text(struct build *b, const struct waiting *w) {
    struct text text;
    text_init(&text, b->arena);
    text_add(&text, "#define SOL_KERNEL %s\n", symbol_of(b, w));
    text_add_raw(&text, dfp_prelude, strlen(dfp_prelude));
    text_add_raw(&text, w->text, strlen(w->text));
    return text.at;
}

/* Writes ./.sol/<name>/<symbol>.c. Only read by people, so a failure is said and nothing more. */
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

/* What people may want to read: SOL_DEBUG=kernels prints it, compiler::debug keeps it in ./.sol. */
static void show_kernels(struct build *b) {
    struct jit_queue *queue = b->device;
    bool print = env_has(ENV_SOL_DEBUG, "kernels");
    for (int i = 0; i < queue->kernels.n && (print || b->options->debug); i++) {
        const struct waiting *w = &queue->kernels.at[i];
        const char *text = arena_printf(b->arena, "/* %s\n * %s */\n%s", symbol_of(b, w),
                                        w->comment ? w->comment : "", w->text);
        if (print) fprintf(stderr, "%s\n", text);
        if (b->options->debug) keep_text(b->options->name, symbol_of(b, w), text);
    }
}

static void release_module(void *handle) { jit_release(handle); }

static void resolve_entries(struct build *b, struct jit_module *module) {
    struct jit_queue *queue = b->device;
    for (int i = 0; i < queue->kernels.n; i++) {
        struct waiting *w = &queue->kernels.at[i];
        void *address = jit_find(module, symbol_of(b, w));
        for (int k = 0; k < w->entries.n; k++)
            memcpy(&w->entries.at[k]->compiled, &address, sizeof address);
    }
}

/* A kernel that the compiler cannot build still runs: the interpreter does all that the compiler does, slower. */
static enum sol_status interpret_instead(void) {
    LOG_ONCE(LOG_WARN, "generated kernels are interpreted, which is slower: %s", sol_error());
    return SOL_OK;
}

static enum sol_status link_kernels(struct build *b) {
    struct jit_queue *queue = b->device;
    if (!queue || !queue->kernels.n) return SOL_OK;
    show_kernels(b);
    const char **texts = ARENA_ARRAY(b->arena, const char *, queue->kernels.n);
    for (int i = 0; i < queue->kernels.n; i++) texts[i] = complete_text(b, &queue->kernels.at[i]);
    const char *flags =
        arena_printf(b->arena,
                     "-std=gnu99 -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math "
                     "-fno-strict-aliasing -w %s",
                     isa_flags(cpu_isa()));
    VEC_PUSH(b->keep, &b->program->modules, ((struct program_module){NULL, release_module}));
    struct jit_module *module = NULL;
    enum sol_status status = jit_build("", texts, queue->kernels.n, flags, b->options->debug,
                                       &module, &b->program->n_compiled);
    if (status == SOL_ENOMEM) return status;
    if (status) return interpret_instead();
    b->program->modules.at[b->program->modules.n - 1].handle = module;
    resolve_entries(b, module);
    return SOL_OK;
}

const struct device device_cpu = {
    .name = CPU_NAME,
    .what = "CPU, own kernels and generated C",
    .unavailable = say_unavailable,
    .lanes = get_lanes,
    .takes_conv = dnn_takes_conv,
    .refuse_fusion = dfp_refuse,
    .emit = emit,
    .link = link_kernels,
};

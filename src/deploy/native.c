/*
 * Native libraries, for processors that SOL has kernels for: the program as constants, with the runtime and the kernels that it
 * needs. If it runs on a far device, the kernels are files that the device's compiler wrote.
 *
 *   network.c (text of program.c, interface) + kernels.c (generated kernels) + files of sources.c
 *        -> objects, without functions that are never called -> libNAME.so | libNAME.a | a folder of sources
 *
 * The compiler works in the temporary folder; its path does not occur in the result.
 */
#include "deploy/deploy.h"
#include "device/cpu/cpu.h"
#include "dfp/dfp.h"
#include "dnn/list.h"
#include "dnn/step.h"
#include "run/host.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define COMMON_FLAGS                                                                             \
    "-std=gnu11 -D_GNU_SOURCE -DNDEBUG -DSOL_API= -DPOOL_SHARED -fPIC -fvisibility=hidden "      \
    "-ffunction-sections -fdata-sections -pthread"

/* ---- Which sources ---- */

/* Does a step use this implementation? */
static bool uses(const struct deployment *d, const struct dnn_impl *impl) {
    const struct step_list *steps = &d->program->phase[FORWARD];
    for (int i = 0; i < steps->n; i++)
        if (steps->at[i].kind == &step_dnn &&
            ((const struct dnn_work *)steps->at[i].data)->plan.impl == impl)
            return true;
    return false;
}

static bool has_recurrent(const struct deployment *d) {
    for (int i = 0; i < deploy_n_lists(d); i++)
        for (int k = 0; k < deploy_list(d, i)->n; k++)
            if (deploy_is_recurrent(&deploy_list(d, i)->at[k])) return true;
    return false;
}

static bool has_attention(const struct deployment *d) {
    for (int i = 0; i < deploy_n_lists(d); i++)
        for (int k = 0; k < deploy_list(d, i)->n; k++)
            if (deploy_list(d, i)->at[k].kind == &step_attention) return true;
    return false;
}

/* Is it a file of the runtime, or of an implementation that is used? */
static bool is_needed(const struct deployment *d, const struct deploy_source *source) {
    if (!strcmp(source->part, "recurrent")) return has_recurrent(d);
    if (!strcmp(source->part, "attention")) return has_attention(d);
    if (!strcmp(source->part, "far devices")) return d->far;
    if (d->far && !strcmp(source->part, d->far->name)) return true;
    for (int i = 0; dnn_impls[i] && *source->part; i++) {
        const char *file = dnn_find_file(dnn_impls[i]);
        if (file && !strcmp(file, source->part) && uses(d, dnn_impls[i])) return true;
    }
    return !*source->part;
}

/* Writes the runtime, and the kernels that a step uses. */
static enum sol_status write_sources(struct deployment *d) {
    for (const struct deploy_source *s = deploy_sources; s->name; s++)
        if (is_needed(d, s)) TRY(deploy_write(d, s->name, s->text, strlen(s->text)));
    return SOL_OK;
}

/* ---- network.c ---- */

/* Prints `dnn_isas`, which dnn/list.c defines in libsol: one instruction set, with only the kernels that a step uses. */
static void print_kernel_tables(struct deployment *d, struct text *text) {
    const struct dnn_kernels *k = d->isa->kernels;
    const char *isa = d->isa->name;
    for (int i = 0; dnn_impls[i]; i++)
        if (uses(d, dnn_impls[i]))
            text_add(text, "extern dnn_run_fn dnn_run_%s_%s;\n", dnn_impls[i]->name, isa);
    if (uses(d, &dnn_matmul)) text_add(text, "extern dnn_pack_fn dnn_pack_matmul_%s;\n", isa);
    if (has_recurrent(d)) text_add(text, "extern dnn_recurrent_fn dnn_recurrent_%s;\n", isa);
    if (has_attention(d)) text_add(text, "extern dnn_attention_fn dnn_attention_%s;\n", isa);
    /* The first members, in their order. */
    text_add(text, "static const struct dnn_kernels kernels = {%d, %d, %d, %d", k->values, k->step,
             k->product_values, k->product_vectors);
    for (int i = 0; dnn_impls[i]; i++)
        if (uses(d, dnn_impls[i]))
            text_add(text, ", .%s = dnn_run_%s_%s", dnn_impls[i]->name, dnn_impls[i]->name, isa);
    if (uses(d, &dnn_matmul)) text_add(text, ", .pack_matmul = dnn_pack_matmul_%s", isa);
    if (has_recurrent(d)) text_add(text, ", .recurrent = dnn_recurrent_%s", isa);
    if (has_attention(d)) text_add(text, ", .attention = dnn_attention_%s", isa);
    text_add(text,
             "};\nconst struct dnn_isa dnn_isas[] = {{.name = \"%s\", .arch = \"%s\", .lanes = %d, "
             ".flops_per_cycle = 1, .kernels = &kernels}, {0}};\n",
             isa, d->isa->arch, d->isa->lanes);
}

#define QUOTED(...) #__VA_ARGS__
#define TEXT_OF(macro) QUOTED(macro)

/* Prints `refuse`, which checks the processor. It is called before any code that is compiled for the instruction set; with a far
 * device there is no such code. */
static void print_refusal(struct deployment *d, struct text *text) {
    const char *condition = "1", *what = "", *isa = d->far ? "" : d->isa->name;
    if (!strcmp(isa, "avx512")) condition = TEXT_OF(CPU_HAS_AVX512), what = "AVX-512";
    if (!strcmp(isa, "avx2")) condition = TEXT_OF(CPU_HAS_AVX2), what = "AVX2";
    text_add(text, "static const char *refuse(void) { return %s ? NULL : \"%s\"; }\n", condition,
             what);
}

/* The file's path is printed in octal, so that it may contain any character. */
void deploy_print_included(struct deployment *d, struct text *text, const char *name,
                           const char *symbol) {
    text_add(text,
             "__asm__(\".section .rodata.%s,\\\"a\\\"\\n.balign 4096\\n"
             "%s:\\n.incbin \\\"",
             symbol, symbol);
    const bool is_here =
        d->library->target == SOL_C_SOURCE; /* build.sh runs the compiler in the folder */
    for (const char *at = is_here ? name : deploy_path(d, name); *at; at++)
        text_add(text, "\\\\%03o", (unsigned char)*at);
    text_add(text, "\\\"\\n.byte 0\\n.previous\\n\");\nextern const char %s[];\n", symbol);
}

/* Prints `this_library`, the object that library.c uses. */
static void print_library(struct deployment *d, struct text *text,
                          const struct library_file *expect) {
    text_add(text, "static const int64_t symbols[] = ");
    deploy_print_ints(text, d->program->n_symbols, d->symbols);
    text_add(text, ";\nstatic const int64_t param_offset[] = ");
    deploy_print_ints(text, d->program->n_params, d->param);
    text_add(text,
             ";\nconst struct library this_library = {\n .program = &program, .size = sizes, "
             ".steps = run_list, .prepack = pack_list, .n_packed = %d, .packed = packed,\n "
             ".symbols = symbols, .is_packed = %d, .param = param_offset, .refuse = refuse,\n ",
             d->program->n_packed, d->is_packed);
    if (d->library->weights == SOL_WEIGHTS_FILE)
        text_add(text,
                 ".file = \"%s.weights\", .expect = {\"" LIBRARY_MAGIC
                 "\", UINT64_C(%llu), UINT64_C(%llu)}};\n",
                 d->lib, (unsigned long long)expect->hash, (unsigned long long)expect->size);
    else text_add(text, ".weights = library_weights};\n");
}

static enum sol_status write_network(struct deployment *d, const struct library_file *expect) {
    struct text text;
    text_init(&text, d->arena);
    text_add(&text,
             "#include \"deploy/library.h\"\n#include \"dnn/list.h\"\n"
             "#include \"dnn/step.h\"\n%s",
             d->customs.n ? "#include \"run/host.h\"\n" : "");
    print_kernel_tables(d, &text);
    print_refusal(d, &text);
    TRY(deploy_print_program(d, &text));
    if (d->library->weights != SOL_WEIGHTS_FILE)
        deploy_print_included(d, &text, "weights", "library_weights");
    print_library(d, &text, expect);
    deploy_print_interface(d, &text);
    return deploy_write_text(d, "network.c", &text);
}

/* One file for all kernels, since they share the functions of dfp_prelude. Equal kernels are printed once. */
static enum sol_status write_kernels(struct deployment *d) {
    struct text text;
    if (d->far) return SOL_OK;
    text_init(&text, d->arena);
    text_add_raw(&text, dfp_prelude, strlen(dfp_prelude));
    if (deploy_needs_types(d)) text_add_raw(&text, dfp_types, strlen(dfp_types));
    deploy_print_kernels(d, &text);
    return deploy_write_text(d, "kernels.c", &text);
}

static enum sol_status write_weights(struct deployment *d, struct library_file *expect) {
    if (d->library->weights != SOL_WEIGHTS_FILE)
        return deploy_write_weights(d, "weights", false, expect);
    const char *name = arena_printf(d->arena, "%s.weights", d->lib);
    VEC_PUSH(d->arena, &d->files, name);
    return deploy_write_weights(d, name, true, expect);
}

/* ---- Compiling ---- */

/* Sources that are compiled with the same flags and linked to one object. */
struct unit {
    const char *object, *flags;
    VEC(const char *) files;
};
/* The runtime, own kernels and generated kernels of the host, and then one unit for the code of each custom layer. */
struct units {
    VEC(struct unit) all;
};

/* Finds either the kernels or all other files, which must run on any processor of the architecture. Without own kernels, an empty
 * file is compiled, since the linker needs the object. */
static enum sol_status find_files(struct deployment *d, bool kernels, struct unit *unit) {
    for (const struct deploy_source *s = deploy_sources; s->name; s++) {
        bool is_c = !strcmp(s->name + strlen(s->name) - 2, ".c");
        if (is_c && s->is_kernel == kernels && is_needed(d, s))
            VEC_PUSH(d->arena, &unit->files, s->name);
    }
    if (!kernels) VEC_PUSH(d->arena, &unit->files, "network.c");
    if (unit->files.n) return SOL_OK;
    VEC_PUSH(d->arena, &unit->files, "none.c");
    return deploy_write(d, "none.c", "", 0);
}

/* What a custom layer's compiler options are, with which SOL itself compiled its text. */
static enum sol_status find_customs(struct deployment *d, struct units *units) {
    for (int i = 0; i < d->customs.n; i++) {
        struct unit unit = {.object = arena_printf(d->arena, "custom_%d.o", i),
                            .flags = arena_printf(d->arena, "-w %s", d->customs.at[i]->flags)};
        VEC_PUSH(d->arena, &unit.files, arena_printf(d->arena, "custom_%d.c", i));
        TRY(deploy_write_custom(d, i, unit.files.at[0]));
        VEC_PUSH(d->arena, &units->all, unit);
    }
    return SOL_OK;
}

static enum sol_status find_kernels(struct deployment *d, struct units *units) {
    const struct dnn_isa *isa = d->isa;
    struct unit own = {.object = "own.o",
                       .flags = arena_printf(d->arena, CPU_KERNEL_FLAGS " -DISA=%s %s %s",
                                             isa->name, isa->flags, isa->kernel_flags)};
    struct unit generated = {
        .object = "generated.o",
        .flags = arena_printf(d->arena, CPU_KERNEL_FLAGS " -std=gnu99 %s", isa->flags)};
    VEC_PUSH(d->arena, &generated.files, "kernels.c");
    TRY(find_files(d, true, &own));
    VEC_PUSH(d->arena, &units->all, own);
    VEC_PUSH(d->arena, &units->all, generated);
    return SOL_OK;
}

static enum sol_status find_units(struct deployment *d, struct units *units) {
    struct unit runtime = {.object = "runtime.o", .flags = "-O2 -w"};
    TRY(find_files(d, false, &runtime));
    VEC_PUSH(d->arena, &units->all, runtime);
    if (!d->far) TRY(find_kernels(d, units));
    return find_customs(d, units);
}

static enum sol_status compile(struct deployment *d, const struct deploy_tool *tool,
                               const struct unit *unit) {
    VEC(const char *) words = {0};
    const char *const fixed[] = {"-r", "-nostdlib",           "-I", deploy_path(d, "include"),
                                 "-I", deploy_path(d, "src"), "-o", deploy_path(d, unit->object)};
    for (int i = 0; i < COUNT(fixed); i++) VEC_PUSH(d->arena, &words, fixed[i]);
    for (int i = 0; i < unit->files.n; i++)
        VEC_PUSH(d->arena, &words, deploy_path(d, unit->files.at[i]));
    VEC_PUSH(d->arena, &words, NULL);
    deploy_progress(d, unit->object);
    return deploy_run(
        d, arena_printf(d->arena, "%s %s %s", tool->compiler, COMMON_FLAGS, unit->flags), words.at);
}

/* ---- Linking ---- */

#define LINK_FLAGS                                                                            \
    "-shared -s -pthread -Wl,--gc-sections -Wl,--as-needed -Wl,-z,nodelete -Wl,-z,relro "     \
    "-Wl,-z,now -Wl,-z,noexecstack"

/* Custom layers' options may name libraries, such as -fopenmp. */
static const char *link_options(const struct deployment *d) {
    const char *all = "";
    for (int i = 0; i < d->customs.n; i++)
        all = arena_printf(d->arena, "%s %s", all, d->customs.at[i]->flags);
    return all;
}

/* Exports only the interface and removes unused functions and symbol names. nodelete: the library is never unloaded, since
 * threads of the pool still run its code. */
static enum sol_status link_shared(struct deployment *d, const struct deploy_tool *tool,
                                   const struct units *units) {
    const char *name = arena_printf(d->arena, "lib%s.so", d->lib);
    VEC(const char *) words = {0};
    const char *const first[] = {"-o", deploy_path(d, name),
                                 arena_printf(d->arena, "-Wl,-soname,%s", name)};
    for (int i = 0; i < COUNT(first); i++) VEC_PUSH(d->arena, &words, first[i]);
    for (int i = 0; i < units->all.n; i++)
        VEC_PUSH(d->arena, &words, deploy_path(d, units->all.at[i].object));
    VEC_PUSH(d->arena, &words, "-lm");
    VEC_PUSH(d->arena, &words, NULL);
    VEC_PUSH(d->arena, &d->files, name);
    deploy_progress(d, name);
    return deploy_run(
        d, arena_printf(d->arena, "%s " LINK_FLAGS "%s", tool->compiler, link_options(d)),
        words.at);
}

/* The functions of the interface, without the function's or the library's name in front. The linker keeps what they reach in a
 * static library. header.c prints them. */
static const char *const simple_symbols[] = {"", "_init", "_seed", "_error"};
static const char *const symbols[] = {"_error",       "_open",         "_close",      "_run",
                                      "_input_shape", "_output_shape", "_set_threads"};

/* Links one object, in which all symbols except those of the interface are local, and puts it into an archive. */
static enum sol_status link_static(struct deployment *d, const struct deploy_tool *tool,
                                   const struct units *units) {
    const char *name = arena_printf(d->arena, "lib%s.a", d->lib);
    const char *object = arena_printf(d->arena, "%s.o", d->lib);
    VEC(const char *) join = {0};
    VEC_PUSH(d->arena, &join, "-o");
    VEC_PUSH(d->arena, &join, deploy_path(d, object));
    for (int i = 0; i < units->all.n; i++)
        VEC_PUSH(d->arena, &join, deploy_path(d, units->all.at[i].object));
    for (int i = 0; i < COUNT(simple_symbols); i++)
        VEC_PUSH(d->arena, &join,
                 arena_printf(d->arena, "-Wl,-u,%s%s", d->func, simple_symbols[i]));
    for (int i = 0; i < COUNT(symbols); i++)
        VEC_PUSH(d->arena, &join, arena_printf(d->arena, "-Wl,-u,%s%s", d->lib, symbols[i]));
    VEC_PUSH(d->arena, &join, NULL);
    const char *const localize[] = {"--localize-hidden", deploy_path(d, object), NULL};
    const char *const archive[] = {"rcs", deploy_path(d, name), deploy_path(d, object), NULL};
    VEC_PUSH(d->arena, &d->files, name);
    deploy_progress(d, name);
    TRY(deploy_run(d, arena_printf(d->arena, "%s -r -nostdlib -Wl,--gc-sections", tool->compiler),
                   join.at));
    TRY(deploy_run(d, tool->objcopy, localize));
    return deploy_run(d, tool->ar, archive);
}

static enum sol_status make_library(struct deployment *d, const struct units *units) {
    struct deploy_tool tool;
    TRY(deploy_find_tool(d, &tool));
    for (int i = 0; i < units->all.n; i++) TRY(compile(d, &tool, &units->all.at[i]));
    return d->library->target == SOL_SHARED_LIB ? link_shared(d, &tool, units)
                                                : link_static(d, &tool, units);
}

/* ---- Sources ---- */

/* Writes build.sh, with the same commands, to build the library on another machine. */
static enum sol_status write_script(struct deployment *d, const struct units *units) {
    struct text text;
    text_init(&text, d->arena);
    text_add(
        &text,
        "#!/bin/sh\n# Builds lib%s.so beside this file. CC is the compiler; that of the library "
        "was for %s, %s.\nset -e\ncd \"$(dirname \"$0\")\"\nCC=${CC:-cc}\n",
        d->lib, d->isa->arch, d->far ? d->far->name : d->isa->name);
    const char *objects = "";
    for (int i = 0; i < units->all.n; i++) {
        const struct unit *unit = &units->all.at[i];
        text_add(&text, "$CC " COMMON_FLAGS " %s \\\n    -r -nostdlib -I include -I src -o %s",
                 unit->flags, unit->object);
        for (int k = 0; k < unit->files.n; k++) text_add(&text, " %s", unit->files.at[k]);
        text_add(&text, "\n");
        objects = arena_printf(d->arena, "%s %s", objects, unit->object);
    }
    text_add(&text, "$CC " LINK_FLAGS "%s -Wl,-soname,lib%s.so \\\n    -o lib%s.so%s -lm\nrm%s\n",
             link_options(d), d->lib, d->lib, objects, objects);
    return deploy_write_text(d, "build.sh", &text);
}

/* ---- All of it ---- */

static bool can_deploy(const struct step *step) {
    static const struct step_kind *const kinds[] = {&step_kernel,   &step_copy,     &step_gather,
                                                    &step_scatter,  &step_resample, &step_dnn,
                                                    &step_dnn_pack, &step_attention};
    for (int i = 0; i < COUNT(kinds); i++)
        if (step->kind == kinds[i]) return true;
    return deploy_is_custom(step) || deploy_is_recurrent(step);
}

static enum sol_status check_steps(const struct step_list *list) {
    for (int i = 0; i < list->n; i++) {
        const struct step *step = &list->at[i];
        if (!can_deploy(step))
            return fail(SOL_EUNSUPPORTED, "%s (%s) cannot be part of a library yet", step->name,
                        step->layers);
    }
    return SOL_OK;
}

static enum sol_status write_all(struct deployment *d, struct units *units) {
    struct library_file expect = {0};
    TRY(write_sources(d));
    TRY(find_units(d, units));
    TRY(write_weights(d, &expect));
    TRY(write_network(d, &expect));
    return write_kernels(d);
}

/* The result is a folder with the library's name, which contains all files. */
static enum sol_status deploy_sources_only(struct deployment *d) {
    struct units units = {0};
    const char *folder = d->folder;
    d->folder = deploy_path(d, d->lib);
    if (mkdir(d->folder, 0777)) return fail(SOL_EDEVICE, "cannot make the folder %s", d->folder);
    enum sol_status status = write_all(d, &units);
    if (!status) status = write_script(d, &units);
    if (!status) status = deploy_header(d);
    d->folder = folder;
    d->files.n = 0;
    VEC_PUSH(d->arena, &d->files, d->lib);
    return status;
}

enum sol_status deploy_native(struct deployment *d) {
    struct units units = {0};
    deploy_find_customs(d);
    d->n_total = (d->far ? 3 : 5) + d->customs.n;
    for (int i = 0; i < deploy_n_lists(d); i++) TRY(check_steps(deploy_list(d, i)));
    if (d->library->target == SOL_C_SOURCE) return deploy_sources_only(d);
    TRY(write_all(d, &units));
    TRY(make_library(d, &units));
    return deploy_header(d);
}

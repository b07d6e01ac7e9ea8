/*
 * sol_deploy: from a model to a library.
 *
 *   check_names, find_device -> deploy_begin -> compile -> place_weights -> deploy_native or deploy_portable -> deploy_replace
 *
 * All files are written to a temporary folder beside the result. Complete files replace those of an earlier deployment, and the
 * folder is always removed. So the result is never incomplete, and after a failure the earlier files are unchanged.
 */
#include "deploy/deploy.h"
#include "deploy/weights_hash.h"

#include "device/cpu/cpu.h"
#include "dfp/dialect.h"
#include "ir/ir.h"
#include "run/bind.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

/* ---- Names ---- */

/* Keywords of C and C++, since the header is for both. */
static bool is_keyword(const char *name) {
    static const char *const words[] = {
        "auto",     "break",   "case",    "char",     "const",  "continue",  "default",
        "do",       "double",  "else",    "enum",     "extern", "float",     "for",
        "goto",     "if",      "inline",  "int",      "long",   "main",      "register",
        "restrict", "return",  "short",   "signed",   "sizeof", "static",    "struct",
        "switch",   "typedef", "union",   "unsigned", "void",   "volatile",  "while",
        "class",    "delete",  "new",     "template", "this",   "throw",     "try",
        "catch",    "using",   "virtual", "private",  "public", "protected", "namespace",
        "operator", "friend",  "bool",    "true",     "false",  "asm"};
    for (int i = 0; i < COUNT(words); i++)
        if (!strcmp(name, words[i])) return true;
    return false;
}

/* The characters of C identifiers, independent of the locale. */
static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";

/* Does the text contain the word, as a whole word? */
static bool has_word(const char *text, const char *word) {
    const size_t n = strlen(word);
    for (const char *at = text; (at = strstr(at, word)); at += n)
        if ((at == text || !strchr(letters, at[-1])) && !strchr(letters, at[n])) return true;
    return false;
}

/* Refuses names that the library itself or the C library uses, which would conflict: those of portable_math.h, scalar.h and recurrent_plain.h, symbols of the
 * process, and names that end in _t, which POSIX reserves for types. */
static enum sol_status check_taken(const char *what, const char *name) {
    static const char *const words[] = {"FILE", "NULL", "EOF", "errno"};
    const size_t n = strlen(name);
    bool taken = !strncmp(name, "sol_", 4) || !strncmp(name, "SOL_", 4) ||
                 !strncmp(name, "weights_hash", 12) || (n > 2 && !strcmp(name + n - 2, "_t")) ||
                 has_word(deploy_portable_math, name) || has_word(dfp_scalar, name) ||
                 has_word(deploy_recurrent, name) || dlsym(RTLD_DEFAULT, name);
    for (int i = 0; i < COUNT(words); i++) taken |= !strcmp(words[i], name);
    return taken ? fail(SOL_EINVAL, "%s is \"%s\", a name that libraries have already", what, name)
                 : SOL_OK;
}

static enum sol_status check_name(const char *what, const char *name) {
    size_t n = name ? strlen(name) : 0;
    if (!n || n > 200 || strspn(name, letters) != n || (name[0] >= '0' && name[0] <= '9') ||
        is_keyword(name))
        return fail(SOL_EINVAL, "%s is \"%.64s\", which is no name for a function in C and C++",
                    what, name ? name : "");
    return check_taken(what, name);
}

static enum sol_status check_names(const struct sol_library *library) {
    TRY(check_name("lib_name", library->lib_name));
    TRY(check_name("func_name", library->func_name));
    if (!strcmp(library->lib_name, library->func_name))
        return fail(SOL_EINVAL, "lib_name and func_name are both \"%s\": they must differ",
                    library->lib_name);
    return SOL_OK;
}

/* ---- Helpers ---- */

void deploy_progress(struct deployment *d, const char *what) {
    const struct sol_library *library = d->library;
    if (library->progress) library->progress(library->user, d->n_done++, d->n_total, what);
}

void deploy_shape(const struct deployment *d, bool is_output, int i, int64_t dim[SOL_MAX_RANK]) {
    const struct sol_program *p = d->program;
    const struct sol_port *port = is_output ? &p->output[i] : &p->input[i];
    if (is_output && !sol_program_output_shape(p, i, d->symbols, dim)) return;
    for (int r = 0; r < port->rank; r++)
        dim[r] = port->dim[r] < 0 ? d->symbols[-1 - port->dim[r]] : port->dim[r];
}

/* ---- Weights ---- */

int64_t deploy_param_size(const struct deployment *d, int param) {
    const struct sol_port *port = &d->program->param[param];
    int64_t n = size_element(port->dtype);
    for (int i = 0; i < port->rank; i++) n *= port->dim[i];
    return n;
}

int64_t deploy_packed_size(const struct deployment *d, int slot) {
    const size_t *offset = d->weights->packed.offset;
    return (int64_t)(offset[slot + 1] - offset[slot]);
}

/* Marks the parameters that steps of the list read. Others, such as the counter of a batch norm, do not become part of the
 * library. */
static void note_params(struct deployment *d, const struct step_list *list) {
    for (int i = 0; i < list->n; i++)
        for (int p = 0; p < list->at[i].n_ptr; p++)
            if (list->at[i].ptr[p].kind == BUFFER_PARAM) d->param[list->at[i].ptr[p].index] = 0;
}

/* Sets the offsets of the weights: packed parameters first, if the library has them, then each parameter that a step reads. Each
 * begins at a multiple of 64 bytes. */
static void place_weights(struct deployment *d) {
    const struct sol_program *p = d->program;
    d->param = ARENA_ARRAY(d->arena, int64_t, p->n_params + 1);
    for (int i = 0; i < p->n_params; i++) d->param[i] = -1;
    note_params(d, &p->phase[FORWARD]);
    if (!d->is_packed) note_params(d, &p->phase[PREPACK]);
    d->weights_size = d->is_packed ? (int64_t)sol_program_weights_size(p) : 0;
    for (int i = 0; i < p->n_params; i++) {
        if (d->param[i] < 0) continue;
        d->param[i] = d->weights_size;
        d->weights_size += round_up(deploy_param_size(d, i), 64);
    }
}

/* Writes a block and adds it to the hash, both padded with zeros to a multiple of 64 bytes, as weights are in memory. */
static void write_block(FILE *file, struct weights_hash *hash, const void *data, int64_t size) {
    const size_t whole = (size_t)size / 64 * 64, rest = (size_t)size - whole;
    char last[64] = {0};
    fwrite(data, 1, whole, file);
    weights_hash_add(hash, data, whole);
    if (!rest) return;
    memcpy(last, (const char *)data + whole, rest);
    fwrite(last, 1, sizeof last, file);
    weights_hash_add(hash, last, sizeof last);
}

static uint64_t write_blocks(struct deployment *d, FILE *file) {
    struct weights_hash hash = {0};
    for (int i = 0; d->is_packed && i < d->program->n_packed; i++)
        write_block(file, &hash, d->weights->packed.slot[i], deploy_packed_size(d, i));
    for (int i = 0; i < d->program->n_params; i++)
        if (d->param[i] >= 0) write_block(file, &hash, d->params[i], deploy_param_size(d, i));
    return weights_hash_end(&hash);
}

enum sol_status deploy_write_weights(struct deployment *d, const char *name, bool with_head,
                                     struct library_file *expect) {
    char head[LIBRARY_FILE_HEAD] = {0};
    const char *path = deploy_path(d, name);
    FILE *file = fopen(path, "wbe");
    if (!file) return fail(SOL_EDEVICE, "cannot write %s: %s", path, strerror(errno));
    if (with_head) fwrite(head, 1, sizeof head, file);
    *expect = (struct library_file){.size = (uint64_t)d->weights_size};
    memcpy(expect->magic, LIBRARY_MAGIC, sizeof expect->magic);
    expect->hash = write_blocks(d, file);
    if (with_head && !fseek(file, 0, SEEK_SET)) fwrite(expect, 1, sizeof *expect, file);
    return deploy_close(file, path);
}

/* ---- The program ---- */

static enum sol_status refuse_cpu(const char *device, const char *cpu) {
    if (!cpu) return SOL_OK;
    return fail(SOL_EINVAL, "the device \"%s\" has no instruction sets; cpu is \"%.32s\"", device,
                cpu);
}

/* Sets d->far, with the host's instruction set. */
static enum sol_status find_far(struct deployment *d, const char *device) {
    d->isa = cpu_isa();
    TRY(refuse_cpu(device, d->library->cpu));
    return device_find(device, &d->far);
}

/* Sets d->isa: that of `cpu` if it is given; else for this machine's device the one that the machine has, for another device the
 * first, which is its best. */
static enum sol_status find_device(struct deployment *d) {
    const char *device = d->library->device ? d->library->device : CPU_NAME;
    const char *cpu = d->library->cpu;
    if (!strcmp(device, "c")) return refuse_cpu(device, cpu);
    if (deploy_has_files(device)) return find_far(d, device);
    if (!cpu && !strcmp(device, CPU_NAME)) {
        d->isa = cpu_isa();
        return SOL_OK;
    }
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++)
        if (!strcmp(isa->arch, device) && (!cpu || !strcmp(cpu, isa->name))) {
            d->isa = isa;
            return SOL_OK;
        }
    return fail(SOL_EINVAL, "no library can be made for the device \"%.32s\"%s%.32s", device,
                cpu ? " and its instruction set " : "", cpu ? cpu : "");
}

/* A library's parameters are constant data, and it has one call. */
static enum sol_status check_calls(const struct model *m) {
    char name[128];
    if (ir_has_backward(m))
        return fail(SOL_EUNSUPPORTED, "a library has no backward call, but the model has one");
    if (!m->updates.n) return SOL_OK;
    const char *param = m->updates.at[0].param->name;
    sol_clean(param, strlen(param), false, name, sizeof name);
    return fail(SOL_EUNSUPPORTED, "a library has no state, but the model writes parameter \"%s\"",
                name);
}

/* Compiles the model with keep_source, which keeps the texts of kernels and uses own kernels only; a program of a far device has the
 * files that its compiler wrote. For packed weights, the prepack steps run here, also those for another processor, as portable vector
 * code. */
static enum sol_status compile(struct deployment *d, const struct sol_model *model) {
    const struct sol_library *library = d->library;
    struct sol_options options = {.device = d->far   ? d->far->name
                                            : d->isa ? CPU_NAME
                                                     : "c",
                                  .cpu = d->isa && !d->far ? d->isa->name : NULL,
                                  .keep_source = !d->far,
                                  .no_libraries = true,
                                  .batch_hint = library->symbols ? library->symbols[0] : 0,
                                  .deterministic = library->deterministic,
                                  .no_autotune = library->no_autotune};
    TRY(sol_compile(model, &options, &d->program));
    if (d->program->n_outputs > LIBRARY_MAX_OUTPUTS)
        return fail(SOL_EUNSUPPORTED, "%d outputs; a library has at most %d", d->program->n_outputs,
                    LIBRARY_MAX_OUTPUTS);
    if (!d->is_packed) return SOL_OK;
    TRY(sol_weights_new(d->program, d->params, &d->weights));
    return d->far ? deploy_fetch_packed(d) : SOL_OK;
}

static enum sol_status make_files(struct deployment *d) {
    place_weights(d);
    TRY(d->isa ? deploy_native(d) : deploy_portable(d));
    return deploy_replace(d);
}

static enum sol_status deploy(struct deployment *d, const struct sol_model *model) {
    static const int64_t ones[SIZE_FREE] = {1, 1, 1, 1, 1, 1, 1, 1};
    TRY(sol_model_check(model));
    TRY(check_calls(ir_user_model(model)));
    TRY(check_names(d->library));
    TRY(find_device(d));
    TRY(deploy_check_hosts(d, ir_user_model(model)));
    d->lib = d->library->lib_name, d->func = d->library->func_name;
    d->symbols = d->library->symbols ? d->library->symbols : ones;
    d->is_packed = !d->isa || d->library->weights == SOL_WEIGHTS_PACKED;
    if (d->library->static_memory && d->isa)
        return fail(SOL_EUNSUPPORTED, "static memory is for the device \"c\"");
    TRY(deploy_begin(d));
    TRY(compile(d, model));
    return make_files(d);
}

enum sol_status sol_deploy(const struct sol_model *model, const void *const *params,
                           const struct sol_library *library) {
    struct arena arena;
    jmp_buf out_of_memory;
    arena_init(&arena);
    arena.boundary = &out_of_memory;
    struct deployment *d = mem_alloc(sizeof *d, 16);
    if (!d) return fail(SOL_ENOMEM, "no memory to deploy");
    d->arena = &arena, d->library = library, d->params = params, d->lock = -1;
    enum sol_status status;
    if (setjmp(out_of_memory)) status = fail(SOL_ENOMEM, "out of memory while deploying");
    else status = deploy(d, model);
    deploy_end(d, status != SOL_OK);
    binding_free(d->binding);
    sol_weights_release(d->weights);
    if (d->program) sol_program_release(d->program);
    mem_free(d);
    arena_fini(&arena);
    return status;
}

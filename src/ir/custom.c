/*
 * Custom layers: the code that a user brings, and how it becomes a function of a model.
 *
 *   C text -> jit_build | shared library -> dlopen | functions -> struct sol_custom
 *   struct sol_custom + attributes -> struct host_custom -> sol_model_host
 *
 * So for the rest of the compiler a custom layer is a host node; run/host.c calls it. Nothing is allocated in an arena here.
 */
#include "ir/ir.h"
#include "jit/jit.h"
#include "run/host.h"
#include "run/pool.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Names and objects ---- */

static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";

/* The name becomes a part of C text, so it must be an identifier. */
static enum sol_status check_name(const char *name) {
    const size_t n = name ? strlen(name) : 0;
    if (n && n <= 100 && strspn(name, letters) == n && !(name[0] >= '0' && name[0] <= '9'))
        return SOL_OK;
    return fail(SOL_EINVAL, "custom layer \"%.64s\": its name is no name of a C function",
                name ? name : "");
}

static const char *copy_text(char **at, const char *text) {
    if (!text) return NULL;
    const size_t size = strlen(text) + 1;
    char *copy = memcpy(*at, text, size);
    *at += size;
    return copy;
}

static size_t text_size(const char *text) { return text ? strlen(text) + 1 : 0; }

/* One block: the object and its texts. NULL: out of memory. */
static struct sol_custom *new_custom(const char *name, const char *text, const char *flags) {
    struct sol_custom *custom =
        mem_alloc(sizeof *custom + text_size(name) + text_size(text) + text_size(flags), 16);
    if (!custom) {
        (void)fail(SOL_ENOMEM, "out of memory: custom layer %s", name);
        return NULL;
    }
    char *at = (char *)(custom + 1);
    atomic_init(&custom->n_refs, 1);
    custom->name = copy_text(&at, name);
    custom->text = copy_text(&at, text);
    custom->flags = copy_text(&at, flags);
    return custom;
}

void sol_custom_retain(struct sol_custom *custom) { atomic_fetch_add(&custom->n_refs, 1); }

void sol_custom_release(struct sol_custom *custom) {
    if (!custom || atomic_fetch_sub(&custom->n_refs, 1) > 1) return;
    if (custom->module) custom->close(custom->module);
    mem_free(custom);
}

/* ---- From C text ---- */

/* What every text ends with: the addresses of its functions, under a name that no other library of the process has. The compiler
 * checks here that the function exists, and its type. The function for the number of tasks is optional, so its symbol is weak. */
static const char entry_text[] =
    "\n#line 1 \"%s: the layer's functions\"\n"
    "#ifndef SOL_CUSTOM_H\n#error the source does not include <sol/custom.h>\n#endif\n"
    "_Static_assert(__builtin_types_compatible_p(__typeof__(%s), sol_custom_run),\n"
    "    \"it is not of the form: enum sol_status %s(const struct sol_host_call *call)\");\n"
    "extern sol_custom_tasks %s_tasks __attribute__((weak));\n"
    "__attribute__((visibility(\"default\"))) const struct {\n"
    "    sol_custom_run *run;\n    sol_custom_tasks *tasks;\n"
    "} sol_custom_entry_%s = {%s, %s_tasks};\n";

struct entry {
    sol_custom_run *run;
    sol_custom_tasks *tasks;
};

static char *join_text(const char *name, const char *text) {
    const size_t size = strlen(text) + sizeof entry_text + 7 * strlen(name);
    char *joined = mem_alloc(size, 16);
    if (!joined) return NULL;
    const int n = snprintf(joined, size, "%s", text);
    (void)snprintf(joined + n, size - (size_t)n, entry_text, name, name, name, name, name, name,
                   name);
    return joined;
}

static void release_module(void *module) { jit_release(module); }

/* -w: only errors are shown, as messages are short. */
#define FLAGS "-std=gnu11 -fPIC -shared -w "

static enum sol_status build(struct sol_custom *custom) {
    char symbol[160], flags[1024];
    if (snprintf(flags, sizeof flags, FLAGS "%s", custom->flags) >= (int)sizeof flags)
        return fail(SOL_EINVAL, "the compiler's flags are too long");
    char *text = join_text(custom->name, custom->text);
    if (!text) return fail(SOL_ENOMEM, "out of memory");
    struct jit_module *module = NULL;
    enum sol_status status =
        jit_build(&jit_objects, flags, (const char *const[]){text}, 1, false, &module, NULL);
    mem_free(text);
    TRY(status);
    custom->module = module, custom->close = release_module;
    (void)snprintf(symbol, sizeof symbol, "sol_custom_entry_%s", custom->name);
    const struct entry *entry = jit_find(module, symbol);
    if (!entry) return fail(SOL_EBUG, "its object has no entry");
    custom->run = entry->run, custom->tasks = entry->tasks;
    return SOL_OK;
}

/* Prefixes the message of a failure with the layer's name, and releases the object. */
static enum sol_status end_custom(struct sol_custom *custom, enum sol_status status,
                                  struct sol_custom **out) {
    *out = status ? NULL : custom;
    if (!status) return SOL_OK;
    fail_prefix("custom layer %s: ", custom->name);
    sol_custom_release(custom);
    return status;
}

enum sol_status sol_custom_compile(const char *name, const char *text, const char *flags,
                                   struct sol_custom **out) {
    *out = NULL;
    TRY(check_name(name));
    struct sol_custom *custom = new_custom(name, text ? text : "", flags ? flags : "-O3");
    if (!custom) return SOL_ENOMEM;
    return end_custom(custom, build(custom), out);
}

/* ---- From a library ---- */

/* The function of this name in the library itself: dlsym also searches the libraries that it needs, such as libm. */
static void *find_own(void *library, const char *name) {
    struct link_map *map = NULL;
    Dl_info info;
    void *address = dlsym(library, name);
    if (!address || dlinfo(library, RTLD_DI_LINKMAP, &map) || !dladdr(address, &info)) return NULL;
    return (ElfW(Addr))(uintptr_t)info.dli_fbase == map->l_addr ? address : NULL;
}

/* The library stays open: its code may have threads or handlers of its own. */
static enum sol_status open_library(struct sol_custom *custom, const char *path) {
    char symbol[128];
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return fail(SOL_EINVAL, "cannot open its library: %s", dlerror());
    void *run = find_own(library, custom->name);
    if (!run) return fail(SOL_EINVAL, "the library %s has no function of this name", path);
    (void)snprintf(symbol, sizeof symbol, "%s_tasks", custom->name);
    void *tasks = find_own(library, symbol);
    memcpy(&custom->run, &run, sizeof run);
    memcpy(&custom->tasks, &tasks, sizeof tasks);
    return SOL_OK;
}

enum sol_status sol_custom_open(const char *name, const char *path, struct sol_custom **out) {
    *out = NULL;
    TRY(check_name(name));
    struct sol_custom *custom = new_custom(name, NULL, NULL);
    if (!custom) return SOL_ENOMEM;
    return end_custom(custom, open_library(custom, path ? path : ""), out);
}

enum sol_status sol_custom_take(const char *name, sol_custom_run *run, sol_custom_tasks *tasks,
                                struct sol_custom **out) {
    *out = NULL;
    TRY(check_name(name));
    if (!run) return fail(SOL_EINVAL, "custom layer %s: there is no function", name);
    struct sol_custom *custom = new_custom(name, NULL, NULL);
    if (!custom) return SOL_ENOMEM;
    custom->run = run, custom->tasks = tasks;
    *out = custom;
    return SOL_OK;
}

/* ---- In a model ---- */

/* Bytes of the values of attributes, with those of their names. */
static size_t attributes_size(int n, const struct sol_attribute *from) {
    size_t size = sizeof *from * (size_t)n;
    for (int i = 0; i < n; i++)
        size += 8 * (size_t)(from[i].text ? 0 : from[i].n) + text_size(from[i].name) +
                text_size(from[i].text);
    return size;
}

/* Numbers come first, so they are aligned. */
static void copy_attributes(struct sol_attribute *to, int n, const struct sol_attribute *from) {
    char *at = (char *)(to + n);
    for (int i = 0; i < n; i++) {
        const size_t size = 8 * (size_t)from[i].n;
        to[i] = from[i];
        if (from[i].text) continue;
        memcpy(at, from[i].ints ? (const void *)from[i].ints : from[i].floats, size);
        if (from[i].ints) to[i].ints = (const int64_t *)(void *)at;
        else to[i].floats = (const double *)(void *)at;
        at += size;
    }
    for (int i = 0; i < n; i++) {
        to[i].name = copy_text(&at, from[i].name);
        to[i].text = copy_text(&at, from[i].text);
    }
}

static void release_layer(void *user) {
    struct host_custom *layer = user;
    sol_custom_release(layer->code);
    mem_free(layer);
}

static struct host_custom *new_layer(struct sol_custom *custom, int n,
                                     const struct sol_attribute *attributes) {
    struct host_custom *layer = mem_alloc(sizeof *layer + attributes_size(n, attributes), 16);
    if (!layer) return NULL;
    struct sol_attribute *own = (struct sol_attribute *)(layer + 1);
    copy_attributes(own, n, attributes);
    *layer = (struct host_custom){custom->run, custom->tasks, n, own, custom};
    sol_custom_retain(custom);
    return layer;
}

/* Without memory for the layer, host_new fails, and the builder keeps that error. */
int sol_model_custom(struct sol_model *model, struct sol_custom *custom, int n_attributes,
                     const struct sol_attribute *attributes) {
    struct host_custom *layer = new_layer(custom, n_attributes, attributes);
    return sol_model_host(model, &(struct sol_host){custom->name, host_run_custom, layer,
                                                    layer ? release_layer : NULL});
}

/* ---- Without a model ---- */

struct job {
    const struct host_function *function;
    const struct sol_host_call *call;
    const char *name;
    atomic_int n_failures;
    enum sol_status status;
    char message[1024];
};

/* sol_error() belongs to a thread, so the message of the first failure is copied. */
static void run_tasks(void *user, int thread, int64_t begin, int64_t end) {
    struct job *job = user;
    struct sol_host_call call = *job->call;
    (void)thread;
    call.begin = begin, call.end = end;
    enum sol_status status = host_call(job->function, job->name, &call);
    if (!status || atomic_fetch_add(&job->n_failures, 1)) return;
    job->status = status;
    (void)snprintf(job->message, sizeof job->message, "%s", sol_error());
}

enum sol_status sol_custom_call(const struct sol_custom *custom, const struct sol_host_call *call) {
    struct host_custom layer = {custom->run, custom->tasks, call->n_attributes, call->attribute,
                                NULL};
    const struct host_function function = {
        .run = host_run_custom, .user = &layer, .custom = &layer};
    struct job job = {.function = &function, .call = call, .name = custom->name};
    const int64_t n = host_count_tasks(&function, call);
    if (!custom->tasks) run_tasks(&job, 0, 0, 1);
    else if (n) pool_run(n, max_i64(1, n / (4 * pool_threads())), run_tasks, &job);
    return job.status ? fail(job.status, "%s", job.message) : SOL_OK;
}

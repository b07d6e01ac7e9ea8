/*
 * One build: texts in, a loaded module out.
 *
 *   texts -> keys -> load what the cache has -> compile the rest, in parallel -> module
 *
 * The key of a text is a string of everything its machine code depends on; the key's hash is only the
 * name of the file. A build uses the cache folder, or a private folder in /tmp if the cache cannot
 * be trusted or written. A full or read-only cache is still read.
 *
 * Invariants: an object that is loaded was either sealed with the same key or compiled by this build.
 * Nothing is allocated from an arena, so builds may run on threads without a boundary.
 */
#include "jit/jit_parts.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <sol/sol.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define LONG_LINES 5000 /* see is_long */
#define MAX_HELPERS 64 /* threads besides the caller's that run compilers */

/* Additional flags per level; the last -O is in effect. A kernel of 4,400 lines compiles in 5.9, 2.3 and 1.9 s, and runs in
 * 9.5, 10.2 and 11.7 ms. */
enum { BEST, LONG, QUICKEST };
static const char *const levels[] = {"", "-O2 -DSOL_LONG", "-O1 -DSOL_LONG"};

/* One text, and its state in the build. */
struct job {
    const char *text;
    char *key;
    size_t key_size;
    char name[JIT_NAME_SIZE];
    void *object; /* loaded; NULL: not yet */
    enum sol_status status;
    double processor_s; /* of the compiler */
    bool is_quick, is_compiled;
    char message[1024]; /* the failure's message, copied from the thread that compiled */
};

struct build {
    const struct jit_loader *loader;
    const struct jit_tool *tool;
    struct jit_folder folder;
    char *flags; /* of the device, and -g with `debug` */
    bool debug;
    int n_jobs;
    struct job *jobs;
    atomic_int next_job; /* for the compiling threads */
};

struct jit_module {
    const struct jit_loader *loader;
    int n;
    void *objects[];
};

/* ---- Keys ---- */

/* Each field has its length in front, so that different fields give different keys. */
static int print_key(char *out, size_t size, const struct build *build, const char *text) {
    struct utsname machine;
    if (uname(&machine)) machine.machine[0] = 0; /* home folders are shared between machines */
    const struct jit_tool *tool = build->tool;
    const char *libraries = build->loader->libraries ? build->loader->libraries : "";
    return snprintf(
        out, size,
        "sol %s\nmachine %s\ncompiler %zu %s\nversion %zu %s\nflags %zu %s\nlibraries %zu %s\n%s",
        sol_version(), machine.machine, strlen(tool->command), tool->command, strlen(tool->version),
        tool->version, strlen(build->flags), build->flags, strlen(libraries), libraries, text);
}

static enum sol_status make_key(const struct build *build, struct job *job) {
    job->key_size = (size_t)print_key(NULL, 0, build, job->text);
    job->key = mem_alloc(job->key_size + 1, 16);
    if (!job->key) return fail(SOL_ENOMEM, "out of memory: cannot compile a kernel");
    (void)print_key(job->key, job->key_size + 1, build, job->text);
    uint64_t high = hash_bytes(1, job->key, job->key_size),
             low = hash_bytes(2, job->key, job->key_size);
    (void)snprintf(job->name, sizeof job->name, "%016" PRIx64 "%016" PRIx64, high, low);
    return SOL_OK;
}

static void path_of(const struct build *build, const struct job *job, const char *ending,
                    char path[JIT_PATH_SIZE]) {
    (void)snprintf(path, JIT_PATH_SIZE, "%s/%s%s", build->folder.path, job->name, ending);
}

/* ---- One text ---- */

/* If the file says that the compiler timed out, with a limit not below today's: the job fails without another try. */
static void load_late(const struct build *build, struct job *job, const char *path) {
    double limit_s = jit_read_timeout(path);
    if (limit_s < jit_limit_s(build->tool)) return;
    job->status =
        fail(SOL_ETOOL, "the C compiler did not end within %g s, as %s says", limit_s, path);
    (void)snprintf(job->message, sizeof job->message, "%s", sol_error());
}

/* If the file is missing or not sealed with this key, the text is compiled. Also if the loader fails: the
 * object may be from a machine with another C library. */
static void load_cached(const struct build *build, struct job *job) {
    char path[JIT_PATH_SIZE];
    path_of(build, job, ".so", path);
    if (!jit_is_sealed(path, job->key, job->key_size)) return;
    job->object = build->loader->open(path);
    if (!job->object) load_late(build, job, path);
}

/*
 * Is the text long? Counts lines, with weights: a line with an exponential compiles to many instructions, a loop over lanes to a
 * branch per lane. Measured with gcc 12 for 130 kernels of networks and of generated chains: 5,000 lines compile in 1.3 s, and
 * the time grows faster than the number of lines. The longest kernel of a usual convolutional network has fewer than 500.
 */
static bool is_long(const char *text) {
    static const struct {
        const char *what;
        int lines;
    } expensive[] = {{"\n", 1},       {"= EXP(", 10}, {"= LOG(", 10},
                     {"= TANH(", 10}, {"= ERF(", 10}, {"LANE(", 250}};
    int64_t lines = 0;
    for (int i = 0; i < COUNT(expensive); i++)
        for (const char *at = text; (at = strstr(at, expensive[i].what)); at++)
            lines += expensive[i].lines;
    return lines > LONG_LINES;
}

static enum sol_status run_level(struct build *build, struct job *job, struct jit_run *run,
                                 int level) {
    run->flags[1] = levels[level];
    job->is_quick = level > BEST;
    enum sol_status status = jit_run_tool(build->tool, run);
    job->processor_s += run->processor_s;
    return status;
}

/* Compiles source to object, in at most two runs: with less optimization after a timeout. */
static enum sol_status run_levels(struct build *build, struct job *job, struct jit_run *run) {
    enum sol_status status = run_level(build, job, run, is_long(job->text) ? LONG : BEST);
    return run->timed_out ? run_level(build, job, run, QUICKEST) : status;
}

/* Seals and loads an object. It is loaded before it gets its name in the cache, as from then on any process may remove it. */
static enum sol_status load_object(const struct build *build, struct job *job,
                                   const struct jit_run *run) {
    if (access(run->object, R_OK))
        return fail(SOL_ETOOL, "the C compiler wrote nothing: %s", run->shown);
    TRY(jit_seal(run->object, job->key, job->key_size));
    job->object = build->loader->open(run->object);
    job->is_compiled = job->object;
    if (job->object) return SOL_OK;
    fail_prefix("cannot load a kernel: %s: ", run->shown);
    return SOL_ETOOL;
}

/* Writes a file to the cache that says that the compiler timed out. Keeps the current message. */
static void note_late(const struct build *build, const struct job *job, const struct jit_run *run,
                      const char *final) {
    char message[sizeof job->message];
    (void)snprintf(message, sizeof message, "%s", sol_error());
    if (jit_write_timeout(run->object, jit_limit_s(build->tool)) ||
        jit_seal(run->object, job->key, job->key_size) || rename(run->object, final))
        unlink(run->object);
    (void)fail(SOL_ETOOL, "%s", message);
}

/* Compiles and loads one text, and puts its object into the cache. Its source is kept if the compiler fails, and with `debug`. */
static enum sol_status compile(struct build *build, struct job *job) {
    char source[JIT_PATH_SIZE], object[JIT_PATH_SIZE], shown[JIT_PATH_SIZE], final[JIT_PATH_SIZE];
    path_of(build, job, ".c", shown);
    path_of(build, job, ".so", final);
    TRY(jit_write_source(&build->folder, shown, job->text, source));
    size_t size = strlen(source);
    memcpy(object, source, size - 1);
    memcpy(object + size - 1, "so", 3); /* replaces the "c" */
    struct jit_run run = {.flags = {build->flags, ""},
                          .source = source,
                          .object = object,
                          .libraries = build->loader->libraries,
                          .shown = shown};
    enum sol_status status = run_levels(build, job, &run);
    if (!status) status = load_object(build, job, &run);
    /* If the rename fails, the object is not cached, but this build has loaded it. */
    if (run.timed_out) note_late(build, job, &run, final);
    else if (status || rename(object, final)) unlink(object);
    if ((status != SOL_ETOOL && !build->debug) || rename(source, shown)) unlink(source);
    return status;
}

/* ---- All texts ---- */

static void *compile_jobs(void *argument) {
    struct build *build = argument;
    for (int i; (i = atomic_fetch_add(&build->next_job, 1)) < build->n_jobs;) {
        struct job *job = &build->jobs[i];
        if (job->object || job->status) continue;
        job->status = compile(build, job);
        if (job->status) (void)snprintf(job->message, sizeof job->message, "%s", sol_error());
    }
    return NULL;
}

/* Starts up to `n` threads and returns their number. They are not the pool's, as a compile
 * takes seconds and calls of other programs need the pool. They block signals, which the host's threads
 * handle. */
static int start_helpers(struct build *build, pthread_t *helpers, int n) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int started = 0;
    while (started < n && !pthread_create(&helpers[started], NULL, compile_jobs, build)) started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* Compiles all jobs without object. Reports the first failure in the order of the texts. */
static enum sol_status compile_missing(struct build *build) {
    pthread_t helpers[MAX_HELPERS];
    int n_missing = 0;
    for (int i = 0; i < build->n_jobs; i++) n_missing += !build->jobs[i].object;
    if (!n_missing) return SOL_OK;
    atomic_store(&build->next_job, 0);
    int64_t n = min_i64(min_i64(n_missing, os_cores()) - 1, MAX_HELPERS);
    int started = start_helpers(build, helpers, (int)n);
    (void)compile_jobs(build); /* this thread compiles too */
    for (int i = 0; i < started; i++) pthread_join(helpers[i], NULL);
    for (int i = 0; i < build->n_jobs; i++)
        if (build->jobs[i].status) return fail(build->jobs[i].status, "%s", build->jobs[i].message);
    return SOL_OK;
}

static enum sol_status use_private(struct build *build) {
    LOG_ONCE(LOG_WARN, "%s; kernels are not cached", sol_error());
    return jit_make_private(&build->folder);
}

/* Removes sources of failed jobs: they failed as the disk is full, and would fill it more. */
static void drop_sources(const struct build *build) {
    char path[JIT_PATH_SIZE];
    for (int i = 0; i < build->n_jobs; i++) {
        path_of(build, &build->jobs[i], ".c", path);
        if (build->jobs[i].status) unlink(path);
    }
}

/* Loads or compiles all jobs. Jobs that have been loaded keep their objects when it fails. */
static enum sol_status do_jobs(struct build *build) {
    if (jit_open_folder(&build->folder)) TRY(use_private(build));
    for (int i = 0; i < build->n_jobs; i++) {
        TRY(make_key(build, &build->jobs[i]));
        load_cached(build, &build->jobs[i]);
    }
    enum sol_status status = compile_missing(build);
    /* A full disk causes many errors, also errors of the compiler: so test whether the folder can be written. */
    if (!status || build->folder.is_private || jit_has_room(&build->folder)) return status;
    drop_sources(build);
    (void)fail(SOL_EDEVICE, "cache folder %s: cannot write to it", build->folder.path);
    TRY(use_private(build));
    for (int i = 0; i < build->n_jobs; i++) build->jobs[i].status = SOL_OK;
    return compile_missing(build);
}

static enum sol_status make_module(struct build *build, struct jit_module **out) {
    struct jit_module *module =
        mem_alloc(sizeof *module + sizeof(void *) * (size_t)build->n_jobs, 16);
    if (!module) return fail(SOL_ENOMEM, "out of memory: cannot load kernels");
    module->loader = build->loader;
    module->n = build->n_jobs;
    for (int i = 0; i < build->n_jobs; i++) {
        module->objects[i] = build->jobs[i].object;
        build->jobs[i].object = NULL; /* now the module closes it */
    }
    *out = module;
    return SOL_OK;
}

static void close_jobs(struct build *build) {
    for (int i = 0; i < build->n_jobs; i++) {
        if (build->jobs[i].object) build->loader->close(build->jobs[i].object);
        mem_free(build->jobs[i].key);
    }
    mem_free(build->jobs);
    mem_free(build->flags);
    jit_close_folder(&build->folder);
}

/* Allocates what close_jobs frees. */
static enum sol_status open_jobs(struct build *build, const char *const *texts, int n_texts,
                                 const char *flags) {
    const char *own = build->debug ? " -g" : "";
    size_t size = strlen(flags) + strlen(own) + 1;
    build->flags = mem_alloc(size, 16);
    build->jobs = mem_alloc(sizeof *build->jobs * (size_t)n_texts, 16);
    if (!build->flags || !build->jobs)
        return fail(SOL_ENOMEM, "out of memory: cannot compile kernels");
    (void)snprintf(build->flags, size, "%s%s", flags, own);
    build->n_jobs = n_texts;
    for (int i = 0; i < n_texts; i++) build->jobs[i].text = texts[i];
    return SOL_OK;
}

static struct jit_stats sum_effort(const struct build *build) {
    struct jit_stats sum = {0};
    for (int i = 0; i < build->n_jobs && build->jobs; i++) {
        const struct job *job = &build->jobs[i];
        sum.n_compiled += job->is_compiled;
        sum.n_quick += job->is_compiled && job->is_quick;
        sum.processor_s += job->processor_s;
        if (job->processor_s > sum.longest_s) sum.longest_s = job->processor_s;
    }
    return sum;
}

enum sol_status jit_build(const struct jit_loader *loader, const char *flags,
                          const char *const *texts, int n_texts, bool debug,
                          struct jit_module **out, struct jit_stats *stats) {
    struct build build = {.loader = loader, .debug = debug};
    TRY(jit_find_tool(loader->compiler, &build.tool));
    enum sol_status status = open_jobs(&build, texts, n_texts, flags);
    if (!status) status = do_jobs(&build);
    if (!status) status = make_module(&build, out);
    if (stats) *stats = sum_effort(&build);
    close_jobs(&build);
    return status;
}

/* ---- Modules ---- */

void *jit_find(struct jit_module *module, const char *symbol) {
    for (int i = 0; i < module->n; i++) {
        void *address = module->loader->find(module->objects[i], symbol);
        if (address) return address;
    }
    return NULL;
}

void *jit_object(const struct jit_module *module, int i) { return module->objects[i]; }

void jit_release(struct jit_module *module) {
    if (!module) return;
    for (int i = 0; i < module->n; i++) module->loader->close(module->objects[i]);
    mem_free(module);
}

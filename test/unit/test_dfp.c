/*
 * DFP against the point expressions: kernels of small models are generated, compiled, run in ranges of
 * tasks, and compared with a naive evaluation of ir_define's expressions. The interpreter must give
 * the same results.
 *
 * Tensors end at an unreadable page, so that an access beyond their end crashes.
 */
#include "compiled.h"
#include "meaning.h"

#include <sys/mman.h>
#include <unistd.h>

#ifdef __aarch64__
#define INCLUDE_HOST "/usr/include/aarch64-linux-gnu"
#else
#define INCLUDE_HOST "/usr/include/x86_64-linux-gnu"
#endif
#define MAX_CASES 128
#define MAX_TENSORS 64

/* ONE: tensors with one channel are blocked, too. APART: there are gaps between samples, as in a slice of a larger tensor. */
enum { PLAIN = 0, BLOCKED = 1, SEGMENTS = 2, REFUSED = 4, ONE = 8, APART = 16 };

#define GAP 64

/* `text` has the layers, one per line, without the lines of the model. The last tensor and the
 * tensors in `outputs` are outputs. */
struct test_case {
    const char *name, *text;
    int mode;
    int64_t symbol;
    const char *outputs;
};

static const struct test_case cases[] = {
#include "dfp_cases.h"
};

struct run {
    const struct test_case *test;
    struct model *model;
    struct cluster *cluster;
    struct dfp_kernel kernel;
    struct storage *views;
    float *value[MAX_TENSORS];  /* by tensor id: naive, row major */
    float *memory[MAX_TENSORS]; /* as the kernel sees it */
};

static struct arena arena;
static jmp_buf boundary;

/* ---- Naive evaluation ---- */

struct point {
    struct run *run;
    int64_t var[64];
};

static int64_t dim_of(const struct run *r, const struct tensor *t, int d) {
    return size_eval(&t->dim[d], &r->test->symbol);
}

static int64_t eval_index(const struct point *p, const struct index *x) {
    if (x->op == INDEX_CONST) return size_eval(&x->value, &p->run->test->symbol);
    if (x->op == INDEX_VAR) return p->var[x->var];
    return meaning_of_index(x->op, eval_index(p, x->a), eval_index(p, x->b));
}

static double eval(struct point *p, const struct expr *e);

static double eval_load(struct point *p, const struct expr *e) {
    int64_t at = 0;
    for (int d = 0; d < e->n_index; d++) {
        int64_t i = eval_index(p, e->index[d]), n = dim_of(p->run, e->tensor, d);
        if (i < 0 || i >= n) {
            CHECK(e->checked);
            return e->fill;
        }
        at = at * n + i;
    }
    return (double)p->run->value[e->tensor->id][at];
}

static double eval_reduce(struct point *p, const struct expr *e, int k) {
    if (k == e->n_vars) return eval(p, e->arg[0]);
    double all = meaning_of_nothing(e->combine);
    int64_t n = size_eval(&e->extent[k], &p->run->test->symbol);
    for (int64_t i = 0; i < n; i++) {
        p->var[e->first_var + k] = i;
        all = meaning_of_combine(e->combine, all, eval_reduce(p, e, k + 1));
    }
    return all;
}

static double eval(struct point *p, const struct expr *e) {
    double x[3] = {0};
    int64_t at;
    switch (e->kind) {
    case EXPR_CONST: return e->value;
    case EXPR_LOAD: return eval_load(p, e);
    case EXPR_REDUCE: return eval_reduce(p, e, 0);
    case EXPR_RANGE:
        at = eval_index(p, e->index[0]);
        return at >= size_value(e->low) && at < size_value(e->high);
    case EXPR_INDEX: return (double)eval_index(p, e->index[0]);
    case EXPR_CAST: return eval(p, e->arg[0]); /* bools to f32: 1 or 0 in both */
    case EXPR_APPLY:
        for (int i = 0; i < 3 && e->arg[i]; i++) x[i] = eval(p, e->arg[i]);
        return meaning_of_primitive(e->primitive, x[0], x[1], x[2]);
    }
    REQUIRE(!"a kind of expression");
    return 0;
}

static int64_t count(const struct run *r, const struct tensor *t) {
    int64_t n = 1;
    for (int d = 0; d < t->rank; d++) n *= dim_of(r, t, d);
    return n;
}

static void eval_layer(struct run *r, const struct layer *l) {
    struct point p = {.run = r};
    int n_vars;
    const struct tensor *t = l->out[0];
    struct expr *e = ir_define(&arena, l, &n_vars);
    int64_t n = count(r, t);
    r->value[t->id] = ARENA_ARRAY(&arena, float, n);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i;
        for (int d = t->rank - 1; d >= 0; d--) {
            p.var[d] = rest % dim_of(r, t, d);
            rest /= dim_of(r, t, d);
        }
        r->value[t->id][i] = (float)eval(&p, e);
    }
}

/* Uniform in [-3, 3]. */
static float random_value(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state * (3.0f / 2147483648.0f);
}

static void fill_source(struct run *r, const struct tensor *t) {
    int64_t n = count(r, t);
    uint32_t state = 7u + (uint32_t)t->id;
    bool positive = strchr(t->name, '+') != NULL;
    r->value[t->id] = ARENA_ARRAY(&arena, float, n);
    for (int64_t i = 0; i < n; i++) {
        float x = random_value(&state);
        r->value[t->id][i] = positive ? fabsf(x) + 0.1f : x;
    }
}

/* ---- Memory ---- */

static float *guarded(int64_t n) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (size_t)n * sizeof(float);
    size_t whole = (size + page - 1) / page * page;
    char *memory =
        mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    mprotect(memory + whole, page, PROT_NONE);
    return (float *)(memory + whole - size);
}

static int64_t stored(const struct run *r, const struct tensor *t) {
    struct size n = layout_elements(t);
    int64_t gaps = r->test->mode & APART && t->rank == 4 ? GAP * dim_of(r, t, 0) : 0;
    return size_eval(&n, &r->test->symbol) + gaps;
}

/* Offset of element `i` (row major) in memory. */
static int64_t place(const struct run *r, const struct tensor *t, int64_t i) {
    int64_t at = 0;
    for (int d = t->rank - 1; d >= 0; d--) {
        int64_t x = i % dim_of(r, t, d);
        i /= dim_of(r, t, d);
        if (t->layout.block && d == layout_channel_axis(t)) {
            x = layout_position(&t->layout, (int)x);
            at += x % t->layout.block;
            x /= t->layout.block;
        }
        at += x * size_eval(&r->views[t->id].stride[d], &r->test->symbol);
    }
    return at;
}

static void load_memory(struct run *r, const struct tensor *t, bool is_input) {
    int64_t n = stored(r, t);
    float *memory = r->memory[t->id] = guarded(n);
    for (int64_t i = 0; i < n; i++) memory[i] = is_input ? 0 : 12345.0f;
    for (int64_t i = 0; is_input && i < count(r, t); i++)
        memory[place(r, t, i)] = r->value[t->id][i];
}

/* ---- Models ---- */

static bool has_blocks(const struct tensor *t, int mode) {
    if (!(mode & BLOCKED) || t->rank < 2 || (t->name && strchr(t->name, 'p'))) return false;
    return !size_is(t->dim[1], 1) || (mode & ONE);
}

/* Without vectors there are no blocks. A cluster that is refused in blocks may be accepted then: such cases are left out. */
static bool without_blocks(const struct test_case *test, struct test_case *out) {
    *out = *test;
    out->mode &= ~(BLOCKED | SEGMENTS | ONE);
    return !(test->mode & BLOCKED) || !(test->mode & REFUSED);
}

/* Sets a blocked layout of one segment, or of two if SEGMENTS; the first then has 5 channels. */
static void set_layout(struct tensor *t, int mode, int lanes) {
    if (!has_blocks(t, mode)) return;
    int channels = (int)size_value(t->dim[1]), n = mode & SEGMENTS ? 2 : 1;
    t->layout = (struct layout){.block = lanes, .n_segments = n};
    t->layout.segment = ARENA_ARRAY(&arena, struct segment, n);
    t->layout.segment[0].valid = n == 2 ? 5 : channels;
    if (n == 2) t->layout.segment[1].valid = channels - 5;
    for (int i = 0; i < n; i++) {
        struct segment *s = &t->layout.segment[i];
        s->stored = (int)round_up(s->valid, lanes);
        t->layout.stored += s->stored;
    }
}

static void set_view(struct run *r, const struct tensor *t) {
    struct size step = size_const(t->layout.block ? t->layout.block : 1);
    for (int d = t->rank - 1; d >= 0; d--) {
        bool split = t->layout.block && d == layout_channel_axis(t);
        r->views[t->id].stride[d] = step;
        step = size_mul(step, split ? size_const(t->layout.stored / t->layout.block) : t->dim[d]);
    }
    if (r->test->mode & APART && t->rank == 4)
        r->views[t->id].stride[0] = size_add(r->views[t->id].stride[0], size_const(GAP));
}

static bool is_listed(const struct test_case *test, int line) {
    char number[16];
    snprintf(number, sizeof number, "%%%d ", line);
    return test->outputs && strstr(test->outputs, number);
}

static void make_cluster(struct run *r) {
    struct cluster *c = r->cluster = ARENA_NEW(&arena, struct cluster);
    for (int i = 0; i < r->model->layers.n; i++) {
        struct layer *l = r->model->layers.at[i];
        bool source = layer_infos[l->kind].traits & SOURCE;
        if (!source) VEC_PUSH(&arena, &c->layers, l);
        else if (l->kind != LAYER_scalar) VEC_PUSH(&arena, &c->inputs, l->out[0]);
        if (!source && (i == r->model->layers.n - 1 || is_listed(r->test, i)))
            VEC_PUSH(&arena, &c->outputs, l->out[0]);
    }
}

static bool make_run(struct run *r, const struct test_case *test, int lanes) {
    char *text = arena_printf(&arena, "model \"t\" {\nsymbol $0 \"n\"\n%s\n}\n", test->text);
    r->test = test;
    if (ir_parse(text, &arena, &r->model)) {
        fprintf(stderr, "%s: %s\n", test->name, sol_error());
        return CHECK(false);
    }
    REQUIRE(r->model->n_tensors <= MAX_TENSORS);
    r->views = ARENA_ARRAY(&arena, struct storage, r->model->n_tensors);
    for (int i = 0; i < r->model->layers.n; i++) {
        struct tensor *t = r->model->layers.at[i]->out[0];
        set_layout(t, test->mode, lanes);
        set_view(r, t);
    }
    make_cluster(r);
    const struct device_caps caps = compiled_caps(lanes);
    const char *reason = dfp_refuse(&arena, &caps, r->cluster);
    if (!!reason != !!(test->mode & REFUSED))
        fprintf(stderr, "%s: refuse says: %s\n", test->name, reason ? reason : "(accepted)");
    CHECK(!!reason == !!(test->mode & REFUSED));
    if (reason) return false;
    enum sol_status status = dfp_generate(&arena, r->cluster, r->views, &caps, &r->kernel);
    if (status) fprintf(stderr, "%s: %s\n", test->name, sol_error());
    return CHECK(!status);
}

/* ---- Running and comparing ---- */

static bool is_close(float is, float should) {
    if (isnan(should) || isnan(is)) return isnan(should) && isnan(is);
    return is == should || fabs((double)is - should) <= 2e-5 * (fabs((double)should) + 1e-1);
}

static void compare(const struct run *r, const struct tensor *t, const char *how) {
    int64_t n = count(r, t), wrong = 0, all = stored(r, t);
    for (int64_t i = 0; i < n; i++) {
        float is = r->memory[t->id][place(r, t, i)], should = r->value[t->id][i];
        if (is_close(is, should)) {
            r->memory[t->id][place(r, t, i)] = 0;
            continue;
        }
        if (!wrong++)
            fprintf(stderr, "%s, %s: element %d is %g, not %g\n", r->test->name, how, (int)i, is,
                    should);
    }
    CHECK(wrong == 0);
    for (int64_t i = 0; i < all && !wrong && !(r->test->mode & APART); i++) {
        if (r->memory[t->id][i] == 0) continue;
        fprintf(stderr, "%s, %s: pad lane %d is %g\n", r->test->name, how, (int)i,
                r->memory[t->id][i]);
        CHECK(!"pad lanes are zero");
        break;
    }
}

static void run_case(struct run *r, kernel_function *function, const char *how) {
    const struct dfp_kernel *k = &r->kernel;
    void *ptr[MAX_TENSORS];
    int64_t arg[256];
    for (int i = 0; i < k->n_ptr; i++) {
        load_memory(r, k->ptr[i], i < r->cluster->inputs.n);
        ptr[i] = r->memory[k->ptr[i]->id];
    }
    for (int i = 0; i < k->n_arg; i++) arg[i] = size_eval(&k->arg[i], &r->test->symbol);
    char *scratch = aligned_alloc(64, k->scratch_size / 64 * 64 + 64);
    int64_t tasks = size_eval(&k->tasks, &r->test->symbol);
    int64_t cut[] = {0, tasks / 3, tasks - tasks / 4, tasks};
    for (int i = 0; i < 3; i++)
        if (function) function(ptr, arg, scratch, cut[i], cut[i + 1]);
        else dfp_interpret(k->code, ptr, arg, scratch, cut[i], cut[i + 1]);
    free(scratch);
    for (int i = 0; i < r->cluster->outputs.n; i++) compare(r, r->cluster->outputs.at[i], how);
}

static void eval_all(struct run *r) {
    for (int i = 0; i < r->model->layers.n; i++) {
        const struct layer *l = r->model->layers.at[i];
        if (l->kind == LAYER_input || l->kind == LAYER_param) fill_source(r, l->out[0]);
        else eval_layer(r, l);
    }
}

/* ---- Compiling ---- */

static struct text join_texts(const struct run *runs, int n) {
    struct text text;
    text_init(&text, &arena);
    for (int i = 0; i < n; i++)
        if (runs[i].kernel.text) compiled_add(&text, i, runs[i].kernel.text);
    return text;
}

/* Does clang accept them for NEC's vector engine, which has no other compiler here? The headers are the host's, which
 * do without a file of glibc's if they are said to be for x86. */
static void test_foreign(const struct run *runs, int n) {
    static const char clang[] = "/usr/lib/llvm-14/bin/clang";
    const char *program = getenv("CLANG") ? getenv("CLANG") : clang;
    char path[64], output[4096];
    const char *const argv[] = {program,
                                "--target=ve-linux",
                                "-std=c99",
                                "-O2",
                                "-S",
                                "-ffreestanding",
                                "-Wall",
                                "-Werror",
                                "-Wno-unused-function",
                                "-isystem",
                                "/usr/include",
                                "-isystem",
                                INCLUDE_HOST,
                                "-D__x86_64__",
                                path,
                                "-o",
                                "/dev/null",
                                NULL};
    struct os_run run = {.max_s = 300};
    if (check_is_emulated("clang for vector engines")) return;
    if (access(program, X_OK)) {
        printf("no kernels are compiled for ve: there is no %s\n", program);
        return;
    }
    snprintf(path, sizeof path, "/tmp/test_kernels_ve_%d.c", (int)getpid());
    struct text text = join_texts(runs, n);
    compiled_write(path, &text, 1);
    CHECK(!os_spawn(argv, &run, output, sizeof output) && run.code == 0);
    if (run.code) fprintf(stderr, "%s\n", output);
    unlink(path);
}

static void test_cases(int lanes) {
    static struct run runs[MAX_CASES];
    static struct test_case plain[MAX_CASES];
    int n = COUNT(cases);
    REQUIRE(n <= MAX_CASES);
    memset(runs, 0, sizeof runs);
    for (int i = 0; i < n; i++) {
        const bool fits = without_blocks(&cases[i], &plain[i]) || lanes > 1;
        if (!fits || !make_run(&runs[i], lanes > 1 ? &cases[i] : &plain[i], lanes))
            runs[i].kernel.text = NULL;
    }
    if (lanes == 1) test_foreign(runs, n);
    const struct text text = join_texts(runs, n);
    void *handle = compiled_open(&text, lanes);
    for (int i = 0; i < n; i++) {
        if (!runs[i].kernel.text) continue;
        kernel_function *function = compiled_find(handle, i);
        eval_all(&runs[i]);
        run_case(&runs[i], function, "compiled");
        if (runs[i].kernel.code) run_case(&runs[i], NULL, "interpreted");
    }
    dlclose(handle);
}

/* ---- Functions: at most 4 units in the last place, and the right special values ---- */

#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wpsabi"
#pragma GCC diagnostic ignored "-Wpedantic"
#define LANES 4
#define TEXT(...) __VA_ARGS__
#include "dfp/vector.h"
#include "dfp/vector_curve.h"
#include "dfp/vector_one.h"

static void test_function(const char *name, vec (*function)(vec), double (*truth)(double)) {
    double worst = 0;
    float at = 0;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 1) {
        union {
            uint32_t bits;
            float value;
        } x = {(uint32_t)bits};
        double ulps = meaning_ulps(function(splat(x.value))[1], truth((double)x.value));
        if (ulps > worst) worst = ulps, at = x.value;
        bits += 4092;
    }
    const float special[] = {0,      -0.0f, 1,      -1,      INFINITY, -INFINITY, NAN,
                             88.72f, 88.8f, -87.4f, -103.9f, -110,     1e-45f,    3.4e38f};
    for (int i = 0; i < COUNT(special); i++)
        worst =
            fmax(worst, meaning_ulps(function(splat(special[i]))[1], truth((double)special[i])));
    if (worst > 4) fprintf(stderr, "%s: %g ulp at %g\n", name, worst, at);
    CHECK(worst <= 4);
}

static void test_choices(void) {
    vec nan = splat(NAN), one = splat(1);
    CHECK(isnan(MAX(nan, one)[0]) && isnan(MAX(one, nan)[0]) && isnan(MIN(nan, one)[0]) &&
          isnan(MIN(one, nan)[0]));
    CHECK(isnan(MAX1(NAN, 1)) && isnan(MAX1(1, NAN)) && isnan(MIN1(NAN, 1)) && isnan(MIN1(1, NAN)));
    CHECK(MAX(splat(2), one)[0] == 2 && MIN(splat(2), one)[0] == 1 && LESS(one, splat(2))[0] == 1);
}

static void test_functions(void) {
    test_function("exp", EXP, exp);
    test_function("log", LOG, log);
    test_function("tanh", TANH, tanh);
    test_function("erf", ERF, erf);
    test_choices();
}

/* ---- The text does not depend on sizes ---- */

static const char *find_text(const char *layers, int64_t batch) {
    static struct run r;
    struct test_case test = {"sizes", layers, BLOCKED, batch, NULL};
    r = (struct run){0};
    return make_run(&r, &test, 8) ? r.kernel.text : "(none)";
}

static const char *find_plain(const char *layers) {
    static struct run r;
    struct test_case test = {"plain", layers, PLAIN, 1, NULL};
    r = (struct run){0};
    return make_run(&r, &test, 1) ? r.kernel.text : "(none)";
}

static void test_sizes(void) {
    const char *small = "%0 = input f32[$0,24,9,11] \"x\"\n"
                        "%1 = max_pool %0 kernel=[3,3] stride=[2,2] pad=[1,1,1,1]\n%2 = exp %1";
    const char *large = "%0 = input f32[$0,48,19,31] \"x\"\n"
                        "%1 = max_pool %0 kernel=[3,3] stride=[2,2] pad=[1,1,1,1]\n%2 = exp %1";
    CHECK_TEXT(find_text(small, 1), find_text(large, 5));
}

/* An epilogue overwrites its tile point by point, so it may read the tile only at the point that it writes. */
static void test_in_place(void) {
    static const struct {
        const char *layers;
        bool refused;
    } epilogues[] = {{"%1 = relu %0\n%2 = add %1 %0", false},
                     {"%1 = permute %0 axes=[1,0]\n%2 = add %1 %0", true},
                     {"%1 = slice %0 axis=0 shape=[1]\n%2 = add %1 %0", true}};
    for (int i = 0; i < COUNT(epilogues); i++) {
        struct run r = {0};
        struct test_case test = {"in place", NULL, PLAIN, 1, NULL};
        test.text = arena_printf(&arena, "%%0 = input f32[9,9] \"x\"\n%s", epilogues[i].layers);
        if (!make_run(&r, &test, 8)) continue;
        r.cluster->tile = r.cluster->inputs.at[0];
        const struct device_caps caps = compiled_caps(8);
        if (!CHECK(!dfp_refuse(&arena, &caps, r.cluster) == !epilogues[i].refused))
            fprintf(stderr, "%s\n", epilogues[i].layers);
    }
}

static int count_text(const char *text, const char *word) {
    int n = 0;
    for (; (text = strstr(text, word)); text++) n++;
    return n;
}

/* Points outside of an image are not iterations of its loops: the bounds of the loops leave them out, also if a condition or a factor
 * in a product guards the load. So they take no time, and an infinite weight times 0 does not give NaN. The columns of windows that
 * are computed in two stages have no bounds: they read the margins of a row. */
static void test_bounds(void) {
    static const struct {
        const char *layers;
        int n; /* loops with a bound */
    } windows[] = {
        {"%1 = max_pool %0 kernel=[3,3] pad=[1,1,1,1]", 1},
        {"%1 = avg_pool %0 kernel=[3,3] pad=[1,1,1,1] count_pad=false", 3},
        {"%1 = adaptive_avg_pool %0 kernel=[4,3]", 6},
        {"%1 = param f32[24,24,3,3] \"p\"\n%2 = conv %0 %1 pad=[1,1,1,1]", 2},
    };
    for (int i = 0; i < COUNT(windows); i++) {
        const char *text = find_text(
            arena_printf(&arena, "%%0 = input f32[$0,24,9,11] \"x\"\n%s", windows[i].layers), 1);
        int n = count_text(text, "_end = min_int(i");
        if (!CHECK(n == windows[i].n))
            fprintf(stderr, "%d bounds in %s\n%s", n, windows[i].layers, text);
    }
}

/* The innermost loops of a dialect of single values are marked: but for reductions, scans, and loops whose iterations share a place in
 * scratch. Without the marks it is the portable dialect. */
static void test_hints(void) {
    static const struct {
        const char *layers;
        int n;
    } loops[] = {
        {"%1 = relu %0", 1},
        {"%1 = sum %0 axes=[1]", 0},
        {"%1 = cumsum %0 axis=1", 0},
        {"%1 = exp %0\n%2 = sum %1 axes=[1] keepdim=true\n%3 = div %1 %2", 2},
        {"%1 = permute %0 axes=[1,0]\n%2 = relu %1", 1},
    };
    for (int i = 0; i < COUNT(loops); i++) {
        const char *text =
            find_plain(arena_printf(&arena, "%%0 = input f32[600,700] \"x\"\n%s", loops[i].layers));
        int n = count_text(text, "INDEPENDENT for (");
        if (!CHECK(n == loops[i].n)) fprintf(stderr, "%d hints\n%s", n, text);
    }
}

/* A dialect of single values has no vectors, and no kernel takes blocks that are not its vectors. */
static void test_widths(void) {
    struct run r = {0};
    const struct test_case test = {"widths", "%0 = input f32[2,24,5,7] \"x\"\n%1 = relu %0",
                                   BLOCKED, 1, NULL};
    struct device_caps caps = compiled_caps(8);
    if (!make_run(&r, &test, 8)) return;
    caps.vector = 16;
    CHECK(dfp_refuse(&arena, &caps, r.cluster) != NULL);
    CHECK(dfp_generate(&arena, r.cluster, r.views, &caps, &r.kernel) == SOL_EUNSUPPORTED);
    caps.vector = 8, caps.dialect = &dfp_plain;
    CHECK(dfp_generate(&arena, r.cluster, r.views, &caps, &r.kernel) == SOL_EBUG);
}

int main(void) {
    arena_init(&arena);
    arena.boundary = &boundary;
    if (setjmp(boundary)) return 1;
    test_functions();
    test_sizes();
    test_bounds();
    test_in_place();
    test_hints();
    test_widths();
    test_cases(1);
    test_cases(8);
    test_cases(16);
    arena_fini(&arena);
    return check_done();
}

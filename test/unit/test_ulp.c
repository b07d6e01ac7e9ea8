/*
 * The error of the functions of generated kernels, in units in the last place, as vectors of each instruction set that this machine
 * has: of every STRIDE-th float, and of special values. `test_ulp 1` walks all floats (about ten minutes) and prints the table of
 * docs/numerics.md.
 */
#include "check.h"

#include "device/cpu/cpu.h"
#include "dfp/dfp.h"
#include "meaning.h"

#include <dlfcn.h>
#include <float.h>
#include <unistd.h>

#define STRIDE 4093 /* a prime, so that all low bits occur */
enum { N = 1024 };

/* Below -88.72, exp(-x) is infinite as a float. */
static double sigmoid(double x) { return exp(-x) > FLT_MAX ? 0 : 1 / (1 + exp(-x)); }
static double silu(double x) { return x * sigmoid(x); }

static double power(double x) { return pow(x, 2.5); }
static double cube(double x) { return pow(x, -3); }

/* `ulps`: the largest error allowed, with tables (vector_table.h) and without, and without fused multiply-adds. */
static const struct function {
    const char *name, *text;
    double (*truth)(double);
    double table, curve, plain;
} functions[] = {
    {"exp", "EXP(x)", exp, 0.95, 0.95, 1.3},
    {"log", "LOG(x)", log, 0.9, 0.9, 1.2},
    {"tanh", "TANH(x)", tanh, 1.1, 1.9, 2.5},
    {"erf", "ERF(x)", erf, 1.1, 1.9, 2.5},
    {"sigmoid", "1.0f / (1.0f + EXP(-x))", sigmoid, 2.5, 2.5, 2.5},
    {"silu", "x / (1.0f + EXP(-x))", silu, 3, 3, 3},
    {"sin", "SIN(x)", sin, 0.6, 0.6, 0.6},
    {"cos", "COS(x)", cos, 0.6, 0.6, 0.6},
    {"pow", "POW(x, splat(2.5f))", power, 0.6, 0.6, 0.6},
    {"cube", "POW(x, splat(-3.0f))", cube, 0.6, 0.6, 0.6},
};

static const float special[] = {0,        -0.0f,  1,      -1,      INFINITY, -INFINITY,
                                NAN,      88.72f, 88.8f,  -87.4f,  -87.3f,   -103.9f,
                                -103.98f, -110,   1e-45f, -1e-45f, 3.4e38f,  -3.4e38f,
                                0.625f,   9.05f,  3.87f,  4,       -9.2f,    10};

typedef void rows(const float *x, float *y, int64_t n);

static void *compile(const struct dnn_isa *isa) {
    char path[64], library[64], command[1024], output[4096];
    snprintf(path, sizeof path, "/tmp/test_ulp_%d.c", (int)getpid());
    snprintf(library, sizeof library, "/tmp/test_ulp_%d_%s.so", (int)getpid(), isa->name);
    FILE *file = fopen(path, "w");
    REQUIRE(file);
    fputs(dfp_prelude, file);
    fputs(dfp_types, file);
    for (int i = 0; i < COUNT(functions); i++)
        fprintf(file,
                "void rows_%s(const float *from, float *to, int64_t n) {\n"
                "    for (int64_t i = 0; i < n; i += LANES) {\n"
                "        const vec x = load(from + i);\n"
                "        store(to + i, %s);\n    }\n}\n",
                functions[i].name, functions[i].text);
    fputs(
        "void rows_max(const float *a, float *y, int64_t n) { store(y, MAX(load(a), load(a + n))); }\n"
        "void rows_min(const float *a, float *y, int64_t n) { store(y, MIN(load(a), load(a + n))); }\n"
        "void rows_sum(const float *a, float *y, int64_t n) { store(y, ADD_up_to(load(a))); }\n",
        file);
    REQUIRE(!fclose(file));
    snprintf(command, sizeof command,
             "cc -std=gnu99 " CPU_KERNEL_FLAGS " " CPU_OBJECT_FLAGS " %s %s -o %s", isa->flags,
             path, library);
    const char *const argv[] = {"sh", "-c", command, NULL};
    struct os_run run = {.max_s = 100};
    REQUIRE(!os_spawn(argv, &run, output, sizeof output));
    if (run.code) fprintf(stderr, "%s\n", output);
    REQUIRE(run.code == 0);
    void *handle = dlopen(library, RTLD_NOW);
    REQUIRE(handle);
    unlink(library);
    unlink(path);
    return handle;
}

static rows *find(void *handle, const char *name) {
    char symbol[32];
    rows *function;
    snprintf(symbol, sizeof symbol, "rows_%s", name);
    void *address = dlsym(handle, symbol);
    REQUIRE(address);
    memcpy(&function, &address, sizeof function);
    return function;
}

static double worst_of(const struct function *f, const float *x, const float *y, double worst,
                       float *at) {
    for (int i = 0; i < N; i++) {
        double ulps = meaning_ulps(y[i], f->truth((double)x[i]));
        if (ulps > worst) worst = ulps, *at = x[i];
    }
    return worst;
}

/* Walks the bit patterns of floats; those behind the last one begin again at 0. */
static double measure(const struct function *f, rows *function, uint64_t stride, float *at) {
    float x[N] = {0}, y[N];
    memcpy(x, special, sizeof special);
    function(x, y, N);
    double worst = worst_of(f, x, y, 0, at);
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32;) {
        for (int i = 0; i < N; i++, bits += stride) {
            uint32_t low = (uint32_t)bits;
            memcpy(&x[i], &low, sizeof low);
        }
        function(x, y, N);
        worst = worst_of(f, x, y, worst, at);
    }
    return worst;
}

static void test_choices(void *handle) {
    float in[32], out[16];
    static const float pairs[][2] = {{1, 2},     {2, 1},           {NAN, 1},      {1, NAN},
                                     {NAN, NAN}, {-INFINITY, NAN}, {3, -INFINITY}};
    for (int i = 0; i < COUNT(pairs); i++) {
        float a = pairs[i][0], b = pairs[i][1];
        for (int l = 0; l < 16; l++) in[l] = a, in[l + 16] = b;
        bool nan = isnan(a) || isnan(b);
        find(handle, "max")(in, out, 16);
        CHECK(nan ? isnan(out[1]) : out[1] == fmaxf(a, b));
        find(handle, "min")(in, out, 16);
        CHECK(nan ? isnan(out[1]) : out[1] == fminf(a, b));
    }
}

static void test_sums(void *handle, int lanes) {
    float in[16], out[16], sum = 0;
    for (int l = 0; l < 16; l++) in[l] = (float)(l * l + 1);
    find(handle, "sum")(in, out, lanes);
    for (int l = 0; l < lanes; l++) CHECK(out[l] == (sum += in[l]));
}

int main(int argc, char **argv) {
    const uint64_t stride = argc > 1 ? (uint64_t)atoll(argv[1]) : STRIDE;
    REQUIRE(stride > 0);
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++) {
        if (!cpu_has(isa) || !strcmp(isa->arch, CPU_NAME) == !*isa->arch) continue;
        void *handle = compile(isa);
        bool table = isa->lanes == 16, fused = *isa->arch;
        test_choices(handle);
        test_sums(handle, isa->lanes);
        for (int i = 0; i < COUNT(functions); i++) {
            const struct function *f = &functions[i];
            float at = 0;
            double worst = measure(f, find(handle, f->name), stride, &at);
            double allowed = table ? f->table : fused ? f->curve : f->plain;
            if (argc > 1 || worst > allowed)
                printf("| %s | %s | %.2f | %.9g |\n", f->name, isa->name, worst, (double)at);
            fflush(stdout);
            CHECK(worst <= allowed);
        }
        dlclose(handle);
    }
    return check_done();
}

/*
 * What follows from the lists of the DNN module: texts of problems and plans, keys of timings, names of implementations, and
 * deployed libraries. The tests walk each list, so a new row is tested without a new line here.
 */
#include "check.h"
#include "device/cpu/cpu.h"
#include "device/cpu/tune.h"
#include "dnn/list.h"

#include <math.h>
#include <sol/deploy.h>
#include <unistd.h>

static struct arena arena;
static const int map[] = {0, 1, -1, 2}, other_map[] = {0, 1, 2, -1};

static const char *key_of(const struct dnn_problem *problem) {
    const struct dnn_plan plans[] = {
        {.impl = dnn_impls[0], .kernels = cpu_isa()->kernels, .problem = *problem}};
    return cpu_tune_key(&arena, plans, COUNT(plans));
}

static const char *text_of(const struct dnn_problem *problem) {
    struct text text;
    text_init(&text, &arena);
    dnn_print_problem(&text, problem);
    return text.at;
}

static void check_differs(const struct dnn_problem *a, const struct dnn_problem *b,
                          const char *name) {
    bool ok = CHECK(strcmp(text_of(a), text_of(b))) & CHECK(strcmp(key_of(a), key_of(b)));
    if (!ok) printf("another %s is the same problem\n", name);
}

static const struct dnn_problem base = {.c = 4, .k = 4, .c_map = map, .k_map = map};

#define CHANGE_INT(field) changed.field = !changed.field
#define CHANGE_INTS(field) changed.field[1] = 1
#define CHANGE_FLOAT(field) changed.field = -INFINITY
#define CHANGE_C_MAP(field) changed.field = other_map
#define CHANGE_K_MAP(field) changed.field = other_map

/* The key of a problem changes with every single field, also with a map that is NULL. */
static void test_fields(void) {
    CHECK_TEXT(key_of(&base), key_of(&base));
#define TEST_FIELD(kind, type, name, ...)          \
    {                                              \
        struct dnn_problem changed = base;         \
        CHANGE_##kind(name);                       \
        check_differs(&base, &changed, #name);     \
    }
    DNN_PROBLEM(TEST_FIELD)
    struct dnn_problem without = base;
    without.c_map = NULL;
    check_differs(&base, &without, "c_map");
}

/* Names are equal to those of the symbols, because deployed libraries use both. Own kernels have a file, vendors' libraries have none. */
static void test_names(void) {
    int n = 0;
    while (dnn_impls[n]) n++;
    CHECK(n == DNN_N_IMPLS);
#define TEST_OWN(file, impl)                                \
    CHECK_TEXT(dnn_##impl.name, #impl);                     \
    CHECK(!dnn_##impl.probe);                               \
    CHECK_TEXT(dnn_find_file(&dnn_##impl), #file);
#define TEST_VENDOR(file, impl)                                   \
    CHECK_TEXT(dnn_##impl.name, #impl);                     \
    CHECK(dnn_##impl.probe && !dnn_find_file(&dnn_##impl));
    DNN_LIST(TEST_OWN, TEST_OWN, TEST_VENDOR)
}

/* ---- Deployed libraries ---- */

static const char network[] = "model \"m\" {\nsymbol $0 \"n\"\n"
                              "%0 = input f32[$0,3,8,8] \"x\"\n"
                              "%1 = param f32[20,3,3,3] \"w\"\n"
                              "%2 = conv %0 %1 pad=[1,1,1,1]\n"
                              "output %2 \"y\"\n}\n";

/* The text of the library has every field of every plan. */
static void check_source(const char *source) {
    int n = 0;
    for (const char *at = source; (at = strstr(at, "struct dnn_work data_")); n++) {
        const char *end = strstr(at, ";\n");
        REQUIRE(end);
        const char *work = arena_printf(&arena, "%.*s", (int)(end - at), at);
#define CHECK_FIELD(kind, type, name, ...)          \
    if (!CHECK(strstr(work, " ." #name " = "))) printf("%s is not printed\n", #name);
        DNN_PROBLEM(CHECK_FIELD)
        DNN_PLAN(CHECK_FIELD)
        at = end;
    }
    CHECK(n == 1);
}

static void test_library(void) {
    char folder[] = "/tmp/test_dnn_list.XXXXXX", *source;
    float weight[20 * 3 * 3 * 3] = {0};
    const void *const params[] = {weight};
    size_t size;
    struct sol_model *model = NULL;
    REQUIRE(mkdtemp(folder));
    struct sol_library library = {.lib_name = "Net",
                                  .func_name = "predict",
                                  .path = folder,
                                  .target = SOL_C_SOURCE,
                                  .device = CPU_NAME};
    enum sol_status status = sol_model_parse(network, &model);
    if (!status) status = sol_deploy(model, params, &library);
    if (!CHECK(!status)) printf("%s\n", sol_error());
    const char *path = arena_printf(&arena, "%s/Net/network.c", folder);
    if (CHECK(!os_read(path, &source, &size))) {
        check_source(source);
        mem_free(source);
    }
    const char *const argv[] = {"rm", "-rf", folder, NULL};
    struct os_run run = {.max_s = 60};
    CHECK(!os_spawn(argv, &run, NULL, 0));
    sol_model_free(model);
}

int main(void) {
    arena_init(&arena);
    ARENA_BOUNDARY(&arena, return 1);
    test_fields();
    test_names();
    test_library();
    arena_fini(&arena);
    return check_done();
}

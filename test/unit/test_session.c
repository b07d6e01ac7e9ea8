/* Sessions from C: small float types, arrays, a network with compiled and interpreted nodes, overlapping calls, failing allocations. */
#include "check.h"
#include "children.h"
#include "proto_writer.h"
#include "run/packs.h"

#include "../../src/frontend/onnx/array.h"
#include <math.h>
#include <pthread.h>
#include <sol/onnx.h>

/* ---- Small float types ---- */

/* Decoding and encoding gives each bit pattern of a type again. NaN may have another pattern, and FNUZ types have no -0. */
static void test_patterns(enum type type, unsigned n) {
    int wrong = 0;
    for (unsigned bits = 0; bits < n; bits++) {
        double value = float_decode(type, bits);
        if (isnan(value)) wrong += !isnan(float_decode(type, float_encode(type, value, true)));
        else wrong += float_encode(type, value, false) != bits;
    }
    CHECK(wrong == 0);
}

static void test_floats(void) {
    test_patterns(TYPE_F16, 65536);
    test_patterns(TYPE_BF16, 65536);
    test_patterns(TYPE_E4M3FN, 256);
    test_patterns(TYPE_E4M3FNUZ, 256);
    test_patterns(TYPE_E5M2, 256);
    test_patterns(TYPE_E5M2FNUZ, 256);
    test_patterns(TYPE_E2M1, 16);
    test_patterns(TYPE_E8M0, 255);
    CHECK(float_decode(TYPE_F16, float_encode(TYPE_F16, 65519.9, true)) == 65504);
    CHECK(isinf(float_decode(TYPE_F16, float_encode(TYPE_F16, 65520, true))));
    CHECK(float_decode(TYPE_E4M3FN, float_encode(TYPE_E4M3FN, 1e9, true)) == 448);
    CHECK(isnan(float_decode(TYPE_E4M3FN, float_encode(TYPE_E4M3FN, 1e9, false))));
    CHECK(float_decode(TYPE_F16, float_encode(TYPE_F16, 1 + 1.0 / 2048, true)) == 1); /* to even */
    CHECK(float_decode(TYPE_F16, float_encode(TYPE_F16, 1e-8, true)) == 0);
}

static void test_elements(void) {
    unsigned char data[8] = {0};
    struct array four = {.type = TYPE_I4, .n = 1, .data = data};
    array_set_int(&four, 0, -3);
    CHECK(array_int(&four, 0) == -3 && array_double(&four, 0) == -3);
    array_set_int(&four, 0, 9);
    CHECK(array_int(&four, 0) == -7);
    struct array wide = {.type = TYPE_U64, .n = 1, .data = data};
    array_set_double(&wide, 0, 1e19);
    CHECK((uint64_t)array_int(&wide, 0) == 10000000000000000000u);
    struct array eight = {.type = TYPE_I8, .n = 1, .data = data};
    array_set_double(&eight, 0, NAN);
    CHECK(array_int(&eight, 0) == 0);
    int64_t n;
    CHECK(!dims_count(3, (int64_t[]){0, INT64_MAX, INT64_MAX}, &n));
    CHECK(dims_count(2, (int64_t[]){3, 0}, &n) && n == 0);
}

/* ---- A network ---- */

static void put_port(struct message *graph, int field, const char *name, int type, int rank) {
    struct message shape = {0}, tensor = {0}, kind = {0}, port = {0};
    for (int d = 0; d < rank; d++) put_raw(&shape, 1, "", 0);
    put_int(&tensor, 1, type);
    put_message(&tensor, 2, &shape);
    put_message(&kind, 1, &tensor);
    put_text(&port, 1, name);
    put_message(&port, 2, &kind);
    put_message(graph, field, &port);
}

static void put_node(struct message *graph, const char *op, const char *a, const char *b,
                     const char *y) {
    struct message node = {0};
    put_text(&node, 1, a);
    if (b) put_text(&node, 1, b);
    put_text(&node, 2, y);
    put_text(&node, 4, op);
    put_message(graph, 1, &node);
}

static struct message make_model(const struct message *graph) {
    struct message opset = {0}, model = {0};
    put_int(&opset, 2, 20);
    put_int(&model, 1, 10);
    put_message(&model, 7, graph);
    put_message(&model, 8, &opset);
    return model;
}

/* y = sqrt(sinh(exp(reshape(x, s)))): sinh is interpreted, the other nodes are compiled. */
static struct message make_network(void) {
    struct message graph = {0};
    put_node(&graph, "Reshape", "x", "s", "a");
    put_node(&graph, "Exp", "a", NULL, "b");
    put_node(&graph, "OptionalGetElement", "b", NULL, "c");
    put_node(&graph, "Sqrt", "c", NULL, "y");
    put_port(&graph, 11, "x", 1, 2);
    put_port(&graph, 11, "s", 7, 1);
    put_port(&graph, 12, "y", 1, 2);
    return make_model(&graph);
}

static void put_tensor(struct message *graph, const char *name, int type, int64_t n,
                       const void *data, size_t size) {
    struct message tensor = {0};
    if (n) put_int(&tensor, 1, (uint64_t)n);
    put_int(&tensor, 2, (uint64_t)type);
    put_text(&tensor, 8, name);
    put_raw(&tensor, 9, data, size);
    put_message(graph, 5, &tensor);
}

static void put_graph(struct message *node, const char *name, const struct message *graph) {
    struct message attribute = {0};
    put_text(&attribute, 1, name);
    put_message(&attribute, 6, graph);
    put_int(&attribute, 20, 5);
    put_message(node, 5, &attribute);
}

/* y = sqrt(c), for so many values that the branch is compiled: max(sqrt(c + zeros)) over the first of three dims. */
static struct message make_branch(void) {
    static const float zeros[40];
    static const int64_t shape[3] = {40, 1, 1}, axis = 0;
    struct message graph = {0}, max = {0}, keep = {0};
    put_node(&graph, "Reshape", "zeros", "shape", "z");
    put_node(&graph, "Add", "c", "z", "d");
    put_node(&graph, "Sqrt", "d", NULL, "e");
    put_text(&max, 1, "e");
    put_text(&max, 1, "axes");
    put_text(&max, 2, "f");
    put_text(&max, 4, "ReduceMax");
    put_text(&keep, 1, "keepdims");
    put_int(&keep, 20, 2);
    put_int(&keep, 3, 0);
    put_message(&max, 5, &keep);
    put_message(&graph, 1, &max);
    put_tensor(&graph, "zeros", 1, 40, zeros, sizeof zeros);
    put_tensor(&graph, "shape", 7, 3, shape, sizeof shape);
    put_tensor(&graph, "axes", 7, 1, &axis, sizeof axis);
    put_port(&graph, 12, "f", 1, 2);
    return graph;
}

/* The same as make_network, but the last node is an If whose branches compute it. */
static struct message make_branches(void) {
    struct message graph = {0}, choice = {0}, branch = make_branch();
    put_node(&graph, "Reshape", "x", "s", "a");
    put_node(&graph, "Exp", "a", NULL, "b");
    put_node(&graph, "OptionalGetElement", "b", NULL, "c");
    put_text(&choice, 1, "true");
    put_text(&choice, 2, "y");
    put_text(&choice, 4, "If");
    put_graph(&choice, "then_branch", &branch);
    put_graph(&choice, "else_branch", &branch);
    put_message(&graph, 1, &choice);
    put_tensor(&graph, "true", 9, 0, &(bool){true}, 1);
    put_port(&graph, 11, "x", 1, 2);
    put_port(&graph, 11, "s", 7, 1);
    put_port(&graph, 12, "y", 1, 2);
    return make_model(&graph);
}

/* x: the first n of 6 values, as one row or as one column. */
static enum sol_status call_part(struct sol_session *net, int n, bool is_row, int columns,
                                 float y[6]) {
    static const float x[6] = {0, 0.5f, 1, -1, 2, 0.25f};
    const int64_t shape[2] = {n / columns, columns};
    struct sol_value values[2] = {
        {.type = 1, .rank = 2, .dim = {is_row ? 1 : n, is_row ? n : 1}, .n = n, .data = x},
        {.type = 7, .rank = 1, .dim = {2}, .n = 2, .data = shape}};
    const struct sol_value *inputs[2] = {&values[0], &values[1]};
    struct sol_results *results = NULL;
    enum sol_status status = sol_session_run(net, inputs, &results);
    if (!status) memcpy(y, sol_results_get(results, 0)->data, (size_t)n * sizeof *y);
    sol_results_free(results);
    return status;
}

static bool part_is_right(int n, const float y[6]) {
    static const double x[6] = {0, 0.5, 1, -1, 2, 0.25};
    bool right = true;
    for (int i = 0; i < n; i++) right &= fabs((double)y[i] / sqrt(exp(x[i])) - 1) < 1e-5;
    return right;
}

static enum sol_status call(struct sol_session *net, float y[6]) {
    return call_part(net, 6, true, 2, y);
}
static bool is_right(const float y[6]) { return part_is_right(6, y); }

static void test_network(struct message model, int n_compiled, int n_interpreted) {
    struct sol_session *net;
    float y[6];
    int compiled, interpreted;
    REQUIRE(!sol_session_parse(model.at, model.size, NULL, NULL, &net));
    for (int i = 0; i < 2; i++) {
        CHECK(!call(net, y) && is_right(y));
        sol_session_count(net, &compiled, &interpreted);
        CHECK(compiled == n_compiled && interpreted == n_interpreted);
    }
    sol_session_free(net);
}

/* Calls with more shapes than partitions are cached for, so partitions are replaced while other threads run them. Returns the number of
 * wrong results. */
static int call_shapes(struct sol_session *net) {
    int wrong = 0;
    for (int i = 0; i < 120; i++) {
        const int n = 1 + i / 12 % 6, columns = 1 + i / 2 % 6;
        float y[6];
        if (n % columns) continue;
        wrong += call_part(net, n, i % 2, columns, y) != SOL_OK || !part_is_right(n, y);
    }
    return wrong;
}

static atomic_bool stop;
static void *call_until_stopped(void *net) {
    int wrong = 0;
    do wrong += call_shapes(net);
    while (!atomic_load(&stop));
    CHECK(wrong == 0);
    return NULL;
}

static struct sol_session *overlapped;

/* Also called in a forked child, in whose parent another thread may have been planning. */
static bool shapes_are_right(void) { return !call_shapes(overlapped); }

static void test_calls_that_overlap(struct message model) {
    pthread_t callers[3];
    REQUIRE(!sol_session_parse(model.at, model.size, NULL, NULL, &overlapped));
    atomic_store(&stop, false);
    for (int i = 0; i < COUNT(callers); i++)
        REQUIRE(!pthread_create(&callers[i], NULL, call_until_stopped, overlapped));
    const int n_forks = check_cannot_fork() ? 0 : 20;
    for (int i = 0; i < n_forks; i++) CHECK(child_does(shapes_are_right, 60));
    atomic_store(&stop, true);
    for (int i = 0; i < COUNT(callers); i++) pthread_join(callers[i], NULL);
    CHECK(shapes_are_right());
    sol_session_free(overlapped);
}

/* y = cumsum(x w, axis); w is 40 x 32, all values 0.5. */
static struct message make_weighted(void) {
    static float w[40 * 32];
    for (int i = 0; i < COUNT(w); i++) w[i] = 0.5f;
    struct message graph = {0}, tensor = {0};
    put_node(&graph, "MatMul", "x", "w", "a");
    put_node(&graph, "CumSum", "a", "axis", "y");
    put_int(&tensor, 1, 40), put_int(&tensor, 1, 32);
    put_int(&tensor, 2, 1);
    put_text(&tensor, 8, "w");
    put_raw(&tensor, 9, w, sizeof w);
    put_message(&graph, 5, &tensor);
    put_port(&graph, 11, "x", 1, 2);
    put_port(&graph, 11, "axis", 7, 0);
    put_port(&graph, 12, "y", 1, 2);
    return make_model(&graph);
}

static bool weighted_is_right(struct sol_session *net, int64_t n) {
    static float x[8 * 40];
    static const int64_t axis = 0;
    for (int i = 0; i < COUNT(x); i++) x[i] = 1;
    struct sol_value values[2] = {{.type = 1, .rank = 2, .dim = {n, 40}, .n = n * 40, .data = x},
                                  {.type = 7, .n = 1, .data = &axis}};
    struct sol_results *results = NULL;
    if (sol_session_run(net, (const struct sol_value *[]){&values[0], &values[1]}, &results))
        return false;
    const float *y = sol_results_get(results, 0)->data;
    bool right = true;
    for (int i = 0; i < n * 32; i++) right &= y[i] == 20 * (float)(i / 32 + 1);
    sol_results_free(results);
    return right;
}

/* A program for one more length needs no more memory for packed parameters. */
static void test_weights_of_lengths(void) {
    struct message model = make_weighted();
    struct sol_session *net;
    REQUIRE(!sol_session_parse(model.at, model.size, NULL, NULL, &net));
    CHECK(weighted_is_right(net, 1));
    const size_t once = packs_size();
    CHECK(once >= 40 * 32 * 4);
    for (int64_t n = 2; n <= 8; n++) CHECK(weighted_is_right(net, n) && packs_size() == once);
    for (int64_t n = 1; n <= 8; n++) CHECK(weighted_is_right(net, n));
    sol_session_free(net);
    CHECK(packs_size() == 0);
}

/* Each allocation fails once, while loading or in a call. Afterwards a call of the same network gives the correct result. */
static void test_failing_allocations(struct message model) {
    enum sol_status status = SOL_ENOMEM;
    int wrong = 0;
    for (long n = 1; status && n < 100000; n++) {
        struct sol_session *net = NULL;
        float y[6];
        mem_fail_at = n;
        status = sol_session_parse(model.at, model.size, NULL, NULL, &net);
        if (!status) status = call(net, y);
        bool failed = !mem_fail_at;
        mem_fail_at = 0;
        wrong += status && (status != SOL_ENOMEM || !failed);
        if (net) wrong += call(net, y) != SOL_OK || !is_right(y);
        sol_session_free(net);
        if (!failed) break;
        if (!status) status = SOL_ENOMEM; /* the failed allocation was optional */
    }
    CHECK(wrong == 0);
}

int main(void) {
    setenv("SOL_CC", "none", 1);
    test_floats();
    test_elements();
    test_network(make_network(), 3, 1);
    test_network(make_branches(), 5, 2);
    test_calls_that_overlap(make_network());
    test_calls_that_overlap(make_branches());
    test_weights_of_lengths();
    test_failing_allocations(make_network());
    test_failing_allocations(make_branches());
    return check_done();
}

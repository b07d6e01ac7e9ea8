/*
 * The ONNX frontend: the model of a valid file, and the errors for invalid ones. The test writes the files byte by byte, so
 * they can be invalid in any way. The tests in test/onnx compare whole networks with ONNX's own reference.
 */
#include "base/base.h"
#include "check.h"
#include "proto_writer.h"

#include <sol/onnx.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Parts of a model ---- */

enum { FLOAT = 1, INT64 = 7 };

static struct message make_tensor(const char *name, int type, int rank, const int64_t *dims,
                                  const void *raw, size_t size) {
    struct message m = {0};
    for (int i = 0; i < rank; i++) put_int(&m, 1, dims[i]);
    put_int(&m, 2, type);
    put_text(&m, 8, name);
    if (raw) put_raw(&m, 9, raw, size);
    return m;
}

/* A value with dims; the first one is open if it is below 0. */
static struct message make_value(const char *name, int type, int rank, const int64_t *dims) {
    struct message shape = {0}, tensor = {0}, outer = {0}, m = {0};
    for (int i = 0; i < rank; i++) {
        struct message dim = {0};
        if (dims[i] < 0) put_text(&dim, 2, "N");
        else put_int(&dim, 1, dims[i]);
        put_message(&shape, 1, &dim);
    }
    put_int(&tensor, 1, type);
    put_message(&tensor, 2, &shape);
    put_message(&outer, 1, &tensor);
    put_text(&m, 1, name);
    put_message(&m, 2, &outer);
    return m;
}

/* `words`: the names of inputs or outputs, separated by blanks. */
static void put_words(struct message *m, int field, const char *words) {
    char copy[256];
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) put_text(m, field, word);
}

static struct message make_node(const char *op, const char *inputs, const char *outputs) {
    struct message m = {0};
    put_words(&m, 1, inputs);
    put_words(&m, 2, outputs);
    put_text(&m, 4, op);
    return m;
}

static void put_ints_attribute(struct message *node, const char *name, int n,
                               const int64_t *values) {
    struct message a = {0};
    put_text(&a, 1, name);
    for (int i = 0; i < n; i++) put_int(&a, 8, values[i]);
    put_int(&a, 20, 7);
    put_message(node, 5, &a);
}

static struct message make_model(const struct message *graph) {
    struct message m = {0}, opset = {0};
    put_int(&m, 1, 8);
    put_message(&m, 7, graph);
    put_int(&opset, 2, 17);
    put_message(&m, 8, &opset);
    return m;
}

static float weight[4 * 3 * 3 * 3], matrix[4 * 5];

/* conv, relu, mean, flatten (by Shape, Gather, Concat and Reshape, as exporters write it), matrix product. */
static struct message make_graph(void) {
    struct message g = {0}, conv = make_node("Conv", "x w", "a");
    struct message w = make_tensor("w", FLOAT, 4, (int64_t[]){4, 3, 3, 3}, weight, sizeof weight);
    struct message b = make_tensor("b", FLOAT, 2, (int64_t[]){4, 5}, matrix, sizeof matrix);
    struct message zero = make_tensor("zero", INT64, 1, (int64_t[]){1}, (int64_t[]){0}, 8);
    struct message rest = make_tensor("rest", INT64, 1, (int64_t[]){1}, (int64_t[]){-1}, 8);
    struct message in = make_value("x", FLOAT, 4, (int64_t[]){-1, 3, 8, 8});
    struct message out = make_value("y", FLOAT, 2, (int64_t[]){-1, 5});
    const struct message *initializers[] = {&w, &b, &zero, &rest};
    put_ints_attribute(&conv, "pads", 4, (int64_t[]){1, 1, 1, 1});
    const struct message nodes[] = {conv,
                                    make_node("Relu", "a", "c"),
                                    make_node("GlobalAveragePool", "c", "d"),
                                    make_node("Shape", "d", "s"),
                                    make_node("Gather", "s zero", "n"),
                                    make_node("Concat", "n rest", "to"),
                                    make_node("Reshape", "d to", "e"),
                                    make_node("MatMul", "e b", "y")};
    for (int i = 0; i < COUNT(nodes); i++) {
        struct message node = nodes[i];
        if (i == 5) {
            struct message axis = {0};
            put_text(&axis, 1, "axis");
            put_int(&axis, 3, 0);
            put_int(&axis, 20, 2);
            put_message(&node, 5, &axis);
        }
        put_message(&g, 1, &node);
    }
    for (int i = 0; i < COUNT(initializers); i++) put_message(&g, 5, initializers[i]);
    put_message(&g, 11, &in);
    put_message(&g, 12, &out);
    return g;
}

/* ---- Valid files ---- */

static void test_model(void) {
    struct message g = make_graph(), m = make_model(&g);
    struct sol_onnx *onnx = NULL;
    REQUIRE(!sol_onnx_parse(m.at, m.size, NULL, &onnx));
    char *text = sol_model_print(sol_onnx_model(onnx));
    CHECK_TEXT(text, "model \"onnx\" {\n"
                     "  symbol $0 \"N\"\n"
                     "  %0 = input f32[$0,3,8,8] \"x\"\n"
                     "  %1 = param f32[4,3,3,3] \"w\"\n"
                     "  %2 = conv %0 %1 pad=[1,1,1,1] # \"Conv\"\n"
                     "  %3 = relu %2 # \"Relu\"\n"
                     "  %4 = mean %3 axes=[2,3] keepdim=true # \"GlobalAveragePool\"\n"
                     "  %5 = reshape %4 shape=[$0,4] # \"Reshape\"\n"
                     "  %6 = param f32[4,5] \"b\"\n"
                     "  %7 = matmul %5 %6 # \"MatMul\"\n"
                     "  output %7 \"y\"\n"
                     "}\n");
    CHECK(sol_onnx_n_params(onnx) == 2);
    CHECK(!memcmp(sol_onnx_params(onnx)[0], weight, sizeof weight));
    CHECK(!memcmp(sol_onnx_params(onnx)[1], matrix, sizeof matrix));
    free(text);
    sol_onnx_free(onnx);
}

/* ---- Invalid files ---- */

static uint64_t state = 88172645463325252u;
static uint64_t draw(uint64_t n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % n;
}

/* Does parsing give either a model or a message? */
static bool is_sane(const void *data, size_t size) {
    struct sol_onnx *onnx = NULL;
    enum sol_status status = sol_onnx_parse(data, size, NULL, &onnx);
    bool ok = status ? !onnx && *sol_error() : onnx && !sol_model_check(sol_onnx_model(onnx));
    sol_onnx_free(onnx);
    return ok;
}

static void test_truncated(void) {
    struct message g = make_graph(), m = make_model(&g);
    for (size_t n = 0; n < m.size; n++) {
        uint8_t *copy = malloc(n + 1); /* so that sanitizers see reads beyond it */
        memcpy(copy, m.at, n);
        CHECK(is_sane(copy, n));
        free(copy);
    }
}

static void test_flipped(void) {
    struct message g = make_graph(), m = make_model(&g);
    for (int i = 0; i < 20000; i++) {
        struct message wrong = m;
        for (uint64_t k = 1 + draw(3); k; k--) {
            uint8_t *at = &wrong.at[draw(wrong.size)];
            *at = draw(2) ? (uint8_t)draw(256) : *at ^ (uint8_t)(1u << draw(8));
        }
        CHECK(is_sane(wrong.at, wrong.size));
    }
}

/* The model is refused with a message that contains `part`. */
static void check_refused(const struct message *m, const char *part, int line) {
    struct sol_onnx *onnx = NULL;
    enum sol_status status = sol_onnx_parse(m->at, m->size, "/nowhere", &onnx);
    check_that(status != SOL_OK, part, __FILE__, line);
    if (status && !check_that(strstr(sol_error(), part) != NULL, part, __FILE__, line))
        fprintf(stderr, "    is: %s\n", sol_error());
    sol_onnx_free(onnx);
}
#define REFUSED(m, part) check_refused(m, part, __LINE__)

static void test_container(void) {
    struct message g = make_graph(), m = make_model(&g), none = {0};
    REFUSED(&none, "no ONNX model");
    m.at[1] = 99;
    REFUSED(&m, "IR version 99");
    m = (struct message){0};
    put_int(&m, 1, 8);
    REFUSED(&m, "no graph");
    put_message(&m, 7, &g);
    REFUSED(&m, "no opset");
    struct message opset = {0};
    put_int(&opset, 2, 1000);
    put_message(&m, 8, &opset);
    REFUSED(&m, "opset 1000");
    m = make_model(&g);
    put_byte(&m, 7 << 3 | 3);
    REFUSED(&m, "unknown type 3");
    m = make_model(&g);
    for (int i = 0; i < 11; i++) put_byte(&m, 0x80);
    REFUSED(&m, "more than 64 bits");
    m = make_model(&g);
    put_int(&m, 7, 1);
    REFUSED(&m, "field 7 has the wrong type");
}

/* Nested graphs: a graph in an attribute of a node of a graph, and so on. */
static void test_deep(void) {
    struct message g = {0};
    for (int i = 0; i < 60; i++) {
        struct message a = {0}, node = {0}, outer = {0};
        put_message(&a, 6, &g);
        put_message(&node, 5, &a);
        put_message(&outer, 1, &node);
        g = outer;
    }
    struct message m = make_model(&g);
    REFUSED(&m, "deep");
}

/* The valid graph with one more node at the end. */
static struct message with_node(const struct message *node) {
    struct message g = make_graph();
    put_message(&g, 1, node);
    return make_model(&g);
}

static void check_node(const char *op, const char *inputs, const char *outputs, const char *part,
                       int line) {
    struct message node = make_node(op, inputs, outputs), m = with_node(&node);
    check_refused(&m, part, line);
}
#define NODE_REFUSED(op, in, out, part) check_node(op, in, out, part, __LINE__)

static void test_nodes(void) {
    NODE_REFUSED("Relu", "later", "z",
                 "node 8, Relu \"\": input \"later\" is no output of an earlier node");
    NODE_REFUSED("Relu", "y", "a", "\"a\" is made twice");
    NODE_REFUSED("Relu", "", "z", "input 0 is missing");
    NODE_REFUSED("Relu", "y y", "z", "at most 1");
    NODE_REFUSED("Exp", "s", "z", "a number that depends on the batch");
    NODE_REFUSED("Frobnicate", "y", "z", "no such operator");
    NODE_REFUSED("Conv", "x b", "z", "a weight of rank 2");
    NODE_REFUSED("Add", "x y", "z", "do not broadcast");
    NODE_REFUSED("MaxPool", "x", "z", "kernel_shape is missing");
    NODE_REFUSED("Constant", "", "z", "it has 0 values");
    NODE_REFUSED("Reshape", "y y", "z", "the shape is not known");
    NODE_REFUSED("Concat", "n rest", "", "no output");
}

static void check_ints(const char *op, const char *inputs, const char *name, int n,
                       const int64_t *values, const char *part, int line) {
    struct message node = make_node(op, inputs, "z");
    put_ints_attribute(&node, name, n, values);
    struct message m = with_node(&node);
    check_refused(&m, part, line);
}
#define INTS_REFUSED(op, in, name, n, values, part) check_ints(op, in, name, n, values, part, __LINE__)

static void test_attributes(void) {
    INTS_REFUSED("Conv", "x w", "strides", 2, ((int64_t[]){0, 1}), "strides is 0");
    INTS_REFUSED("Conv", "x w", "strides", 3, ((int64_t[]){1, 1, 1}), "strides has 3 values");
    INTS_REFUSED("Conv", "x w", "dilations", 2, ((int64_t[]){-1, 1}), "dilations is -1");
    INTS_REFUSED("Conv", "x w", "dilations", 2, ((int64_t[]){9, 9}), "does not fit");
    INTS_REFUSED("Conv", "x w", "pads", 2, ((int64_t[]){1, 1}), "pads has 2 values");
    INTS_REFUSED("Conv", "x w", "pads", 4, ((int64_t[]){-1, 0, 0, 0}), "pad");
    INTS_REFUSED("Conv", "x w", "pads", 4, ((int64_t[]){INT64_MAX, 0, 0, INT64_MIN}), "a pad of");
    INTS_REFUSED("Conv", "x w", "strides", 2, ((int64_t[]){INT64_MAX, 1}), "strides is 9");
    INTS_REFUSED("Conv", "x w", "dilations", 2, ((int64_t[]){INT64_MAX, 1}), "dilations is 9");
    INTS_REFUSED("MaxPool", "x", "kernel_shape", 2, ((int64_t[]){INT64_MAX, 1}),
                 "kernel_shape is 9");
    INTS_REFUSED("Conv", "x w", "kernel_shape", 2, ((int64_t[]){5, 5}), "does not fit the weight");
    INTS_REFUSED("Conv", "x w", "group", 1, ((int64_t[]){1}),
                 "attribute group has type 7 instead of 2");
    INTS_REFUSED("Conv", "x w", "colour", 1, ((int64_t[]){1}), "attribute \"colour\" is not known");
    INTS_REFUSED("Transpose", "y", "perm", 2, ((int64_t[]){0, 0}), "twice");
    INTS_REFUSED("Transpose", "y", "perm", 2, ((int64_t[]){0, 5}), "axis 5");
    INTS_REFUSED("Transpose", "y", "perm", 1, ((int64_t[]){0}), "1 values for a tensor of rank 2");
    INTS_REFUSED("ReduceMean", "x", "axes", 1, ((int64_t[]){7}), "axis 7");
    INTS_REFUSED("ReduceMean", "x", "axes", 2, ((int64_t[]){1, 1}), "twice");
    struct message node = make_node("Conv", "x w", "z");
    put_ints_attribute(&node, "strides", 2, (int64_t[]){1, 1});
    put_ints_attribute(&node, "strides", 2, (int64_t[]){1, 1});
    struct message m = with_node(&node);
    REFUSED(&m, "strides is given twice");
}

static void check_initializer(const struct message *tensor, const char *part, int line) {
    struct message g = make_graph();
    put_message(&g, 5, tensor);
    struct message m = make_model(&g);
    check_refused(&m, part, line);
}
#define TENSOR_REFUSED(part, ...)                         \
    do {                                                   \
        struct message tensor_ = make_tensor(__VA_ARGS__); \
        check_initializer(&tensor_, part, __LINE__);       \
    } while (0)

static void test_tensors(void) {
    static const int64_t huge[] = {INT64_MAX, 2}, large[] = {INT64_MAX / 2},
                         rank9[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    TENSOR_REFUSED("\"w\" is made twice", "w", FLOAT, 0, NULL, weight, 4);
    TENSOR_REFUSED("without a name", "", FLOAT, 0, NULL, weight, 4);
    TENSOR_REFUSED("dim 0 is -1", "t", FLOAT, 1, (int64_t[]){-1}, weight, 4);
    TENSOR_REFUSED("overflows", "t", FLOAT, 2, huge, weight, 4);
    TENSOR_REFUSED("overflows", "t", FLOAT, 1, large, weight, 4);
    TENSOR_REFUSED("rank 9", "t", FLOAT, 9, rank9, weight, 4);
    TENSOR_REFUSED("4 raw bytes for 2 elements", "t", FLOAT, 1, (int64_t[]){2}, weight, 4);
    TENSOR_REFUSED("4 raw bytes for 0 elements", "t", FLOAT, 1, (int64_t[]){0}, weight, 4);
    TENSOR_REFUSED("0 values for 1 elements", "t", FLOAT, 0, NULL, NULL, 0);
    TENSOR_REFUSED("element type 0", "t", 0, 0, NULL, weight, 4);
    TENSOR_REFUSED("type string", "t", 8, 0, NULL, weight, 4);
    TENSOR_REFUSED("type 99", "t", 99, 0, NULL, weight, 4);
    struct message both = make_tensor("t", FLOAT, 0, NULL, weight, 4);
    put_float(&both, 4, 1);
    check_initializer(&both, "both raw and typed", __LINE__);
    struct message wrong = make_tensor("t", FLOAT, 0, NULL, NULL, 0);
    put_int(&wrong, 7, 1);
    check_initializer(&wrong, "another element type", __LINE__);
    struct message zero = make_tensor("a\xC0\x80z", FLOAT, 0, NULL, weight, 4);
    check_initializer(&zero, "no UTF-8", __LINE__);
}

/* ---- Data in other files ---- */

static struct message make_external(int n, const char *const *entries) {
    struct message t = make_tensor("t", FLOAT, 1, (int64_t[]){4}, NULL, 0);
    for (int i = 0; i < n; i += 2) {
        struct message entry = {0};
        put_text(&entry, 1, entries[i]);
        put_text(&entry, 2, entries[i + 1]);
        put_message(&t, 13, &entry);
    }
    put_int(&t, 14, 1);
    return t;
}

/* Reads the external tensor t from a folder. Returns the error message, or "". */
static const char *read_external(const char *folder, int n, const char *const *entries) {
    struct message g = make_graph(), t = make_external(n, entries);
    struct sol_onnx *onnx = NULL;
    put_message(&g, 5, &t);
    struct message m = make_model(&g);
    enum sol_status status = sol_onnx_parse(m.at, m.size, folder, &onnx);
    sol_onnx_free(onnx);
    return status ? sol_error() : "";
}
#define EXTERNAL(part, ...)                                                                   \
    do {                                                                                       \
        static const char *const entries_[] = {__VA_ARGS__};                                   \
        const char *message_ = read_external(folder, COUNT(entries_), entries_);               \
        if (!CHECK(*(part) ? strstr(message_, part) != NULL : !*message_))                     \
            fprintf(stderr, "    is: %s\n", message_);                                         \
    } while (0)

static void make_files(const char *folder) {
    char path[256], other[256];
    snprintf(path, sizeof path, "%s/data", folder);
    FILE *file = fopen(path, "wb");
    REQUIRE(file && fwrite(weight, 1, 32, file) == 32 && !fclose(file));
    snprintf(other, sizeof other, "%s/symlink", folder);
    CHECK(!symlink(path, other));
    snprintf(other, sizeof other, "%s/sub", folder);
    CHECK(!mkdir(other, 0700));
    snprintf(path, sizeof path, "%s/sub/data", folder);
    file = fopen(path, "wb");
    REQUIRE(file && fwrite(weight, 1, 32, file) == 32 && !fclose(file));
    snprintf(other, sizeof other, "%s/linked", folder);
    CHECK(!symlink("sub", other));
    snprintf(path, sizeof path, "%s/first", folder);
    file = fopen(path, "wb");
    REQUIRE(file && fwrite(weight, 1, 32, file) == 32 && !fclose(file));
    snprintf(other, sizeof other, "%s/hard", folder);
    CHECK(!link(path, other));
    snprintf(path, sizeof path, "%s/fifo", folder);
    CHECK(!mkfifo(path, 0600));
}

static void test_external(void) {
    char folder[] = "/tmp/sol-test-XXXXXX", command[300];
    REQUIRE(mkdtemp(folder));
    make_files(folder);
    EXTERNAL("", "location", "data");
    EXTERNAL("", "location", "data", "offset", "16", "length", "16");
    EXTERNAL("", "location", "sub/data");
    EXTERNAL("32 bytes; 16 from 17", "location", "data", "offset", "17");
    EXTERNAL("no number", "location", "data", "offset", "-1");
    EXTERNAL("no number", "location", "data", "offset", "1e3");
    EXTERNAL("no number", "location", "data", "offset", "99999999999999999999");
    EXTERNAL("15 bytes of external data", "location", "data", "length", "15");
    EXTERNAL("without a location", "offset", "0");
    EXTERNAL("not in the model's folder", "location", "");
    EXTERNAL("not in the model's folder", "location", "/etc/hostname");
    EXTERNAL("not in the model's folder", "location", "../data");
    EXTERNAL("not in the model's folder", "location", "sub/../data");
    EXTERNAL("not in the model's folder", "location", "sub\\data");
    EXTERNAL("", "location", "./data");
    EXTERNAL("", "location", "sub/./data");
    EXTERNAL("not in the model's folder", "location", "./../data");
    EXTERNAL("not in the model's folder", "location", "sub/.");
    EXTERNAL("not in the model's folder", "location", "symlink");
    EXTERNAL("not in the model's folder", "location", "linked/data");
    EXTERNAL("not in the model's folder", "location", "missing");
    EXTERNAL("no plain file", "location", "sub");
    EXTERNAL("no plain file", "location", "hard");
    EXTERNAL("too short", "location", "fifo");
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(!system(command));
}

/* ---- Recognizing a model by its content ---- */

#define IS_MODEL(text) sol_onnx_is_model(text, sizeof(text) - 1)

static void test_is_model(void) {
    struct message g = make_graph(), m = make_model(&g), backwards = {0};
    CHECK(sol_onnx_is_model(m.at, m.size));
    for (size_t n = 40; n < m.size; n++) CHECK(sol_onnx_is_model(m.at, n)); /* cut in the graph */
    put_message(&backwards, 7, &g);
    put_int(&backwards, 1, 8);
    CHECK(sol_onnx_is_model(backwards.at, backwards.size));
    CHECK(!sol_onnx_is_model(NULL, 0) && !sol_onnx_is_model("", 0));
    CHECK(!IS_MODEL("model \"net\" {\n  %0 = input f32[1] \"x\"\n}\n"));
    CHECK(!IS_MODEL("# a comment\nmodel \"net\" {\n}\n") && !IS_MODEL("\n\nmodel \"net\" {"));
    CHECK(!IS_MODEL("PK\3\4\24\0\10\10\10\0archive/data.pkl")); /* torch.save */
    CHECK(!IS_MODEL("\x80\2}q\0(X\6\0\0\0weightq\1") && !IS_MODEL("\x80\4\x95:\0\0\0\0\0\0\0\x8c"));
    CHECK(!IS_MODEL("(dp0\nVweight\np1\n") && !IS_MODEL("\x1f\x8b\10\0\0\0\0\0\0\3"));
    CHECK(!IS_MODEL("<!DOCTYPE html><html></html>") && !IS_MODEL("{\"ir_version\": 8}"));
    CHECK(!IS_MODEL("ir_version: 8\ngraph {\n") && !IS_MODEL("\x93NUMPY\1\0v\0{'descr': '<f4'"));
    CHECK(!IS_MODEL("\x7f"
                    "ELF\2\1\1\0") &&
          !IS_MODEL("\x89HDF\r\n\x1a\n") && !IS_MODEL("\n\3net\22\4data"));
    CHECK(!IS_MODEL("\x10\0\0\0\0\0\0\0{\"a\":{}}") && !IS_MODEL(": a list, as of YAML: * one"));
    CHECK(!IS_MODEL("version https://git-lfs.github.com/spec/v1\noid sha256:00\n"));
}

/* Error messages contain `part`, and the path exactly once. */
static void check_location(const char *path, const char *part) {
    struct sol_onnx *onnx = NULL;
    struct sol_session *session = NULL;
    for (int i = 0; i < 2; i++) {
        CHECK(i ? sol_session_read(path, NULL, &session) : sol_onnx_read(path, &onnx));
        const char *at = strstr(sol_error(), path);
        CHECK(at && !strstr(at + 1, path) && strstr(sol_error(), part));
    }
}

static void test_paths(void) {
    check_location("/nowhere/net.onnx", "No such file");
    check_location("/tmp", "Is a directory");
    check_location("/etc/passwd", "model");
}

/* ---- Memory ---- */

static void test_no_memory(void) {
    struct message g = make_graph(), m = make_model(&g);
    enum sol_status status = SOL_ENOMEM;
    int n = 1;
    for (; status == SOL_ENOMEM && n < 1000; n++) {
        struct sol_onnx *onnx = NULL;
        mem_fail_at = n;
        status = sol_onnx_parse(m.at, m.size, NULL, &onnx);
        mem_fail_at = 0;
        CHECK(status == SOL_OK || (status == SOL_ENOMEM && !onnx));
        sol_onnx_free(onnx);
    }
    CHECK(status == SOL_OK && n > 3);
}

int main(void) {
    for (int i = 0; i < COUNT(weight); i++) weight[i] = (float)i;
    for (int i = 0; i < COUNT(matrix); i++) matrix[i] = (float)-i;
    test_model();
    test_truncated();
    test_flipped();
    test_container();
    test_deep();
    test_nodes();
    test_attributes();
    test_tensors();
    test_external();
    test_is_model();
    test_paths();
    test_no_memory();
    return check_done();
}

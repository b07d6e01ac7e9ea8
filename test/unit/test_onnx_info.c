/*
 * What an ONNX file declares: names, types, sizes and texts; damaged files, and texts that are no UTF-8. The test writes the files
 * byte by byte.
 */
#include "base/base.h"
#include "check.h"
#include "proto_writer.h"

#include <sol/onnx.h>

enum { FLOAT = 1, INT64 = 7, STRING = 8 };
enum { TENSOR = 1, SEQUENCE = 4, OPTIONAL = 9 }; /* fields of TypeProto */

/* A tensor of three dims: 2, "n", and one without a name. */
static struct message make_tensor(int element) {
    struct message m = {0}, tensor = {0}, shape = {0}, dims[3] = {{0}};
    put_int(&dims[0], 1, 2);
    put_text(&dims[1], 2, "n");
    for (int i = 0; i < 3; i++) put_message(&shape, 1, &dims[i]);
    put_int(&tensor, 1, element);
    put_message(&tensor, 2, &shape);
    put_message(&m, TENSOR, &tensor);
    return m;
}

static struct message make_holder(int field, const struct message *type) {
    struct message m = {0}, holder = {0};
    put_message(&holder, 1, type);
    put_message(&m, field, &holder);
    return m;
}

/* `type` NULL: the file does not say. */
static void put_value(struct message *graph, int field, const char *name,
                      const struct message *type) {
    struct message m = {0};
    put_text(&m, 1, name);
    if (type) put_message(&m, 2, type);
    put_message(graph, field, &m);
}

static void put_property(struct message *model, const char *key, const char *value) {
    struct message m = {0};
    put_text(&m, 1, key);
    put_text(&m, 2, value);
    put_message(model, 14, &m);
}

/* Five inputs, the last one with an initializer, and one output. */
static struct message make_graph(void) {
    struct message g = {0}, w = {0}, tensor = make_tensor(FLOAT), text = make_tensor(STRING);
    struct message sequence = make_holder(SEQUENCE, &text);
    struct message optional = make_holder(OPTIONAL, &tensor);
    struct message both = make_holder(OPTIONAL, &sequence);
    put_text(&g, 2, "graph");
    put_text(&w, 8, "w");
    put_message(&g, 5, &w);
    put_text(&g, 10, "about the graph");
    put_value(&g, 11, "x", &tensor);
    put_value(&g, 11, "s", &sequence);
    put_value(&g, 11, "o", &optional);
    put_value(&g, 11, "both", &both);
    put_value(&g, 11, "w", &tensor);
    put_value(&g, 12, "y", NULL);
    return g;
}

static struct message make_model(void) {
    struct message m = {0}, g = make_graph();
    put_int(&m, 1, 8);
    put_text(&m, 2, "producer");
    put_text(&m, 4, "domain");
    put_int(&m, 5, 3);
    put_text(&m, 6, "about \xff");
    put_message(&m, 7, &g);
    put_property(&m, "key", "value");
    put_property(&m, "", "");
    return m;
}

static void check_port(const struct sol_onnx_port *port, const char *name, const char *type,
                       int rank, bool is_initialized) {
    CHECK_TEXT(port->name, name);
    CHECK_TEXT(port->type, type);
    CHECK(port->rank == rank && port->is_initialized == is_initialized);
}

static void check_dim(const struct sol_onnx_dim *dim, int64_t size, const char *name) {
    CHECK(dim->size == size);
    CHECK_TEXT(dim->name, name);
}

static void test_ports(void) {
    struct message m = make_model();
    struct sol_onnx_info *info = NULL;
    REQUIRE(!sol_onnx_info_parse(m.at, m.size, &info));
    memset(m.at, 0, m.size); /* nothing points into the file */
    REQUIRE(info->n_inputs == 5 && info->n_outputs == 1);
    check_port(&info->inputs[0], "x", "tensor(float)", 3, false);
    check_port(&info->inputs[1], "s", "seq(tensor(string))", -1, false);
    check_port(&info->inputs[2], "o", "optional(tensor(float))", 3, false);
    check_port(&info->inputs[3], "both", "optional(seq(tensor(string)))", -1, false);
    check_port(&info->inputs[4], "w", "tensor(float)", 3, true);
    check_port(&info->outputs[0], "y", "", -1, false);
    check_dim(&info->inputs[0].dim[0], 2, "");
    check_dim(&info->inputs[0].dim[1], -1, "n");
    check_dim(&info->inputs[0].dim[2], -1, "");
    sol_onnx_info_free(info);
}

/* A description that is no UTF-8 is no reason to refuse a file. */
static void test_texts(void) {
    struct message m = make_model();
    struct sol_onnx_info *info = NULL;
    REQUIRE(!sol_onnx_info_parse(m.at, m.size, &info));
    CHECK(info->ir_version == 8 && info->version == 3 && info->n_properties == 2);
    CHECK_TEXT(info->producer, "producer");
    CHECK_TEXT(info->domain, "domain");
    CHECK_TEXT(info->description, "about \xff");
    CHECK_TEXT(info->graph_name, "graph");
    CHECK_TEXT(info->graph_description, "about the graph");
    CHECK_TEXT(info->keys[0], "key");
    CHECK_TEXT(info->values[0], "value");
    CHECK_TEXT(info->values[1], "");
    sol_onnx_info_free(info);
}

static void test_nothing_is_declared(void) {
    struct message m = {0}, g = {0}, element = make_tensor(99);
    put_value(&g, 11, "x", &element);
    put_message(&m, 7, &g);
    struct sol_onnx_info *info = NULL;
    REQUIRE(!sol_onnx_info_parse(m.at, m.size, &info));
    CHECK(info->version == INT64_MAX && !info->n_outputs && !info->n_properties);
    CHECK_TEXT(info->producer, "");
    CHECK_TEXT(info->graph_name, "");
    CHECK_TEXT(info->inputs[0].type, "");
    sol_onnx_info_free(info);
}

/* ---- Errors ---- */

/* Any bytes give an info or a message. */
static void check_bytes(const void *data, size_t size) {
    struct sol_onnx_info *info = NULL;
    enum sol_status status = sol_onnx_info_parse(data, size, &info);
    CHECK(status ? !info && *sol_error() : info != NULL);
    sol_onnx_info_free(info);
}

static void test_damaged(void) {
    struct message m = make_model();
    for (size_t size = 0; size < m.size; size++) check_bytes(m.at, size);
    for (size_t i = 0; i < m.size * 8; i++) {
        m.at[i / 8] ^= (uint8_t)(1 << i % 8);
        check_bytes(m.at, m.size);
        m.at[i / 8] ^= (uint8_t)(1 << i % 8);
    }
}

static void test_types_nested_too_deep(void) {
    struct message m = {0}, g = {0}, type = make_tensor(FLOAT);
    for (int i = 0; i < 60; i++) type = make_holder(SEQUENCE, &type);
    put_value(&g, 11, "x", &type);
    put_message(&m, 7, &g);
    struct sol_onnx_info *info = NULL;
    CHECK(sol_onnx_info_parse(m.at, m.size, &info) == SOL_EINVAL && !info);
    CHECK(strstr(sol_error(), "nested"));
}

static void test_paths(void) {
    struct sol_onnx_info *info = NULL;
    CHECK(sol_onnx_info_read(NULL, &info) == SOL_EINVAL);
    CHECK(sol_onnx_info_read("/nowhere/net.onnx", &info) == SOL_EINVAL);
    CHECK(sol_onnx_info_parse("", 0, &info) == SOL_EINVAL && strstr(sol_error(), "no graph"));
    CHECK(sol_onnx_info_parse(NULL, 1, &info) == SOL_EINVAL && !info);
    sol_onnx_info_free(NULL);
}

static void test_no_memory(void) {
    struct message m = make_model();
    enum sol_status status = SOL_ENOMEM;
    int n = 1;
    for (; status == SOL_ENOMEM && n < 1000; n++) {
        struct sol_onnx_info *info = NULL;
        mem_fail_at = n;
        status = sol_onnx_info_parse(m.at, m.size, &info);
        mem_fail_at = 0;
        CHECK(status == SOL_OK || (status == SOL_ENOMEM && !info));
        sol_onnx_info_free(info);
    }
    CHECK(status == SOL_OK && n > 2);
}

int main(void) {
    test_ports();
    test_texts();
    test_nothing_is_declared();
    test_damaged();
    test_types_nested_too_deep();
    test_paths();
    test_no_memory();
    return check_done();
}

/*
 * Classical models with random attributes, most of them malformed: each is computed or refused, and none crashes or runs for ever.
 * Under the sanitizers (make asan) this finds indices that are not checked.
 */
#include "base/base.h"
#include "check.h"
#include "proto_writer.h"

#include <math.h>
#include <sol/onnx.h>
#include <stdlib.h>

static uint32_t state = 1;
static int draw(int n) {
    state = state * 1664525 + 1013904223;
    return (int)((state >> 8) % (uint32_t)n);
}

/* Mostly an index below `n`. */
static int64_t draw_int(int n) {
    static const int64_t wild[] = {-1, INT64_MAX, INT64_MIN, 1 << 20, 0};
    return draw(40) ? draw(n) : draw(2) ? wild[draw(5)] : n;
}

static float draw_float(void) {
    static const float some[] = {0, 1, -1, 0.5f, 3e38f, 0, 2, 1};
    return draw(20) ? some[draw(8)] : NAN;
}

static int draw_length(int n) { return draw(60) ? n : draw(n + 2); }

/* Kinds of attributes: i, I integers; F floats; T a tensor of floats; M one of modes; S words; L a list of labels; w the word of the
 * list that follows the name. A number before the kind multiplies the length. */
static const char *const operators[][24] = {
    {"TreeEnsemble", "1i n_targets", "1I tree_roots", "1I nodes_featureids", "1M nodes_modes",
     "1T nodes_splits", "1I nodes_truenodeids", "1I nodes_falsenodeids", "1I nodes_trueleafs",
     "1I nodes_falseleafs", "1I leaf_targetids", "1T leaf_weights", "1T membership_values",
     "1i aggregate_function", "1i post_transform"},
    {"TreeEnsembleRegressor", "1i n_targets", "1I nodes_featureids", "1S nodes_modes",
     "1F nodes_values", "1I nodes_truenodeids", "1I nodes_falsenodeids", "1N nodes_nodeids",
     "1Z nodes_treeids", "1I target_nodeids", "1Z target_treeids", "1I target_ids",
     "1F target_weights"},
    {"TreeEnsembleClassifier", "1L classlabels_int64s", "1I nodes_featureids", "1S nodes_modes",
     "1F nodes_values", "1I nodes_truenodeids", "1I nodes_falsenodeids", "1N nodes_nodeids",
     "1Z nodes_treeids", "1I class_nodeids", "1Z class_treeids", "1I class_ids",
     "1F class_weights"},
    {"SVMClassifier", "1L classlabels_ints", "1I vectors_per_class", "2F support_vectors",
     "1F coefficients", "1F rho", "1F prob_a", "1F prob_b"},
    {"SVMRegressor", "1i n_supports", "2F support_vectors", "1F coefficients", "1F rho"},
    {"LinearClassifier", "1L classlabels_ints", "2F coefficients", "1F intercepts"},
    {"LinearRegressor", "1i targets", "2F coefficients", "1F intercepts"},
    {"Scaler", "1F offset", "1F scale"},
    {"Imputer", "1F imputed_value_floats"},
    {"FeatureVectorizer", "1I inputdimensions"},
    {"ZipMap", "1L classlabels_int64s"},
    {"DictVectorizer", "1L int64_vocabulary"},
    {"OneHotEncoder", "1L cats_int64s"},
};

static void put_tensor(struct message *attribute, bool is_mode, int length) {
    struct message tensor = {0};
    uint8_t bytes[64];
    for (int i = 0; i < length; i++) {
        const float value = draw_float();
        if (is_mode) bytes[i] = (uint8_t)(draw(20) ? draw(7) : 200);
        else memcpy(bytes + 4 * i, &value, 4);
    }
    put_int(&tensor, 1, length);
    put_int(&tensor, 2, is_mode ? 2 : 1);
    put_raw(&tensor, 9, bytes, (size_t)length * (is_mode ? 1 : 4));
    put_message(attribute, 5, &tensor);
}

static void put_items(struct message *attribute, char kind, int n, int length) {
    static const char *const words[] = {"LEAF", "BRANCH_LEQ", "BRANCH_NEQ", "LEAF", "?"};
    for (int i = 0; i < length; i++) {
        if (kind == 'F') put_float(attribute, 7, draw_float());
        else if (kind == 'S') put_text(attribute, 9, words[draw(30) ? draw(4) : 4]);
        else
            put_int(attribute, 8,
                    kind == 'N' && draw(40) ? i
                    : kind == 'Z'           ? !draw(40)
                                            : draw_int(n));
    }
}

static void put_attribute(struct message *node, const char *row, int n) {
    struct message attribute = {0};
    const char kind = row[1];
    const int length = draw_length(n * (row[0] - '0'));
    put_text(&attribute, 1, row + 3);
    if (kind == 'i') put_int(&attribute, 3, draw(10) ? 1 + draw(2) : draw_int(n));
    else if (kind == 'T' || kind == 'M') put_tensor(&attribute, kind == 'M', length);
    else put_items(&attribute, kind, n, length);
    put_int(&attribute, 20,
            kind == 'i'                  ? 2
            : kind == 'F'                ? 6
            : kind == 'S'                ? 8
            : kind == 'T' || kind == 'M' ? 4
                                         : 7);
    put_message(node, 5, &attribute);
}

static void put_port(struct message *graph, int field, const char *name) {
    struct message tensor = {0}, kind = {0}, port = {0};
    put_int(&tensor, 1, 1);
    put_message(&kind, 1, &tensor);
    put_text(&port, 1, name);
    put_message(&port, 2, &kind);
    put_message(graph, field, &port);
}

static struct message make_model(const char *const *row) {
    struct message node = {0}, graph = {0}, opset = {0}, classic = {0}, model = {0};
    const int n = 1 + draw(4);
    put_text(&node, 1, "x");
    put_text(&node, 2, "y");
    put_text(&node, 4, row[0]);
    put_text(&node, 7, "ai.onnx.ml");
    for (int i = 1; i < 24 && row[i]; i++)
        if (draw(80)) put_attribute(&node, row[i], n);
    put_message(&graph, 1, &node);
    put_port(&graph, 11, "x");
    put_port(&graph, 12, "y");
    put_int(&opset, 2, 20);
    put_text(&classic, 1, "ai.onnx.ml");
    put_int(&classic, 2, 5);
    put_int(&model, 1, 10);
    put_message(&model, 7, &graph);
    put_message(&model, 8, &opset);
    put_message(&model, 8, &classic);
    return model;
}

static enum sol_status run(const struct message *model) {
    static const float data[6] = {0, 1, 2, -1, 0.5f, -2};
    const int columns = 1 + draw(3);
    const struct sol_value x = {
        .type = 1, .rank = 2, .dim = {2, columns}, .n = 2 * columns, .data = data};
    struct sol_session *net = NULL;
    struct sol_results *results = NULL;
    enum sol_status status = sol_session_parse(model->at, model->size, NULL, NULL, &net);
    if (!status) status = sol_session_run(net, (const struct sol_value *[]){&x}, &results);
    if (!status) sol_results_free(results);
    sol_session_free(net);
    return status;
}

int main(void) {
    setenv("SOL_CC", "none", 1);
    setenv("SOL_CALL_MEMORY", "4", 1);
    for (int k = 0; k < COUNT(operators); k++) {
        int computed = 0, refused = 0, wrong = 0;
        for (int i = 0; i < 1500; i++) {
            const struct message model = make_model(operators[k]);
            const enum sol_status status = run(&model);
            computed += status == SOL_OK;
            refused += status == SOL_EINVAL || status == SOL_EUNSUPPORTED;
            wrong += status && status != SOL_EINVAL && status != SOL_EUNSUPPORTED &&
                     status != SOL_ENOMEM;
        }
        CHECK(wrong == 0 && refused > 0);
        CHECK(computed > 0 || !strcmp(operators[k][0], "DictVectorizer")); /* x is no map */
    }
    return check_done();
}

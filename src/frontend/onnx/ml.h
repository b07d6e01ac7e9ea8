/*
 * Inside the interpreter: classical models, the operators of the domain ai.onnx.ml.
 *
 *   op_ml.c      those that are plain mathematics: layers
 *   ml_table.c   tables of categories; selecting, joining and marking of features
 *   ml_map.c     maps: ZipMap, DictVectorizer
 *   ml_score.c   what classifiers share: labels, and the transforms of their scores; LinearClassifier
 *   ml_svm.c     support vector machines
 *   ml_tree.c    ensembles of decision trees
 *
 * Attributes are lists whose lengths and values nothing guarantees. Each is checked where it is read, before it is an index.
 */
#ifndef SOL_ONNX_ML_H
#define SOL_ONNX_ML_H

#include "eval.h"

/* Input 0 as rows of features. A vector is one row. */
struct ml_rows {
    int64_t n, width;
    const double *values;
};
struct ml_rows ml_rows(struct eval *e);

/* Labels, in memory of the file. */
struct ml_labels {
    enum type type; /* TYPE_I64, TYPE_STRING; TYPE_NONE: the node has none */
    const struct list *list;
};
/* The list of the first attribute that is given. */
struct ml_labels ml_labels(struct eval *e, const char *ints, const char *strings);
/* Copies label `k` to element `i` of y, which has the type of the labels. `k` is checked. */
void ml_set_label(struct eval *e, struct array *y, int64_t i, const struct ml_labels *labels,
                  int64_t k);
/* The index of a label that is equal to element `i` of x, which has the type of the labels; -1: there is none. */
int64_t ml_find_label(const struct ml_labels *labels, const struct array *x, int64_t i);
/* A list attribute as a tensor, NULL when it is missing: of NAME_as_tensor, else of the floats NAME. */
struct array *ml_floats(struct eval *e, const char *name);

/* post_transform. The numbers are those of the attribute of TreeEnsemble. */
enum ml_transform { ML_NONE, ML_SOFTMAX, ML_LOGISTIC, ML_SOFTMAX_ZERO, ML_PROBIT };
enum ml_transform ml_transform(struct eval *e);
double ml_logistic(double x);
/*
 * Transforms the `n` scores of a row in place, and returns their number. One score stands for two classes, and becomes two scores,
 * if `second` says so; then `score` has room for two.
 */
enum ml_second {
    ML_ALONE,      /* it stays alone */
    ML_COMPLEMENT, /* 1 - score, score */
    ML_OPPOSITE    /* -score, score */
};
int ml_transform_scores(enum ml_transform transform, int n, double *score, enum ml_second second);

#endif

/*
 * State of clustering, shared by cluster.c (all modules), order.c (who may join) and anchor.c (module DNN).
 *
 *   model with layouts and storage -> cluster.c, order.c, anchor.c fill struct clustering -> plan->clusters
 */
#ifndef SOL_CLUSTER_H
#define SOL_CLUSTER_H

#include "plan/plan.h"

#define CLUSTER_MAX_TENSORS 48 /* inputs and outputs of one kernel */

struct clustering {
    struct plan *plan;
    struct model *m;
    plan_refuse *refuse;
    struct cluster **of; /* by layer id; NULL: in no cluster yet */
    int *position;       /* by layer id: index in the model's list of layers */
    /* by layer id: n_found if the layer is in the cluster whose ports are being found */
    int *inside, n_found;
    struct layer **earlier;    /* by layer id: the layer with effects before this one, or NULL */
    VEC(struct cluster *) all; /* by cluster id; clusters that joined another one are empty */
    /* order.c: by place a layer of the cluster that is there, or the layer that is in none; NULL: free */
    struct layer **order, **behind; /* `behind`: used within a join */
    int *place;                     /* by layer id, of layers in no cluster */
    int *needed;                    /* by place: the last search that has found it */
    int n_searches, last_needed;    /* the last search, and the last place that it has found */
};

/* Parameters, inputs and constants: they are in no cluster. */
static inline bool cluster_is_source(const struct layer *l) {
    return layer_infos[l->kind].traits & SOURCE;
}

struct cluster *cluster_new(struct clustering *c, enum module module);
void cluster_add(struct clustering *c, struct cluster *cluster, struct layer *l);
/* The only reader of `t`; NULL if there are none or several, if it reads `t` twice or in a later phase, or if `t` is an output of the
 * model. */
struct layer *cluster_single_reader(const struct clustering *c, const struct tensor *t);
/* Appends the tensors that the cluster's layers read and write to its `inputs` and `outputs`. */
void cluster_find_ports(struct clustering *c, struct cluster *cluster);

/* Puts layers in the model's order. */
void cluster_sort(struct clustering *c, struct layer **at, int n);

/* group.c: puts groups of layers that only move values of one tensor into clusters of module COPY. */
void cluster_groups(struct clustering *c);

/* order.c: order_add comes before the layer is in the cluster, order_join right after order_may_join for the same clusters, and before
 * their layers move. order_may_join: false if the clusters would form a cycle. */
void order_init(struct clustering *c);
void order_add(struct clustering *c, struct cluster *cluster, const struct layer *l);
bool order_may_join(struct clustering *c, const struct cluster *a, const struct cluster *b);
void order_join(struct clustering *c, struct cluster *a, const struct cluster *b);

/* anchor.c: is it an activation that kernels of module DNN apply? */
bool cluster_is_act(const struct layer *l);
/* anchor.c: is `l` a conv, linear or matmul that module DNN computes? cluster_dnn makes its cluster, with all layers that it fuses. */
bool cluster_is_dnn(const struct clustering *c, const struct layer *l);
void cluster_dnn(struct clustering *c, struct layer *l);

#endif

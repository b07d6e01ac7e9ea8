/* While clusters are made: what cluster.c (all modules) and anchor.c (DNN's clusters) share. */
#ifndef SOL_CLUSTER_H
#define SOL_CLUSTER_H

#include "plan/plan.h"

#define CLUSTER_MAX_TENSORS 48 /* inputs and outputs of one kernel */

struct clustering {
    struct plan *plan;
    struct model *m;
    plan_refuse *refuse;
    struct cluster **of;          /* by layer id */
    int *position;                /* by layer id: place in the model */
    VEC(struct layer *) *readers; /* by tensor id */
    VEC(struct cluster *) all;    /* in the order of creation; joined ones have no layers left */
};

/* Parameters, inputs and constants are in no cluster. */
static inline bool cluster_is_source(const struct layer *l) {
    return layer_infos[l->kind].traits & SOURCE;
}

struct cluster *cluster_new(struct clustering *c, enum module module);
void cluster_add(struct clustering *c, struct cluster *cluster, struct layer *l);
/* The only reader of `t`; NULL when there are several or the caller wants it too. */
struct layer *cluster_single_reader(const struct clustering *c, const struct tensor *t);
/* Fills in what a cluster reads and writes, from its layers. */
void cluster_find_ports(struct clustering *c, struct cluster *cluster);

/* anchor.c: is `l` a conv or linear for DNN? If so, its cluster with all that its kernel takes along. */
bool cluster_is_dnn(const struct clustering *c, const struct layer *l);
void cluster_dnn(struct clustering *c, struct layer *l);

#endif

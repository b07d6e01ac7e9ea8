/*
 * The build: collects the steps that a device emits, and makes the program of them.
 *
 *   plan -> for each cluster device->emit -> [build_step: buffers, slots, lifetimes] -> program
 *
 * Invariant: the program refers to its own arena, `keep`, only; all other memory is freed at the end of the compile.
 */
#ifndef SOL_BUILD_H
#define SOL_BUILD_H

#include "plan/plan.h"
#include "run/program.h"

/* A slot while steps are collected. Which phases use it decides in the end whose memory it is. */
struct build_slot {
    struct size size;
    const char *name;
    bool is_packed;                      /* a phase of prepack writes it */
    int first[N_PHASES], last[N_PHASES]; /* steps that use it; first < 0: none of this phase does */
    struct buffer_ref at; /* its kind and its number there, from the end of the build on */
};

/* How the clusters like this one move values; the table is the program's. */
struct movement {
    const struct cluster *cluster;
    const struct copy_table *table;
    struct size batch, pixels;
};

struct build {
    struct arena *arena; /* freed at the end of the compile */
    struct arena *keep;  /* the program's */
    struct sol_program *program;
    const struct sol_options *options;
    struct plan *plan;
    VEC(struct step) steps[N_PHASES];
    VEC(struct build_slot) slots;
    VEC(struct constant) constants;
    VEC(struct movement) movements;
    struct buffer_ref *where;        /* by root tensor id: its buffer; NONE until first used */
    const struct cluster *cluster;   /* the one being emitted: new steps belong to it */
    const struct cluster *described; /* has this description */
    const char *description;
    struct text report;
    size_t cluster_begin; /* position in `report` after the cluster's headline */
    void *device;         /* the device's own data, such as kernels to be compiled */
    /* Turns a step of the host into one of the device before it is added: device.h. NULL: steps stay as they are. */
    enum sol_status (*convert)(struct build *build, struct step *step);
};

void build_init(struct build *build);

/* Starts a cluster: the steps that follow belong to it. Writes its headline into the report. */
void build_begin(struct build *build, const struct cluster *cluster);

/* The buffer and offset at which `t` begins. NONE if `t` is NULL. Slots are of kind ARENA until build_finish. */
struct buffer_ref build_ref(struct build *build, const struct tensor *t);
/* A new slot of `size` bytes for packed parameters. */
struct buffer_ref build_packed(struct build *build, int64_t size, const char *name);
/* New constants of the program: a copy of `size` bytes. */
struct buffer_ref build_constant(struct build *build, const void *at, size_t size);
/* A new slot of `size` bytes for values that only steps of the current cluster use. */
struct buffer_ref build_temporary(struct build *build, struct size size, const char *name);

/* Appends a step to a phase. Copies its name, pointers and arguments; keeps its other fields. */
enum sol_status build_step(struct build *build, enum phase phase, const struct step *step);

/* The kind of a layer, such as "conv"; of a host layer the name of its function. */
const char *build_kind_name(const struct model *m, const struct layer *l);
/* "conv+add+relu (net.py:7)": the layers, and the last one's line in the user's program. In the program's arena. */
const char *build_describe(struct build *build, const struct cluster *cluster);
/* Bytes of minimal memory traffic: each input and output once. */
struct size build_bytes(const struct cluster *cluster);

/* Emit a cluster of module COPY or GATHER, for all devices whose buffers are in host memory. */
enum sol_status build_copy(struct build *build, const struct cluster *cluster);
enum sol_status build_gather(struct build *build,
                             const struct cluster *cluster); /* build_gather.c */
/* Appends a step of these modules. */
enum sol_status build_movement(struct build *build, const struct cluster *cluster,
                               struct step step);
/* The last steps: copy the new values of updated parameters into the caller's memory. No later step can fail. */
enum sol_status build_updates(struct build *build);
/* build_host.c: emits a cluster of module HOST. */
enum sol_status build_host(struct build *build, const struct cluster *cluster);
/* Gives the program references to the functions of the model's hosts. */
enum sol_status build_hosts(struct build *build, const struct model *model);
/* "aten.foo (net.py:7)": how messages name a host layer. In `arena`. */
const char *build_host_name(struct arena *arena, const struct model *m, const struct layer *l);

/* Fills in the program: ports, steps, slots, report. */
enum sol_status build_finish(struct build *build, const struct model *user_model);

/* report.c */
void plan_report(struct build *build);     /* writes the cluster's headline into build->report */
const char *plan_dot(struct build *build); /* Graphviz text, in the program's arena */

#endif

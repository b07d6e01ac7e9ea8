/*
 * The build: where devices put the steps of a program while it is compiled.
 *
 *   plan -> for each cluster device->emit -> [build_step: buffers, slots, lifetimes] -> program
 *
 * What stays in the program is copied into the program's arena; everything else dies with the compile.
 */
#ifndef SOL_BUILD_H
#define SOL_BUILD_H

#include "plan/plan.h"
#include "run/program.h"

struct build {
    struct arena *arena; /* dies with the compile */
    struct arena *keep;  /* the program's */
    struct sol_program *program;
    const struct sol_options *options;
    struct plan *plan;
    VEC(struct step) prepack, steps;
    VEC(struct slot) prepack_slots, slots, packed;
    struct buffer_ref *where;      /* by root tensor id: its buffer, once it has one */
    const struct cluster *cluster; /* that is emitted: new steps are its */
    struct text report;
    size_t cluster_begin; /* where the report's lines on it begin, behind its headline */
    void *device;         /* the device's own, e.g. kernels waiting for the compiler */
};

void build_init(struct build *build);

/* From here on steps are those of `cluster`. */
void build_begin(struct build *build, const struct cluster *cluster);

/* Where `t` begins. NONE for NULL. */
struct buffer_ref build_ref(struct build *build, const struct tensor *t);
/* A new slot of `size` bytes for packed parameters. */
struct buffer_ref build_packed(struct build *build, int64_t size, const char *name);

/* Appends a step to `prepack` or `steps`; its names, pointers and arguments are copied. */
enum sol_status build_step(struct build *build, bool prepack, const struct step *step);

/* "conv+add+relu" and the places in the user's program, for people; lives in the program. */
const char *build_describe(struct build *build, const struct cluster *cluster);
struct size build_bytes(
    const struct cluster *cluster); /* compulsory traffic: inputs and outputs once */

/* Emits a cluster of module COPY; all devices with linear host memory share it. */
enum sol_status build_copy(struct build *build, const struct cluster *cluster);
enum sol_status build_gather(struct build *build, const struct cluster *cluster); /* likewise */

/* Moves everything into the program: ports, steps, slots, report. */
enum sol_status build_finish(struct build *build, const struct model *user_model);

/* report.c */
void plan_report(struct build *build);     /* the cluster's headline in build->report */
const char *plan_dot(struct build *build); /* Graphviz text, in the program */

#endif

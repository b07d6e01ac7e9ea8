/*
 * The null device: a skeleton to copy when adding a device. It takes every cluster and computes nothing.
 *
 * To make a device of it: copy this folder, rename null to your device, put one row into devices.c, and fill the functions
 * below from top to bottom. Libraries of the vendor are opened by dlopen in `unavailable`, never linked, so that
 * every device compiles on every machine. test/op runs each row of devices.c against device/ref: a new device is
 * tested as soon as its row stands there.
 */
#include "device/device.h"

/* NULL when the device, its driver and its libraries are there; else the reason, for people. */
static const char *say_unavailable(void) {
    return "a skeleton for new devices: it computes nothing";
}

/* Width of a channel block in floats. 1: images are never reordered. */
static int get_lanes(const struct sol_options *options) {
    (void)options;
    return 1;
}

/* Which convolutions the DNN module does on blocked images; the others come to `emit` as DFP clusters. */
static bool takes_heavy(const struct layer *heavy, int lanes) {
    (void)heavy, (void)lanes;
    return false;
}

/* Why these layers cannot share a kernel; NULL = they can. */
static const char *refuse_fusion(struct arena *arena, const struct cluster *cluster) {
    (void)arena;
    return cluster->layers.n > 1 ? "the null device fuses nothing" : NULL;
}

/* One task per step, and it does nothing. */
static int64_t count_tasks(const struct step *step, const int64_t *arg) {
    (void)step, (void)arg;
    return 1;
}
static void run_nothing(const struct step *step, void *const *ptr, const int64_t *arg,
                        void *scratch, int64_t begin, int64_t end) {
    (void)step, (void)ptr, (void)arg, (void)scratch, (void)begin, (void)end;
}

/* Pointers come as buffer and offset, never as host addresses: that is what lets steps be queued on a device. */
static enum sol_status emit(struct build *build, const struct cluster *cluster) {
    struct step step = {.run = run_nothing,
                        .n_tasks = count_tasks,
                        .flops = size_const(0),
                        .bytes = build_bytes(cluster),
                        .name = "nothing",
                        .module = "null",
                        .layers = build_describe(build, cluster)};
    return build_step(build, cluster->prepare, &step);
}

const struct device device_null = {
    .name = "null",
    .what = "skeleton for new devices",
    .unavailable = say_unavailable,
    .lanes = get_lanes,
    .takes_heavy = takes_heavy,
    .refuse_fusion = refuse_fusion,
    .emit = emit,
};

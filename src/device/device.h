/*
 * Devices: where programs run. A device is a folder and one row in devices.c.
 *
 * Compile time: a row answers whether the device can be used here, how wide a channel block is, which convs its DNN module
 * takes and which layers its DFP module can fuse; `emit` turns one cluster into steps, `link` makes generated text
 * callable. Run time: steps call the device's functions directly (run/program.h).
 */
#ifndef SOL_DEVICE_H
#define SOL_DEVICE_H

#include "plan/build.h"

struct device {
    const char *name, *what;
    const char *(*unavailable)(void); /* NULL: it can be used; else the reason */
    /* What of it programs are compiled for, such as the instruction set. NULL: there is one kind only. */
    const char *(*variant)(const struct sol_options *options);
    int (*lanes)(const struct sol_options
                     *options); /* 0 with a message: refused. NULL: 1, images are never reordered */
    bool (*supports_anchor)(const struct layer *conv, int lanes);
    plan_refuse *refuse_fusion;
    enum sol_status (*emit)(struct build *build, const struct cluster *cluster);
    enum sol_status (*link)(struct build *build); /* after all clusters; may be NULL */
    /* Set instead of all of the above but `unavailable`: takes the user's model as it is, unoptimized. */
    enum sol_status (*emit_model)(struct build *build, const struct model *model);
};

extern const struct device device_cpu, device_ref, device_c, device_null;
extern const struct device *const devices[]; /* best first, ended by NULL */

/* NULL: it can be used; else why not, also when the user disabled it. */
const char *device_unavailable_reason(const struct device *device);

/* The named device, or the best one that can be used when `name` is NULL. */
enum sol_status device_find(const char *name, const struct device **out);

/* ---- src/compile.c ---- */

/* What sol_compile does once it has found the device: tests call it for one that cannot be found. The model has been checked. */
enum sol_status device_compile(const struct device *device, const struct sol_model *model,
                               const struct sol_options *options, struct sol_program **out);

#endif

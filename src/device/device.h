/*
 * Devices: where programs run. A device is a folder and one word of DEVICE_LIST.
 *
 *   cluster -> emit: steps, and C text of generated kernels -> link: compiles the text -> struct sol_program
 *
 * A row also says whether the device can be used on this machine, what it is good at (plan/caps.h), which convolutions and linear
 * layers its DNN module computes, and which layers its DFP module can fuse. All this is used at compile time. At run
 * time, steps call the device's functions directly (run/program.h).
 */
#ifndef SOL_DEVICE_H
#define SOL_DEVICE_H

#include "dfp/step.h"
#include "jit/jit.h"
#include "plan/build.h"
#include "run/target.h"

struct device {
    const char *name, *what;
    const char *(*unavailable)(void); /* returns NULL if it can be used; else the reason */
    /* The variant of the device that programs are compiled for, such as an instruction set. NULL: there is only one. */
    const char *(*variant)(const struct sol_options *options);
    /* Changes what differs from the defaults, with which *caps is filled in (device_get_caps). Fails with a message if the options are
     * invalid. NULL: the defaults. */
    enum sol_status (*caps)(const struct sol_options *options, struct device_caps *caps);
    /* Does module DNN compute this conv, linear or matmul? NULL: none. `lanes`, here and below: the width of a channel block. */
    bool (*supports_anchor)(const struct layer *anchor, int lanes);
    /* Can module DNN write this convolution's output as a plain tensor, too, without a loss? NULL: only in blocks. */
    bool (*writes_plain)(const struct layer *conv, int lanes);
    /* Does it compute this composite layer as a whole (attention, a transposed convolution)? NULL: none, so all are decomposed. */
    bool (*computes)(const struct layer *layer, int lanes);
    plan_refuse *refuse_fusion; /* why layers cannot share a kernel of module DFP */
    enum sol_status (*emit)(struct build *build, const struct cluster *cluster);
    /* Of a far device: device_convert, which turns steps that are functions of the host into kernels. Else NULL. */
    enum sol_status (*convert)(struct build *build, struct step *step);
    enum sol_status (*link)(struct build *build); /* after all clusters; may be NULL */
    const struct target *target; /* of a far device: its run-time half; NULL: the host */
    /* Alternative to all of the above except `unavailable`: emits steps for the user's model, not optimized. */
    enum sol_status (*emit_model)(struct build *build, const struct model *model);
};

/* All devices, best first. X(NAME) stands for device_NAME, which a file of the device's folder defines. */
#define DEVICE_LIST(X) X(cpu) X(ref) X(c) X(ve) X(far) X(null)

#define DEVICE_DECLARATION(name) extern const struct device device_##name;
DEVICE_LIST(DEVICE_DECLARATION)
extern const struct device *const devices[]; /* DEVICE_LIST, ended by NULL */

/* NULL: the device can be used; else the reason, which may be SOL_DISABLE. */
const char *device_unavailable_reason(const struct device *device);

/* The device's capabilities for these options. The defaults: plain layouts, and one value at a time in C for compilers that vectorize
 * loops (dfp_plain), with 128 KiB of scratch; threads and caches of the host; no implementations of module DNN; the host's memory. */
enum sol_status device_get_caps(const struct device *device, const struct sol_options *options,
                                struct device_caps *out);

/* Visits the implementations of module DNN that the devices have, each once. is_far: it is not the host that runs it. */
void device_visit_impls(void (*visit)(void *user, const struct dnn_impl *impl, bool is_far),
                        void *user);

/* The device with this name; NULL: the first of `devices` that can be used and whose memory is the host's. EINVAL: no such device.
 * EDEVICE: it cannot be used. */
enum sol_status device_find(const char *name, const struct device **out);
/* EINVAL if there cannot be a device of this number: there is one host. The far devices themselves count those that there are. */
enum sol_status device_check_number(const struct device *device, int number);

/* ---- link.c: generated kernels, for devices that compile their C text ---- */

/* Queues a kernel of DFP for device_link. The queue is build->device. */
void device_queue_kernel(struct build *build, const struct dfp_parts *parts);
/* A device's `link`: compiles what is queued, in parallel and with a cache, and sets `compiled` in each kernel. Does what users expect
 * of every device: SOL_DEBUG=kernels and time, the option `debug`, keep_source. `flags` are the compiler's, with -DLANES=n if
 * the dialect has vectors, n being caps.vector. Without a compiler, all kernels stay interpreted, and the log says so. Fails only with
 * ENOMEM; for a device with `convert` also with ETOOL, as nothing interprets its kernels, and EUNSUPPORTED for keep_source. */
enum sol_status device_link(struct build *build, const struct jit_loader *loader,
                            const char *flags);
/* How kernels of a far device become files that its target loads. */
struct far_tools {
    const struct target *target;
    const struct jit_choice *compiler; /* NULL: the one for this machine */
    const char *flags;
    /* Text behind that of each kernel, whose name is SOL_KERNEL there. It may define a function with the kernel's name and this ending,
     * which the target is to find instead of the kernel. NULL: none. */
    const char *entry, *ending;
};
/* The same for a far device: the program keeps the files that the compiler wrote. Without a compiler it fails. */
enum sol_status device_link_far(struct build *build, const struct far_tools *tools);

/* ---- far_emit.c: `emit` and `convert` of devices whose memory the host cannot read ---- */

/* Emits a cluster by steps of generated kernels (step_kernel) only, but for module HOST. They are queued for device_link. Of
 * module DNN, it has what dnn_plain_supports and dnn_plain_takes_conv say (dnn/emit.h); the device's `computes` is NULL. */
enum sol_status device_emit_far(struct build *build, const struct cluster *cluster);
/* Replaces a step that is a function of the host by one of a kernel; steps of kernels and of module HOST stay. */
enum sol_status device_convert(struct build *build, struct step *step);

#endif

/*
 * The run-time half of a far device: one whose memory the host cannot read. It has memory, code, and streams of commands.
 *
 *   run/queue.c, run/far.c -> struct target -> device/far, device/ve
 *
 * All functions may be called from any thread. A stream computes its commands in the order in which they were submitted; two
 * streams overlap. The functions that submit commands return at once: they never wait for a command. A target that is not asynchronous
 * may compute the command in the call instead, under a lock that keeps the order of several threads, and leave `*event` as it is. Each
 * command of a stream has a number, its event: 1, 2, 3, ..
 *
 * An error of a command is found when one waits for it, and from then on the context is broken: every function but `close` returns
 * this error. A function that refuses what it was asked for, as memory that there is not, returns that error and breaks nothing. Callers
 * have checked the ranges of copies of users (run/queue_api.c).
 *
 * In a child of the process that opened the device, `close` frees the child's memory, and all other functions return EDEVICE.
 *
 * A program of a host device (the CPU) has no target: it runs by run/exec.c.
 */
#ifndef SOL_TARGET_H
#define SOL_TARGET_H

#include "base/base.h"

#include <sol/queue.h>

/* Copies `size` bytes. The host's memory must stay as it is, or must not be used, until the command is done. */
enum transfer_kind { TRANSFER_TO_DEVICE, TRANSFER_TO_HOST, TRANSFER_ON_DEVICE };
struct transfer {
    enum transfer_kind kind;
    sol_ptr to, from; /* the one that is in the device's memory, or both */
    void *host;       /* the other one; TRANSFER_ON_DEVICE: NULL */
    size_t size;
};

enum launch_kind {
    LAUNCH_KERNEL, /* tasks [0, n_tasks) of `code`, on all processors of the device */
    LAUNCH_FILL,   /* arg[1] bytes from ptr[0] on become arg[0], a byte */
    /* calls `function` on a thread of the host; on the last stream only. The function does not use the device */
    LAUNCH_HOST,
    LAUNCH_WAIT, /* later commands wait for event arg[1] of stream arg[0]; only if there are two streams */
    LAUNCH_UNLOAD, /* frees the module that `load` loaded for this `code` */
    /* Only if `has_pieces`. Copies pieces that lie one behind the other from ptr[0] on to ptr[1], ptr[2], ..: piece i has arg[i] bytes.
     * GATHER: from there. In their order, as places may overlap */
    LAUNCH_SCATTER,
    LAUNCH_GATHER,
};

/* A command. All that it points to is copied, except `user`. A kernel is a function
 *   void kernel(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end)
 * whose pointers are in the device's memory; NULL stays NULL. It is called for ranges of tasks, at the same time on several threads,
 * each with `scratch` bytes of its own, aligned to 64 (0: any pointer). Without tasks it is not called. The device divides the tasks. */
struct launch {
    enum launch_kind kind;
    const char *name; /* for messages */
    uint64_t code;    /* from `load` */
    int64_t n_tasks;
    int n_ptr, n_arg;
    const sol_ptr *ptr;
    const int64_t *arg;
    size_t scratch; /* bytes per thread */
    void (*function)(void *user);
    void *user;
};

/* `context`: what `open` returned. `event` may be NULL. */
struct target {
    const char *name;
    int n_streams;   /* 1, or 2: kernels on stream 0, copies on stream 1 */
    bool has_pieces; /* it has LAUNCH_SCATTER and LAUNCH_GATHER */
    /* Opens device `number`, counted from 0 among the visible ones. EDEVICE: there is none, or it cannot be used. */
    enum sol_status (*open)(int number, void **context);
    /* Ends what runs, and frees all memory and modules. */
    void (*close)(void *context);
    /* Memory of `size` > 0 bytes, aligned to 64, with any content; commands of this stream may use it, and those of another one
     * behind an event. ENOMEM if the device has no room, which the device may also find later. */
    enum sol_status (*alloc)(void *context, int stream, size_t size, sol_ptr *out);
    /* Frees an allocation behind all commands that the stream has so far. EINVAL: no allocation begins there. */
    enum sol_status (*free)(void *context, int stream, sol_ptr at);
    enum sol_status (*copy)(void *context, int stream, const struct transfer *transfer,
                            uint64_t *event);
    /* Loads a module, the content of a file that the device's compiler wrote, and finds a kernel in it. Waits for the device. Each call
     * loads a module of its own, and *code is never 0. EDEVICE: it cannot be loaded. */
    enum sol_status (*load)(void *context, const void *image, size_t size, const char *symbol,
                            uint64_t *code);
    enum sol_status (*launch)(void *context, int stream, const struct launch *launch,
                              uint64_t *event);
    /* Waits until a command is done, and possibly later ones; event 0: all of the stream so far. */
    enum sol_status (*wait)(void *context, int stream, uint64_t event);
};

/* ---- visible.c ---- */

/* Which of the `n_devices` of this kind number `number` of the visible ones is. EDEVICE, with the message for the user: there is none. */
enum sol_status target_visible(const char *name, int n_devices, int number, int *out);
/* Logs a warning if $SOL_VISIBLE_DEVICES is no list. */
void target_check_environment(void);

#endif

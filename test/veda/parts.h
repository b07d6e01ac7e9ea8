/*
 * Internal interface of test/veda: a stand-in for NEC's VEDA on top of SOL's far devices, for tests.
 *
 *   veda.c     the library and its devices
 *   context.c  contexts, and each thread's stack of them
 *   stream.c   requests: submits them to the far device, waits for them, hands out their results
 *   launch.c   modules, kernels, host functions
 *   args.c     arguments of kernels
 *   memory.c   virtual pointers, allocations
 *   copy.c     copies and fills
 *   device.c   the device's half; a text, compiled when a context is created
 *
 * A far device has one stream for kernels and one for copies; a stream of VEDA has both, in order. Here each request of a context
 * is behind all earlier ones, of all its streams: an order that the real library may choose, too. Only the handing out of results and
 * errors is per stream.
 *
 * Differences from VEDA 2.3 as its sources are:
 *   - a kernel's result that is not 0, and for which the caller gave no place, is an error of the next synchronization. The
 *     real library tests only its own kernels. SOL_VEDA_EXACT=1 does the same here.
 *   - vedaCtxSetCurrent(NULL) pops. The real one returns INVALID_CONTEXT; here, too, with SOL_VEDA_EXACT=1.
 *   - SOL_VEDA_OFFSET_BITS=32 is the layout of virtual pointers that a paper has. All versions of the real library have 37.
 *   - a free never waits. The real one does if the host has not seen the pointer yet.
 *   - StreamQuery tells whether the stream has ended. The real one asks for the state of a thread that always runs.
 *   - an error is returned once. The real one probably returns VEO_COMMAND_ERROR ever after.
 *   - the handles of dead contexts and modules are recognized. The real ones dangle.
 *   - allocations are aligned to 64 bytes, and get 7/8 of the memory; streams do not overlap; kernels have at most
 *     VEDA_WORDS + VEDA_INTEGERS integers.
 *   - the counts of $SOL_FAR include the library's own kernels: each context starts with one, each module, each function, each task of
 *     memory takes one. Its allocations are two per context, and one per kernel with arguments that are memory.
 *   - a host function must not call VEDA.
 *
 * Locks: `lock` of a context guards all its members. It is released while something is waited for.
 */
#ifndef VEDA_PARTS_H
#define VEDA_PARTS_H

/* veda.c: of virtual pointers. Before veda_types.h, which has the constant of the real library. */
int veda_offset_bits(void);
#define VEDA_OFFSET_BITS veda_offset_bits()

#include "base/lock.h"
#include "device/far/parts.h"
#include "tasks.h"
#include "veda.h"

#include <limits.h>

#define VEDA_TRY(call)                              \
    do {                                            \
        VEDAresult veda_try_ = (call);              \
        if (veda_try_) return veda_try_;            \
    } while (0)

#define VEDA_SLOTS 4096                /* results of kernels that the device holds */
#define VEDA_STACK_LIMIT (64ull << 20) /* doc/Restriction.md of VEDA */
#define VEDA_MAX_STREAMS 256           /* threads of a far device */
#define VEDA_OWN_STREAM INT_MIN        /* what the library asks: errors of others stay for those who wait for them */
#define VEDA_MAX_ARGS 56               /* integers alone: VEDA_INTEGERS + VEDA_WORDS */

/* ---- args.c ---- */

enum arg_kind { ARG_NONE, ARG_INTEGER, ARG_FLOAT, ARG_STACK };
struct veo_args {
    int n;
    struct arg {
        enum arg_kind kind;
        uint64_t value; /* of a float: its bits */
        void *at;       /* ARG_STACK: the host's memory */
        size_t size;
        VEDAargs_intent intent;
    } at[VEDA_MAX_ARGS];
};

/* Sorts arguments into registers and words. `stack`: the device's copy of the ARG_STACKs. */
VEDAresult args_sort(const struct veo_args *args, uint64_t stack, struct veda_call *out);
/* Bytes of all ARG_STACKs, each rounded up to ARG_ALIGNMENT. */
uint64_t args_stack_size(const struct veo_args *args);
/* Copies IN and INOUT from the caller to `stack`; false: INOUT and OUT from `stack` to the caller. */
void args_copy(const struct veo_args *args, char *stack, bool in);
#define ARG_ALIGNMENT 64

/* ---- stream.c ---- */

/* A kernel or host function whose result somebody wants. */
struct request {
    struct request *next;
    uint64_t number; /* of the context, from 1 */
    int stream;      /* index of `marks` */
    bool on_host, ended;
    bool checked;  /* a result that is not 0 is an error */
    uint64_t *out; /* the caller's place for the result; NULL: none */
    uint64_t value;
    VEDAhost_function function;
    void *user;
    char *stack;          /* memory of the arguments; NULL: none */
    struct veo_args args; /* if `stack` */
};

/* A virtual pointer as the host knows it. */
struct veda_entry {
    uint64_t raw; /* 0: not known yet */
    size_t size;  /* 0: delayed */
    bool used;
    uint64_t changed; /* the context's n_changes when the index got another meaning */
};

struct veda_module {
    struct veda_module *next;
    uint64_t handle;
    struct veda_name *names; /* VEDAfunction points at them */
};

struct veda_mark {
    int stream;     /* of the far device */
    uint64_t event; /* 0: none */
};

struct veda_context {
    struct lock lock;
    int device;
    bool active;
    int mode, n_streams;
    size_t memory;
    void *far;
    uint64_t code, results; /* veda_entry; the slots of results, in the device's memory */
    struct veda_mark last;  /* the last command of the far device: the next one comes behind it */
    /* The last command of each stream; then of VEDA_OWN_STREAM. */
    struct veda_mark marks[VEDA_MAX_STREAMS + 1];
    uint64_t n_requests, n_ended;
    struct request *requests, **requests_end;
    struct veda_module *modules;
    struct veda_entry *table; /* VEDA_CNT_IDX + 1 */
    uint32_t next_idx, n_used;
    uint64_t n_changes; /* swaps, allocations and frees so far */
    /* Indices whose raw pointers the host does not know; some may be free by now. */
    uint32_t *unknown;
    size_t n_unknown, unknown_cap;
};

/* Of an error of SOL. */
VEDAresult stream_error(enum sol_status status);
/* UNKNOWN_STREAM unless it is -1, VEDA_OWN_STREAM, or one of the context. */
VEDAresult stream_check(VEDAcontext c, VEDAstream stream);
/* Submits a call. `args` may have ARG_STACKs. All callers hold the lock from here on. */
VEDAresult stream_call(VEDAcontext c, VEDAstream stream, uint64_t code, const char *name,
                       const struct veo_args *args, bool checked, uint64_t *out);
/* The same for a task of the library with integers, n of them. */
VEDAresult stream_task(VEDAcontext c, VEDAstream stream, enum veda_task task, int n,
                       const uint64_t *values, uint64_t *out);
VEDAresult stream_call_host(VEDAcontext c, VEDAstream stream, VEDAhost_function function,
                            void *user, uint64_t *out);
/* A copy between the host and a raw address. */
VEDAresult stream_copy(VEDAcontext c, VEDAstream stream, enum transfer_kind kind, uint64_t raw,
                       void *host, size_t size);
/* Waits for a stream, -1: all, and returns its first error. */
VEDAresult stream_sync(VEDAcontext c, VEDAstream stream);
/* The end of each function of the API: `result`, or, for stream -1, that of waiting. Releases the lock. */
VEDAresult stream_finish(VEDAcontext c, VEDAstream stream, VEDAresult result);
void stream_drop_all(VEDAcontext c);

/* ---- context.c ---- */

void contexts_init(void);
void contexts_exit(void);
/* The context of a device; INVALID_DEVICE. */
VEDAresult context_of(VEDAdevice device, VEDAcontext *out);
/* The thread's current context, locked. */
VEDAresult context_acquire_current(VEDAcontext *out);
/* That of a virtual pointer, locked, if it is active; else CONTEXT_IS_DESTROYED. */
VEDAresult context_acquire(VEDAdeviceptr at, VEDAcontext *out);
/* That of a module, locked. The module may be any pointer: UNKNOWN_MODULE if it died with its context. */
VEDAresult context_acquire_module(VEDAmodule module, VEDAcontext *out);

/* ---- veda.c ---- */

bool veda_is_initialized(void);
bool veda_is_exact(void);
bool veda_traces_memory(void);
int veda_n_devices(void);
int veda_physical_id(int device);
int veda_n_cores(void);
size_t veda_device_memory(void);

/* ---- launch.c ---- */

void modules_drop_all(VEDAcontext c);

/* ---- memory.c ---- */

VEDAresult memory_init(VEDAcontext c);
void memory_fini(VEDAcontext c);
/* The host's entry, with its raw pointer if it can be known: may wait. UNKNOWN_VPTR. */
VEDAresult memory_entry(VEDAcontext c, VEDAdeviceptr at, bool want_raw, struct veda_entry *out);

#endif

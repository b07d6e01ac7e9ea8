/*
 * Internal interface of src/device/ve, for its files and its tests.
 *
 *   open.c      finds libveda, once per process
 *   target.c    struct target: opening, memory, copies
 *   command.c   kernels and host functions, events, waiting, errors
 *   module.c    loading and unloading code
 *   ve.c        the row of the device: its capabilities
 *   compile.c   its compiler, and the kernel that moves pieces of packed copies, whose text is pieces.h
 *   vednn.c     the library VEDNN: its plan. Text for the device is vednn.h, VEDNN's declarations, and vednn_plain.h
 *   nlc.c       the same for the BLAS of NLC
 *   library.c   whether the compiler can link them
 *   entry.h     text for the device: the function that libveda calls, around a generated kernel
 *
 * Locks: `lock` guards all members of struct ve that change after it was opened, and keeps commands and their events in one order. It is
 * not held while the stream is synchronised, but some functions of libveda that are called under it wait for the device, which is
 * theirs to decide: the first copy to new memory does.
 */
#ifndef SOL_VE_VE_H
#define SOL_VE_VE_H

#include "base/lock.h"
#include "device/ve/veda.h"
#include "run/target.h"

/* ---- open.c ---- */

/* libveda's functions, after ve_open_library. */
struct veda {
#define VEDA_MEMBER(name, parameters) int (*name) parameters;
    VEDA_API(VEDA_MEMBER)
#undef VEDA_MEMBER
    int n_devices; /* that libveda sees; $VEDA_VISIBLE_DEVICES limits them */
    int process;   /* lock_process() of the process that initialised it */
};
extern struct veda veda;

/* Opens and initialises libveda, unless this process has done so. Returns NULL, or why vector engines cannot be used. */
const char *ve_open_library(void);

/* ---- An open device ---- */

struct ve_command;
struct ve_module;

struct ve {
    int number, device; /* among the visible ones; libveda's number */
    int n_threads;
    int offset_bits; /* of its pointers */
    size_t size;     /* bytes of its memory */
    veda_context context;
    struct lock lock;
    bool is_broken; /* `message` says why */
    enum sol_status status;
    char message[512];
    uint64_t n_submitted,
        n_done; /* events: commands so far, and how many a synchronisation has seen the end of */
    struct ve_command *first, **last,
        *spare; /* whose results libveda has yet to write; for later use */
    struct ve_module *modules;
    veda_ptr scratch; /* of all threads, for one kernel after the other */
    size_t scratch_size;
    /* To scatter and to gather; state: of lock_begin. */
    struct ve_pieces {
        int state;
        uint64_t code;
    } pieces[2];
};

extern const struct target ve_target;

/* ---- command.c ---- */

/* Takes the lock and makes the context current on this thread. EDEVICE etc.: the device cannot be used. */
enum sol_status ve_enter(struct ve *ve);
/* Undoes that; returns `status`. */
enum sol_status ve_leave(struct ve *ve, enum sol_status status);
/* The status of a result, with the message: "ve 0: vedaMemAllocAsync: VEDA_ERROR_OUT_OF_MEMORY (name)". `name` may be NULL. */
enum sol_status ve_status(const struct ve *ve, int result, const char *function, const char *name);
/* The same, and a failure breaks the device. The caller holds the lock. */
enum sol_status ve_check(struct ve *ve, int result, const char *function, const char *name);
#define VE_CALL(ve, name, function, ...) \
    ve_check(ve, veda.function(__VA_ARGS__), "veda" #function, name)
/* Counts a command that was submitted. `event` may be NULL. */
void ve_count(struct ve *ve, uint64_t *event);

enum sol_status ve_launch(void *context, int stream, const struct launch *launch, uint64_t *event);
enum sol_status ve_wait(void *context, int stream, uint64_t event);
/* Frees commands. libveda writes no more results. */
void ve_free_commands(struct ve *ve);

/* ---- module.c ---- */

enum sol_status ve_load(void *context, const void *image, size_t size, const char *symbol,
                        uint64_t *code);
struct veda_function ve_function(uint64_t code);
/* Unloads the module once all commands so far are done. */
void ve_unload_later(struct ve *ve, uint64_t code);
/* Unloads what it can. The context is current. */
enum sol_status ve_unload_done(struct ve *ve);
void ve_free_modules(struct ve *ve);

/* ---- compile.c ---- */

struct jit_choice;
extern const struct jit_choice ve_compiler;
enum sol_status ve_compiler_flags(const char **out);
/* vednn.c, nlc.c */
extern const struct dnn_impl dnn_vednn, dnn_nlc;

/* Makes a LAUNCH_SCATTER or LAUNCH_GATHER a launch of the kernel that does it, which the first one compiles and loads. Other launches
 * stay as they are. The caller does not hold the lock. Weak: deployed libraries compile nothing, and do not contain it. */
__attribute__((weak)) enum sol_status ve_prepare_pieces(struct ve *ve, struct launch *launch);

#endif

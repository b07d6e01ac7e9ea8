/*
 * Far devices at run time: devices that are open, and what programs and weights have there.
 *
 *   program -> far.c: an open device, code and constants in it
 *   weights -> far_weights.c: memory of parameters, packed ones too
 *   request -> far_call.c: copies of inputs -> a launch per step -> copies of outputs; far_enqueue.c: with memory of the device
 *   all     -> queue.c: one order of commands -> struct target (target.h)
 *
 * Invariant: whoever uses a device holds a reference to it (far_open); the last one closes it.
 */
#ifndef SOL_RUN_FAR_H
#define SOL_RUN_FAR_H

#include "run/bind.h"
#include "run/request.h"
#include "run/target.h"

/* The memory that users have allocated, by address: buffer.c. */
struct buffer {
    sol_ptr at;
    size_t size;
};
struct buffers {
    struct lock lock;
    int n, capacity;
    struct buffer *buffer;
};

/* An open device. */
struct far_device {
    const struct target *target;
    int number;
    void *context;
    int n_users; /* guarded by the lock of the list */
    struct far_device *next;
    struct buffers buffers;
    struct lock lock;        /* guards what follows */
    struct sol_queue *idle;  /* for calls with the host's memory */
    struct far_block *saved; /* far_saved.c */
};

/* A kernel of a program: the file that the device's compiler wrote. */
struct far_kernel {
    const void *image;
    size_t size;
    const char *symbol;
    uint64_t code; /* in the open device */
};

/* The part of a program that only far devices need. In the program's arena; the device's link makes it. */
struct far_program {
    const struct target *target;
    int number;
    int n_kernels;
    struct far_kernel *kernel;
    /* From here on set by the first use. */
    int state; /* of lock_begin with the program's lock: loaded? */
    struct far_device *device;
    sol_ptr constants;
    size_t *constant_offset;
    struct far_counts {
        _Atomic int64_t to_device, to_host, launches, weights;
    } counts; /* of struct sol_transfers */
};

/* Copies of parameters on the device. */
struct far_params {
    sol_ptr at;
    size_t *offset; /* by parameter; SIZE_MAX: it is not there */
};

/* The part of weights that only far devices need: the packed parameters, and those that steps of calls read or write. Those that
 * only steps of prepack read are there while these run. */
struct far_weights {
    sol_ptr packed;
    struct far_params params;
};

/* Addresses of all buffers of one call, on the device. */
struct far_call {
    const struct sol_program *program;
    const struct sol_weights *weights;
    const struct far_params
        *packing; /* parameters that only this phase of prepack reads; NULL: a call */
    struct sol_queue *queue;
    struct binding *binding;
    const sol_ptr *input, *output;
    sol_ptr arena, saved;
    double *seconds; /* by step; NULL: not measured */
};

/* host_target.c: the host's own memory, for queues on its devices. */
extern const struct target host_target;

/* ---- far.c ---- */

enum sol_status far_open(const struct target *target, int number, struct far_device **out);
void far_close(struct far_device *device);
/* The runner of programs with a far part. */
extern const struct runner far_runner;
/* Makes a program with so many constants run on `target`. `kernel` is in the program's arena. */
void far_attach(struct sol_program *program, const struct target *target, int number,
                int n_constants, int n_kernels, struct far_kernel *kernel);
/* Opens the program's device and loads its code, unless that has been done. */
enum sol_status far_load(struct sol_program *program);

/* Adds a copy of the program to the queue, and counts it. is_call: of a call; else of weights or constants. */
enum sol_status far_copy(const struct sol_program *program, struct sol_queue *queue,
                         const struct transfer *transfer, bool is_call);

/* ---- far_weights.c ---- */

enum sol_status far_alloc_weights(struct sol_weights *weights);
void far_free_weights(struct sol_weights *weights);
/* Copies parameters to the device, and runs a phase of prepack there. */
enum sol_status far_pack(const struct sol_weights *weights, enum phase phase);
/* Instead of both: copies parameters to the device, and those that are packed already, in the host's memory. */
enum sol_status far_adopt(struct sol_weights *weights);
/* Copies the packed parameters to `memory` of the host, in which the slots of weights->packed lie then. */
enum sol_status far_fetch_packed(const struct sol_weights *weights, char *memory);
/* Where a step finds parameter `i`. packing: as in struct far_call. */
sol_ptr far_param(const struct far_weights *weights, const struct far_params *packing, int i);
/* Copies the parameters that calls update, to the device or back. */
enum sol_status far_copy_updated(const struct sol_weights *weights, struct sol_queue *queue,
                                 enum transfer_kind kind);

/* ---- far_saved.c ---- */

/* Memory of `size` bytes for what the host's address `name` stands for: the same one as before, if there is one. is_new: its
 * content does not matter; else EINVAL if there was none of this size. */
enum sol_status far_saved(struct far_device *device, struct sol_queue *queue, const void *name,
                          size_t size, bool is_new, sol_ptr *out);
void far_saved_free(struct far_device *device, const void *name);
/* Forgets all blocks, when the device is closed. */
void far_saved_drop(struct far_device *device);

/* ---- far_call.c ---- */

/* Runs a request with the host's memory; returns when it is done. seconds: as exec_run. */
enum sol_status far_run(const struct request *request, double *seconds);
/* The binding_visit of a struct far_call: adds the launches of a step to the queue. */
enum sol_status far_run_step(void *call, int i, const struct micro_batch *micro_batch);

/* ---- far_enqueue.c ---- */

/* EINVAL if the program is not of the queue's device. */
enum sol_status far_check_program(const struct sol_program *program, const struct sol_queue *queue);

/* ---- queue.c ---- */

/* A queue of an open device. */
enum sol_status queue_new(const struct target *target, int number, struct sol_queue **out);
/* One for a call with the host's memory; put it back after queue_wait. */
enum sol_status queue_take(struct far_device *device, struct sol_queue **out);
void queue_put_back(struct sol_queue *queue);
struct far_device *queue_device(const struct sol_queue *queue);
/* Frees a queue of queue_new whose operations are done. */
void queue_close(struct sol_queue *queue);
/* SOL_OK, or the failure of the queue. */
enum sol_status queue_check(const struct sol_queue *queue);
struct lock *queue_lock(struct sol_queue *queue);
/* Adds a command behind those that the queue has so far. */
enum sol_status queue_launch(struct sol_queue *queue, const struct launch *launch);
enum sol_status queue_copy(struct sol_queue *queue, const struct transfer *transfer);
enum sol_status queue_alloc(struct sol_queue *queue, size_t size, sol_ptr *out);
enum sol_status queue_dealloc(struct sol_queue *queue, sol_ptr at);
/* Memory of at least `size` bytes that the queue's calls use one after the other. */
enum sol_status queue_arena(struct sol_queue *queue, size_t size, sol_ptr *out);
sol_ptr queue_error_words(const struct sol_queue *queue);
/* The next queue_wait reads the error words. */
void queue_may_fail(struct sol_queue *queue);
/* Keeps the weights until the operation that is being added is done. */
enum sol_status queue_keep(struct sol_queue *queue, struct sol_weights *weights);
/* Room for n pointers of a launch; NULL: out of memory. */
sol_ptr *queue_pointers(struct sol_queue *queue, int n);
/* Frees the queues that no call uses. */
void queue_drop_idle(struct far_device *device);

/* ---- event.c ---- */

/* Waits for all commands. The first failure of any of them. */
enum sol_status queue_wait(struct sol_queue *queue);
/* Counts an operation of the user's if it was added; returns `added`. */
enum sol_status queue_count(struct sol_queue *queue, enum sol_status added);
/* The number of the last operation, which can be waited for from now on. */
enum sol_status queue_record(struct sol_queue *queue, uint64_t *out);
/* Later operations of the queue wait for those that `other`, of the same device, has up to this event. */
enum sol_status queue_order(struct sol_queue *queue, struct sol_queue *other, uint64_t event);
/* Takes the lock itself, without which the others are called. */
enum sol_status queue_wait_event(struct sol_queue *queue, uint64_t event);

/* ---- buffer.c ---- */

void buffers_init(struct buffers *buffers);
void buffers_fini(struct buffers *buffers);
bool buffers_add(struct buffers *buffers, sol_ptr at, size_t size);
/* False: no allocation begins there. */
bool buffers_remove(struct buffers *buffers, sol_ptr at);
/* EINVAL unless the `size` bytes from `at` on are in one allocation. `what` begins the message. */
enum sol_status buffers_check(struct buffers *buffers, const char *what, sol_ptr at, size_t size);

#endif

/*
 * SOL, queues: memory and calls on a device whose memory the host cannot read.
 *
 *   sol_queue_new -> sol_alloc, sol_copy, sol_program_enqueue, .. -> sol_queue_sync -> sol_queue_free
 *
 * A queue computes its operations in the order in which they were added, and the functions that add one return at once: none of them
 * waits for the device. Operations of two queues are not ordered, unless one waits for an event of the other (sol_queue_wait). An error of
 * an operation is found when the host waits for it (sol_queue_sync, sol_queue_sync_event); from then on the queue refuses further work
 * with the same message. On the host's own devices ("x86", "ref") an operation is done when its function returns.
 *
 * Programs of such devices also run by sol_program_run, with the host's memory: it copies inputs and outputs itself.
 *
 * Threads: queues may be used by any thread, also by several.
 */
#ifndef SOL_QUEUE_H
#define SOL_QUEUE_H

#include <sol/run.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An address in a device's memory; 0 is none. It may be added to, but only its device can read what is there. */
typedef uint64_t sol_ptr;

struct sol_queue;

/* A queue of device `device` ("ve", "far"), of which there may be several: `number` is 0, 1, .. among the visible ones. EINVAL: there is no
 * such device; EDEVICE: it cannot be used. */
SOL_API SOL_CHECKED enum sol_status sol_queue_new(const char *device, int number,
                                                  struct sol_queue **out);
/* Waits for all operations. Returns the first error of any of them. */
SOL_API SOL_CHECKED enum sol_status sol_queue_sync(struct sol_queue *queue);

/* An event stands for the operations of a queue so far: it is their number. sol_alloc, sol_free and sol_queue_wait are operations, too, and
 * what was refused, or has no bytes, is none. *out: the number of the last one; 0: there was none. Each event costs some memory until the
 * host has waited for it or a later one; if there are 256, the function waits for the oldest. */
SOL_API SOL_CHECKED enum sol_status sol_queue_event(struct sol_queue *queue, uint64_t *out);
/* Lets later operations of the queue wait for those that `other`, a queue of the same device, has up to this event. It does not wait
 * itself. EINVAL if `other` has not had so many operations. */
SOL_API SOL_CHECKED enum sol_status sol_queue_wait(struct sol_queue *queue, struct sol_queue *other,
                                                   uint64_t event);
/* Waits for the operations up to this event, as sol_queue_sync does for all of them; other threads may add operations meanwhile. A
 * number that sol_queue_event did not return is waited for, too, but operations behind it may be, as well. EINVAL if the queue has not
 * had so many operations. */
SOL_API SOL_CHECKED enum sol_status sol_queue_sync_event(struct sol_queue *queue, uint64_t event);
/* Calls function(user) on a thread of the host, as an operation of the queue: behind those before it, in front of those behind it. It finds
 * the results of copies in the host's memory, and may write what later operations copy. It must not use queues or programs of the
 * device, and should be short, as other queues may wait for it, too. It is not called if the device fails before. A function that sets a
 * flag tells, without waiting, that the operations before it are done. */
SOL_API SOL_CHECKED enum sol_status sol_queue_call(struct sol_queue *queue,
                                                   void (*function)(void *user), void *user);
/* Waits for all operations and frees the queue, but no memory that was allocated. NULL is fine. */
SOL_API void sol_queue_free(struct sol_queue *queue);

/* Memory of `size` bytes, aligned to 64, of any content. Other queues may use it after a sol_queue_wait or a wait of the host. ENOMEM: the
 * device has no room. */
SOL_API SOL_CHECKED enum sol_status sol_alloc(struct sol_queue *queue, size_t size, sol_ptr *out);
/* Frees it behind all operations of the queue so far. EINVAL if no allocation begins there; 0 is fine. */
SOL_API SOL_CHECKED enum sol_status sol_free(struct sol_queue *queue, sol_ptr at);
/* Copies. The host's memory may not be changed or freed, or not be read, before the host has waited for the copy; functions of
 * sol_queue_call in the same queue may use it. EINVAL if the device's memory from there on does not have `size` bytes. */
SOL_API SOL_CHECKED enum sol_status sol_copy_to_device(struct sol_queue *queue, sol_ptr to,
                                                       const void *from, size_t size);
SOL_API SOL_CHECKED enum sol_status sol_copy_to_host(struct sol_queue *queue, void *to,
                                                     sol_ptr from, size_t size);
SOL_API SOL_CHECKED enum sol_status sol_copy_on_device(struct sol_queue *queue, sol_ptr to,
                                                       sol_ptr from, size_t size);

/* Adds a run of the program, as sol_program_run, with inputs and outputs in the device's memory. The program and the weights are kept
 * until it is done. EINVAL if the program is of another device, or an input or output is not in the device's memory.
 *
 * Parameters that the program updates (`is_updated`) are on the device: sol_weights_new copies them there, enqueued calls read and write
 * them there, and the host's memory of them stays as it is until sol_weights_sync. So calls update them without traffic. All functions
 * that use the host's values, sol_weights_update, sol_program_run, sol_program_forward and sol_program_backward, copy them to the device
 * again: call sol_weights_sync before. After a call has failed, the values on the device are unspecified. On the host's own devices
 * there is one memory, and no difference. */
SOL_API SOL_CHECKED enum sol_status sol_program_enqueue(
    const struct sol_program *program, struct sol_weights *weights, struct sol_queue *queue,
    const int64_t *symbols, const sol_ptr *inputs, const sol_ptr *outputs);
/* The same for a program with a backward part: as sol_program_forward and sol_program_backward, but `saved` is memory of the device, too,
 * of the size that sol_program_memory reports as `saved`; 0 if that is 0. Pointers of ports that a call does not use may be 0. The first
 * backward call with new values of the parameters packs some of them, and waits for that. */
SOL_API SOL_CHECKED enum sol_status sol_program_enqueue_forward(
    const struct sol_program *program, struct sol_weights *weights, struct sol_queue *queue,
    const int64_t *symbols, const sol_ptr *inputs, const sol_ptr *outputs, sol_ptr saved);
SOL_API SOL_CHECKED enum sol_status sol_program_enqueue_backward(
    const struct sol_program *program, struct sol_weights *weights, struct sol_queue *queue,
    const int64_t *symbols, const sol_ptr *inputs, const sol_ptr *outputs, sol_ptr saved);
/* Waits for all operations of the queue, as sol_queue_sync, and copies the parameters that calls have updated from the device to
 * the caller's memory, which sol_weights_new got. If an operation has failed, that stays as it is. */
SOL_API SOL_CHECKED enum sol_status sol_weights_sync(struct sol_weights *weights,
                                                     struct sol_queue *queue);

#ifdef __cplusplus
}
#endif
#endif

/*
 * SOL, queues: memory and calls on a device whose memory the host cannot read.
 *
 *   sol_queue_new -> sol_alloc, sol_copy, sol_program_enqueue, .. -> sol_queue_sync -> sol_queue_free
 *
 * A queue computes its operations in the order in which they were added, and the functions that add one return at once: none of them
 * waits for the device. Operations of two queues are not ordered. An error of an operation is found by sol_queue_sync; from then on
 * the queue refuses further work with the same message. On the host's own devices ("x86", "ref") an operation is done when its function
 * returns.
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
/* Lets later operations of the queue wait for those that `other`, a queue of the same device, has so far. It does not wait itself. */
SOL_API SOL_CHECKED enum sol_status sol_queue_wait(struct sol_queue *queue,
                                                   struct sol_queue *other);
/* Waits for all operations and frees the queue, but no memory that was allocated. NULL is fine. */
SOL_API void sol_queue_free(struct sol_queue *queue);

/* Memory of `size` bytes, aligned to 64, of any content. Other queues may use it after a sol_queue_wait or
 * sol_queue_sync. ENOMEM: the device has no
 * room. */
SOL_API SOL_CHECKED enum sol_status sol_alloc(struct sol_queue *queue, size_t size, sol_ptr *out);
/* Frees it behind all operations of the queue so far. EINVAL if no allocation begins there; 0 is fine. */
SOL_API SOL_CHECKED enum sol_status sol_free(struct sol_queue *queue, sol_ptr at);
/* Copies. The host's memory may not be changed or freed, or not be read, before the next sol_queue_sync. EINVAL if the device's
 * memory from there on does not have `size` bytes. */
SOL_API SOL_CHECKED enum sol_status sol_copy_to_device(struct sol_queue *queue, sol_ptr to,
                                                       const void *from, size_t size);
SOL_API SOL_CHECKED enum sol_status sol_copy_to_host(struct sol_queue *queue, void *to,
                                                     sol_ptr from, size_t size);
SOL_API SOL_CHECKED enum sol_status sol_copy_on_device(struct sol_queue *queue, sol_ptr to,
                                                       sol_ptr from, size_t size);

/* Adds a run of the program, as sol_program_run, with inputs and outputs in the device's memory. The program and the weights are kept
 * until it is done. EINVAL if the program is of another device, or an input or output is not in the device's memory. */
SOL_API SOL_CHECKED enum sol_status sol_program_enqueue(
    const struct sol_program *program, struct sol_weights *weights, struct sol_queue *queue,
    const int64_t *symbols, const sol_ptr *inputs, const sol_ptr *outputs);

#ifdef __cplusplus
}
#endif
#endif

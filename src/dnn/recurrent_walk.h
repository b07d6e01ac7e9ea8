/* Steps of time, one after the other, on all threads: for recurrent layers (recurrent.c) and their gradients (recurrent_grad.c). */
#ifndef SOL_RECURRENT_WALK_H
#define SOL_RECURRENT_WALK_H

#include <stdint.h>

/* Computes task `task` of step number `step`. It reads what tasks of earlier steps have written, and is independent of tasks of its own
 * step. */
typedef void dnn_recurrent_task(void *user, int64_t step, int64_t task);

/* Computes n_tasks tasks of each of n_steps steps. `work`: the multiply-adds of a step. */
void dnn_recurrent_walk(int64_t n_steps, int64_t n_tasks, int64_t work, dnn_recurrent_task *task,
                        void *user);

#endif

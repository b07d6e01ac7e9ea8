/*
 * Fork-safe locks, for data that several threads change and that a forked child uses, too.
 *
 * Invariant: while a process forks, no other thread holds any of these locks. So in the child all locks are free, and the data
 * that they guard is consistent. A fork waits until all locks are free. So hold a lock only briefly, and do not wait for a
 * thread that may take a lock meanwhile. A thread may take a second lock while it holds one. A fork by a thread that
 * itself holds a lock does not wait.
 */
#ifndef SOL_LOCK_H
#define SOL_LOCK_H

#include <pthread.h>
#include <stdbool.h>

struct lock {
    pthread_mutex_t mutex;
};
#define LOCK_INITIALIZER {PTHREAD_MUTEX_INITIALIZER}

void lock_init(struct lock *lock);
void lock_fini(struct lock *lock);
void lock_acquire(struct lock *lock);
void lock_release(struct lock *lock);
/* For polling: releases the lock for 0.1 ms and takes it again, so that other threads can change
 * what it guards. The thread must hold no other lock. */
void lock_pause(struct lock *lock);
/* For work that is done once, outside of the lock, while other threads that need it wait. `*state`, which the lock guards, is 1 once it
 * has been done, and is 0 first. lock_begin: true: this thread has to do it, and to call lock_end; false: it has been done. A child of a
 * process that was forked meanwhile begins anew. */
bool lock_begin(struct lock *lock, int *state);
void lock_end(struct lock *lock, int *state, bool is_done);
/* A number, from 1, that each fork increments in the child: it differs from the number of each
 * ancestor process. */
int lock_process(void);

#endif

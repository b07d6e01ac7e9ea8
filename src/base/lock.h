/*
 * Fork-safe locks, for data that several threads change and that a forked child needs, too.
 *
 * While a process forks, nobody holds any of these locks, so in the child all are free and what they guard is whole. For that a
 * fork waits: a lock is held briefly, and never while its holder waits for a thread that may take one. A thread may take a second
 * lock while it holds one. A fork by a thread that itself holds one does not wait.
 */
#ifndef SOL_LOCK_H
#define SOL_LOCK_H

#include <pthread.h>

struct lock {
    pthread_mutex_t mutex;
};
#define LOCK_INITIALIZER {PTHREAD_MUTEX_INITIALIZER}

void lock_init(struct lock *lock);
void lock_fini(struct lock *lock);
void lock_acquire(struct lock *lock);
void lock_release(struct lock *lock);
/* Releases the only lock that this thread holds for a moment, for polling: meanwhile others may
 * change what it guards. */
void lock_pause(struct lock *lock);
/* The number of this process in its chain of forks, from 1: it differs from that of every
 * ancestor. */
int lock_process(void);

#endif

/*
 * Locks that a fork waits for: for what several threads change, and a child of a fork needs, too.
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
void lock_take(struct lock *lock);
void lock_release(struct lock *lock);
/* Lets the only lock that this thread holds go for a moment: for whoever waits for what others do under it, so seldom that looking
 * again is good enough. */
void lock_pause(struct lock *lock);
/* This process's number in the line of forks that it comes from, from 1: other than that of all before. */
int lock_process(void);

#endif

/*
 * One gate for all locks: threads that hold some are inside, and a fork waits until everybody has left.
 *
 * A thread enters with its first lock and leaves with its last. Once inside it is not stopped by a fork that waits, so it comes to
 * its second lock, whose holder is inside as well. The gate prefers forks: with many callers it would never be empty otherwise.
 */
#include "base/lock.h"

#include <time.h>

#ifdef PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP
#define GATE PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP
#else
#define GATE PTHREAD_RWLOCK_INITIALIZER
#endif

static pthread_rwlock_t gate = GATE;
static _Thread_local int n_held;

void lock_init(struct lock *lock) { pthread_mutex_init(&lock->mutex, NULL); }

void lock_fini(struct lock *lock) { pthread_mutex_destroy(&lock->mutex); }

void lock_acquire(struct lock *lock) {
    if (!n_held++) pthread_rwlock_rdlock(&gate);
    pthread_mutex_lock(&lock->mutex);
}

void lock_release(struct lock *lock) {
    pthread_mutex_unlock(&lock->mutex);
    if (!--n_held) pthread_rwlock_unlock(&gate);
}

void lock_pause(struct lock *lock) {
    lock_release(lock);
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    lock_acquire(lock);
}

/* ---- Forks ---- */

static int process = 1;

int lock_process(void) { return process; }

/* A holder who forks would wait for itself. */
static void before_fork(void) {
    if (!n_held) pthread_rwlock_wrlock(&gate);
}

static void after_fork(void) {
    if (!n_held) pthread_rwlock_unlock(&gate);
}

/* The gate itself is made anew: it may know of threads that waited in front of it, and there are none. */
static void after_fork_in_child(void) {
    const pthread_rwlock_t fresh = GATE;
    if (!n_held) gate = fresh;
    process++;
}

/* When the library is loaded, so before any lock is taken. It fails only when not even then there is memory. */
__attribute__((constructor)) static void watch_forks(void) {
    (void)pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

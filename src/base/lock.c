/*
 * A readers-writer lock, the gate, makes the locks fork-safe: threads that hold locks are its readers, a fork is its writer.
 *
 * A thread takes the gate with its first lock and releases it with its last. It does not take the gate again for a
 * second lock, so a waiting fork cannot block it there: no deadlock. The gate prefers writers; otherwise a fork could wait
 * forever with many threads that take locks.
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

/* A thread that holds a lock does not take the gate, as it would wait for itself. */
static void before_fork(void) {
    if (!n_held) pthread_rwlock_wrlock(&gate);
}

static void after_fork(void) {
    if (!n_held) pthread_rwlock_unlock(&gate);
}

/* Resets the gate: it may count waiting threads, which do not exist in the child. */
static void after_fork_in_child(void) {
    const pthread_rwlock_t fresh = GATE;
    if (!n_held) gate = fresh;
    process++;
}

/* While a thread does the work, the state is -1 - the number of its process. */
bool lock_begin(struct lock *lock, int *state) {
    const int busy = -1 - lock_process();
    lock_acquire(lock);
    while (*state == busy) lock_pause(lock);
    const bool is_mine = *state != 1;
    if (is_mine) *state = busy;
    lock_release(lock);
    return is_mine;
}

void lock_end(struct lock *lock, int *state, bool is_done) {
    lock_acquire(lock);
    *state = is_done;
    lock_release(lock);
}

/* Runs when the library is loaded, before any lock is taken. Fails only if there is no memory. */
__attribute__((constructor)) static void watch_forks(void) {
    (void)pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

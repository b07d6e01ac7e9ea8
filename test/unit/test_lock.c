/* Locks and forks: after a fork at any time, all locks are free in the child and the data that they guard is consistent. */
#include "base/base.h"
#include "base/lock.h"
#include "check.h"
#include "children.h"

#define FORKS 60

/* `outer` guards `begun` and `ended`: they are equal while it is free. Between changing them, a thread acquires and releases `inner`. */
static struct lock outer, inner = LOCK_INITIALIZER;
static volatile long begun, ended, seen;
static atomic_bool stop;

static void change_both(void) {
    lock_acquire(&outer);
    begun = begun + 1;
    lock_acquire(&inner);
    seen = seen + 1;
    lock_release(&inner);
    ended = ended + 1;
    lock_release(&outer);
}

static void *nest(void *unused) {
    while (!atomic_load(&stop)) change_both();
    return unused;
}

static void *look(void *unused) {
    while (!atomic_load(&stop)) {
        lock_acquire(&inner);
        seen = seen + 1;
        lock_release(&inner);
    }
    return unused;
}

static bool is_integer(void) {
    bool whole = begun == ended;
    change_both();
    return whole && begun == ended;
}

static bool forks_again(void) { return is_integer() && child_does(is_integer, 30); }

static void test_forks_among_threads(void) {
    pthread_t threads[4];
    for (int i = 0; i < COUNT(threads); i++)
        REQUIRE(!pthread_create(&threads[i], NULL, i % 2 ? look : nest, NULL));
    int wrong = 0;
    for (int i = 0; i < FORKS; i++) wrong += !child_does(i % 8 ? is_integer : forks_again, 30);
    atomic_store(&stop, true);
    for (int i = 0; i < COUNT(threads); i++) pthread_join(threads[i], NULL);
    CHECK(wrong == 0 && is_integer());
}

/* A thread that holds a lock while it forks does not wait for itself. The child still holds the lock. */
static bool releases(void) {
    lock_release(&outer);
    return is_integer();
}

static void test_fork_by_a_holder(void) {
    lock_acquire(&outer);
    CHECK(child_does(releases, 30));
    lock_release(&outer);
    CHECK(is_integer() && child_does(is_integer, 30));
}

int main(void) {
    lock_init(&outer);
    if (!check_cannot_fork()) test_forks_among_threads();
    test_fork_by_a_holder();
    lock_fini(&outer);
    return check_done();
}

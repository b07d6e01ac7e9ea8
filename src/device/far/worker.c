/*
 * The worker: the process that is a far device. It has the device's memory and code, and computes stream 0.
 *
 *   main:    answers the host's questions over the socket (map memory, load a module), until the host ends
 *   execute: a thread that takes records of ring 0; kernels run on it and on `help` threads
 *
 * The file is no part of SOL's library: process.c has it and shared.h as a text, compiles it at the first use, and starts it. It
 * has only the descriptors of shared.h, and no memory of the host.
 *
 * Invariants: `running` names the command that is computed, so that the host can say what killed the process. The process ends
 * with the host: the socket closes, or the host's process ends while a child of it still has the socket.
 */
#ifndef SOL_FAR_SHARED_H
#include "device/far/shared.h"
#endif

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define CHUNKS_PER_THREAD 16 /* enough to balance the load, few enough for the counter to cost little */
#define CHUNK_BITS 32        /* of `next`; above them is the number of the job */

typedef void kernel_function(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin,
                             int64_t end);

struct job {
    kernel_function *kernel;
    void *const *ptr;
    const int64_t *arg;
    int64_t n_tasks, n_chunks;
    size_t scratch;
};

/* A loaded module. Its descriptor stays open: the loader knows modules by the path /proc/self/fd/N, which must be unique. */
struct module {
    struct module *next;
    uint64_t code;
    void *object;
    int fd;
};

static struct far_shared *shared;
static pthread_mutex_t modules_lock = PTHREAD_MUTEX_INITIALIZER;
static struct module *modules;
static int64_t n_kernels;

/* The job, and the number of its next chunk. A thread copies the job, then takes a chunk: if that succeeds, the number of the job
 * has not changed, and the job is not done; so the copy is whole. */
static struct job job;
static _Alignas(FAR_LINE) _Atomic uint64_t next_chunk;
static _Atomic uint64_t job_number;
static _Atomic uint32_t helpers_sleep;
static _Alignas(FAR_LINE) _Atomic uint64_t chunks_done;
static _Atomic uint32_t out_of_memory;

/* ---- Errors ---- */

/* The first error of the device: the host's functions return it. */
static void report(const char *name, const char *what) {
    if (!far_may_fail(shared)) return;
    (void)snprintf(shared->message, sizeof shared->message, "%s: %s", name, what);
    atomic_store(&shared->failed, 2);
}

/* ---- Kernels ---- */

/* The thread's memory for kernels, at least `size` bytes; NULL: out of memory. */
static char *grow_scratch(size_t size) {
    static _Thread_local char *memory;
    static _Thread_local size_t room;
    if (size <= room && memory) return memory;
    free(memory);
    room = size < 4096 ? 4096 : (size + 4095) / 4096 * 4096;
    memory = aligned_alloc(FAR_LINE, room);
    if (!memory) room = 0;
    return memory;
}

static void run_chunk(const struct job *j, int64_t i) {
    char *scratch = grow_scratch(j->scratch);
    /* Without an overflow: the quotient of n_tasks and n_chunks, and the remainder spread over the first chunks. */
    int64_t size = j->n_tasks / j->n_chunks, more = j->n_tasks % j->n_chunks;
    int64_t begin = i * size + (i < more ? i : more);
    if (scratch) j->kernel(j->ptr, j->arg, scratch, begin, begin + size + (i < more));
    else atomic_store(&out_of_memory, 1);
    atomic_fetch_add(&chunks_done, 1);
}

/* Takes chunks of job `number` until there are none. */
static void take_chunks(uint64_t number) {
    uint64_t next = atomic_load(&next_chunk);
    while (next >> CHUNK_BITS == (uint32_t)number) {
        struct job j = job;
        int64_t i = (int64_t)(uint32_t)next;
        if (i >= j.n_chunks) return;
        if (!atomic_compare_exchange_weak(&next_chunk, &next, next + 1)) continue;
        run_chunk(&j, i);
        next = atomic_load(&next_chunk);
    }
}

static void *help(void *unused) {
    (void)unused;
    for (uint64_t seen = 0;; seen = atomic_load(&job_number)) {
        while (!far_await(&job_number, &helpers_sleep, seen + 1, 0)) continue;
        take_chunks(atomic_load(&job_number));
    }
    return NULL;
}

/* The last chunks may be with threads that the system has taken off their processors: spins, as kernels are short, then yields. */
static void await_chunks(int64_t n) {
    while (!far_spin(&chunks_done, (uint64_t)n)) sched_yield();
}

/* The job is written while `next_chunk` has its number and no chunk: no helper knows this number yet, and those that still look for
 * chunks of the job before fail to take one. */
static void run_job(const struct job *j) {
    uint64_t number = atomic_load(&job_number) + 1, first = number << CHUNK_BITS;
    atomic_store(&next_chunk, first | UINT32_MAX);
    job = *j;
    atomic_store(&chunks_done, 0);
    atomic_store(&next_chunk, first);
    atomic_store(&job_number, number);
    if (j->n_chunks > 1 && atomic_load(&helpers_sleep)) far_wake(&job_number);
    take_chunks(number);
    await_chunks(j->n_chunks);
}

static void compute_tasks(const struct far_record *record) {
    int threads = shared->settings.threads;
    int64_t most = threads == 1 ? 1 : (int64_t)threads * CHUNKS_PER_THREAD;
    struct job j = {.ptr = (void *const *)(uintptr_t)far_pointers(record),
                    .arg = far_numbers(record),
                    .n_tasks = record->n_tasks,
                    .n_chunks = record->n_tasks < most ? record->n_tasks : most,
                    .scratch = record->scratch};
    memcpy(&j.kernel, &record->code, sizeof j.kernel);
    run_job(&j);
    if (atomic_load(&out_of_memory)) report(far_name(record), "out of memory for scratch");
}

static void run_kernel(const struct far_record *record) {
    n_kernels++;
    if (n_kernels == shared->settings.die) kill(getpid(), SIGKILL);
    if (n_kernels == shared->settings.fail_kernel)
        report(far_name(record), "SOL_FAR lets this kernel fail");
    else if (record->n_tasks > 0) compute_tasks(record);
}

/* ---- Modules ---- */

static const char *open_module(struct module *module, const char *symbol) {
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", module->fd);
    module->object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module->object) return dlerror();
    void *address = dlsym(module->object, symbol);
    module->code = (uint64_t)(uintptr_t)address;
    return address ? NULL : dlerror();
}

static void close_module(struct module *module) {
    if (module->object) dlclose(module->object);
    close(module->fd);
    free(module);
}

static void load(struct far_message *message, int fd) {
    struct module *module = calloc(1, sizeof *module);
    const char *error = "out of memory";
    if (module) {
        module->fd = fd;
        error = open_module(module, message->text);
    }
    message->is_error = error != NULL;
    if (error) {
        (void)snprintf(message->text, sizeof message->text, "%s", error);
        if (module) close_module(module);
        return;
    }
    message->address = module->code;
    pthread_mutex_lock(&modules_lock);
    module->next = modules;
    modules = module;
    pthread_mutex_unlock(&modules_lock);
}

static void unload(uint64_t code) {
    pthread_mutex_lock(&modules_lock);
    struct module **at = &modules;
    while (*at && (*at)->code != code) at = &(*at)->next;
    struct module *module = *at;
    if (module) *at = module->next;
    pthread_mutex_unlock(&modules_lock);
    if (module) close_module(module);
}

/* ---- Stream 0 ---- */

static void *address_of(uint64_t ptr) { return (void *)(uintptr_t)ptr; }

static void await_event(const int64_t *arg) {
    struct far_ring *ring = &shared->ring[arg[0]];
    while (!far_await(&ring->done, &ring->waiting, (uint64_t)arg[1], 0)) continue;
}

/* Moves pieces between one place, where they lie one behind the other, and their own places. */
static void move_pieces(const struct far_record *record) {
    const uint64_t *ptr = far_pointers(record);
    const int64_t *size = far_numbers(record);
    char *all = address_of(ptr[0]);
    for (int i = 0; i < record->n_arg; all += size[i++]) {
        void *piece = address_of(ptr[i + 1]);
        if (record->kind == FAR_SCATTER) memcpy(piece, all, (size_t)size[i]);
        else memcpy(all, piece, (size_t)size[i]);
    }
}

static void run(const struct far_record *record) {
    const struct far_settings *settings = &shared->settings;
    const int64_t *arg = far_numbers(record);
    double start = far_now(), s = settings->latency_s;
    switch (record->kind) {
    case FAR_KERNEL:
        far_pay(start, s); /* then the kernel */
        run_kernel(record);
        break;
    case FAR_FILL:
        memset(address_of(far_pointers(record)[0]), (int)arg[0], (size_t)arg[1]);
        far_pay(start, s);
        break;
    case FAR_SCATTER:
    case FAR_GATHER:
        move_pieces(record);
        far_pay(start, s);
        break;
    case FAR_ON_DEVICE:
        memmove(address_of(record->code), address_of(record->argument), (size_t)record->n_tasks);
        far_pay(start, s + (double)record->n_tasks / settings->bandwidth);
        break;
    case FAR_WAIT: await_event(arg); return; /* not traced: nothing is computed */
    case FAR_UNLOAD: unload(record->code); return;
    default: break;
    }
    far_add_trace(shared, 0, far_name(record), start);
}

/* After an error nothing is computed, but all events are reached, so that nobody waits forever. */
static void *execute(void *unused) {
    (void)unused;
    for (;;) {
        const struct far_record *record = far_next(&shared->ring[0], 0);
        if (!record) continue;
        if (!atomic_load(&shared->failed)) {
            (void)snprintf(shared->running, sizeof shared->running, "%s", far_name(record));
            run(record);
            shared->running[0] = 0;
        }
        far_finish(&shared->ring[0], record);
    }
    return NULL;
}

/* ---- The socket ---- */

/* Reads a message, and the descriptor that came with it (-1: none). False: the host has ended. */
static bool receive(struct far_message *message, int *fd) {
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {message, sizeof *message};
    struct msghdr all = {.msg_iov = &part,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof control};
    ssize_t n = recvmsg(FAR_FD_SOCKET, &all, MSG_CMSG_CLOEXEC);
    struct cmsghdr *head = CMSG_FIRSTHDR(&all);
    *fd = -1;
    if (n != (ssize_t)sizeof *message) return false;
    if (head && head->cmsg_type == SCM_RIGHTS) memcpy(fd, CMSG_DATA(head), sizeof *fd);
    return true;
}

static bool start_threads(void) {
    pthread_t thread;
    for (int i = 1; i < shared->settings.threads; i++)
        if (pthread_create(&thread, NULL, help, NULL)) break; /* fewer threads also do */
    return !pthread_create(&thread, NULL, execute, NULL);
}

/* The device's memory has the same addresses as the range that the host has reserved, in which nothing can be read there. */
static void map_memory(struct far_message *message) {
    void *wanted = address_of(message->address);
    void *got = mmap(wanted, shared->settings.memory, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, FAR_FD_MEMORY, 0);
    message->is_error = got != wanted;
    if (got == wanted) {
        close(FAR_FD_MEMORY);
        if (!start_threads()) _exit(2);
    } else if (got != MAP_FAILED) {
        munmap(got, shared->settings.memory); /* an old kernel takes the flag for a hint */
    }
}

static void answer(struct far_message *message, int fd) {
    message->text[sizeof message->text - 1] = 0;
    if (message->question == FAR_MAP) map_memory(message);
    else load(message, fd);
    (void)!send(FAR_FD_SOCKET, message, sizeof *message, MSG_NOSIGNAL);
}

/* If addresses are not random, as in a debugger, the worker would have its libraries where the host has them, and an address of the
 * host could be valid here: starts again with random ones. */
static void leave_fixed_addresses(char **argv) {
    int now = personality(0xffffffff);
    if (now == -1 || !(now & ADDR_NO_RANDOMIZE)) return;
    if (personality((unsigned long)now & ~(unsigned long)ADDR_NO_RANDOMIZE) != -1)
        fexecve(FAR_FD_PROGRAM, argv, environ);
}

int main(int argc, char **argv) {
    (void)argc;
    leave_fixed_addresses(argv);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}); /* faults are reported by the host */
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max; /* a descriptor per module */
        setrlimit(RLIMIT_NOFILE, &files);
    }
    close(FAR_FD_PROGRAM);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, FAR_FD_SHARED, 0);
    if (shared == MAP_FAILED) return 1;
    close(FAR_FD_SHARED);
    int host = (int)syscall(SYS_pidfd_open, shared->settings.host, 0); /* -1: poll ignores it */
    if (getppid() != shared->settings.host) return 0;
    struct pollfd ends[2] = {{.fd = FAR_FD_SOCKET, .events = POLLIN},
                             {.fd = host, .events = POLLIN}};
    struct far_message message;
    for (int fd; poll(ends, 2, -1) > 0 && !ends[1].revents && receive(&message, &fd);)
        answer(&message, fd);
    _exit(0);
}

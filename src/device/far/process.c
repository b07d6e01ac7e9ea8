/*
 * The worker's process: how it is compiled and started, asked, and how its end is noticed.
 *
 *   text in this library -> jit_build -> an open file -> posix_spawn -> worker.c
 *
 * The program is executed by its descriptor, so it does not matter whether the cache still has it. Nothing of the host's memory
 * comes along, and of its descriptors only those that shared.h names.
 *
 * A thread, the watcher, sleeps until the worker ends, and breaks the device with a message that names the command and the signal.
 * It leaves the zombie: so the process id stays valid until far_stop has reaped it.
 *
 * Invariants: only this process id is ever waited for or killed; after far_start failed, far_stop frees what there is.
 */
#include "device/far/parts.h"
#include "jit/jit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define HIGH 16         /* our descriptors are at least this: above all that the worker gets */
#define MAP_TRIES 16    /* ranges of addresses; that the worker uses one is rare */
#define BUSY_TRIES 200  /* of starting the program, each after 1 ms */
#define ANSWER_TRIES 20000 /* of 0.1 ms: until the watcher has noticed the worker's end */

_Static_assert(FAR_FD_END <= HIGH,
               "a descriptor of the host would be overwritten while it is passed");

EMBED_TEXT(far_worker_text,
           EMBED_FILE("src/device/far/shared.h") EMBED_FILE("src/device/far/worker.c"));

/* ---- The program ---- */

/* Is it a program? The cache also has files that say that the compiler did not end. */
static bool is_program(int fd) {
    char magic[4];
    return pread(fd, magic, sizeof magic, 0) == sizeof magic && !memcmp(magic, "\177ELF", 4);
}

/* A descriptor, which is never 0, as a pointer. */
static void *open_program(const char *path) {
    int low = open(path, O_RDONLY | O_CLOEXEC);
    int fd = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, HIGH);
    if (low >= 0) close(low);
    if (fd >= 0 && is_program(fd)) return (void *)(intptr_t)fd;
    (void)fail(SOL_ETOOL, "%s: %s", path, fd < 0 ? strerror(errno) : "not a program");
    if (fd >= 0) close(fd);
    return NULL;
}

static void *find_program(void *object, const char *symbol) {
    (void)symbol;
    return object;
}

static void close_program(void *object) { close((int)(intptr_t)object); }

static const struct jit_loader programs = {
    .open = open_program, .find = find_program, .close = close_program};

/* ---- Starting ---- */

/* The worker leaves the host's terminal and process group: a SIGINT of the user is the host's. Its stderr stays the host's, for kernels
 * that print. Returns 0 or an error number. */
static int spawn(const int *fds, int *pid) {
    char path[64];
    int all[FAR_FD_END] = {OS_NULL, OS_NULL, OS_SAME};
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", FAR_FD_PROGRAM);
    memcpy(all + FAR_FD_SOCKET, fds, sizeof *fds * (FAR_FD_END - FAR_FD_SOCKET));
    return os_start(path, (const char *const[]){"sol-far", NULL}, all, FAR_FD_END, true, pid);
}

/* Tries again while the file is busy: another thread's fork may still have the descriptor by which it was written. */
static enum sol_status start_program(struct far *far, const int *fds) {
    int error = ETXTBSY;
    for (int i = 0; i < BUSY_TRIES && error == ETXTBSY; i++) {
        if (i) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        error = spawn(fds, &far->worker);
    }
    if (!error) return SOL_OK;
    far->worker = 0;
    return fail(SOL_EDEVICE, "far %d: cannot start its process: %s", far->number, strerror(error));
}

/* ---- Its end ---- */

/* Says how the worker ended. */
static void describe_end(const siginfo_t *info, bool known, char *out, size_t size) {
    const char *how = "the device's process";
    if (!known)
        (void)snprintf(out, size, "%s ended; this process ignores SIGCHLD, so nobody knows why",
                       how);
    else if (info->si_code == CLD_EXITED)
        (void)snprintf(out, size, "%s exited with code %d", how, info->si_status);
    else
        (void)snprintf(out, size, "%s was ended by signal %d (%s)", how, info->si_status,
                       strsignal(info->si_status));
}

static void *watch(void *argument) {
    struct far *far = argument;
    siginfo_t info = {0};
    int error;
    do error = waitid(P_PID, (id_t)far->worker, &info, WEXITED | WNOWAIT);
    while (error && errno == EINTR);
    char end[160], running[FAR_NAME];
    describe_end(&info, !error, end, sizeof end);
    (void)snprintf(running, sizeof running, "%.*s", FAR_NAME - 1, far->shared->running);
    far_break(far, "%s%s%s", running, *running ? ": " : "", end);
    return NULL;
}

/* The thread blocks all signals: the host's handlers run on the host's threads. */
static enum sol_status start_watcher(struct far *far) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    far->has_watcher = !pthread_create(&far->watcher, NULL, watch, far);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!far->has_watcher) return fail(SOL_EDEVICE, "far %d: cannot start a thread", far->number);
    pthread_setname_np(far->watcher, "sol-far-watch");
    return SOL_OK;
}

/* ---- Questions ---- */

/* One thread at a time uses the socket. A lock must not be held for so long; so the thread sets a flag. */
static void take_socket(struct far *far) {
    lock_acquire(&far->lock);
    while (far->is_asking) lock_pause(&far->lock);
    far->is_asking = true;
    lock_release(&far->lock);
}

static void leave_socket(struct far *far) {
    lock_acquire(&far->lock);
    far->is_asking = false;
    lock_release(&far->lock);
}

static bool send_question(int socket, struct far_message *message, int fd) {
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {message, sizeof *message};
    struct msghdr all = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        all.msg_control = &control;
        all.msg_controllen = sizeof control;
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    }
    ssize_t n;
    do n = sendmsg(socket, &all, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof *message;
}

static bool receive_answer(int socket, struct far_message *message) {
    ssize_t n;
    do n = recv(socket, message, sizeof *message, 0);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof *message;
}

enum sol_status far_ask(struct far *far, struct far_message *message, int fd) {
    take_socket(far);
    bool good = send_question(far->socket, message, fd) && receive_answer(far->socket, message);
    leave_socket(far);
    if (good) return SOL_OK;
    for (int i = 0; i < ANSWER_TRIES; i++) {
        TRY(far_check(far));
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    return fail(SOL_EDEVICE, "far %d: the device's process does not answer", far->number);
}

/* ---- Memory ---- */

static int high_memory_file(const char *name, size_t size) {
    int low = memfd_create(name, MFD_CLOEXEC);
    int fd = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, HIGH);
    if (low >= 0) close(low);
    if (fd < 0 || !ftruncate(fd, (off_t)size)) return fd;
    close(fd);
    return -1;
}

static void *reserve(size_t size) {
    return mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

/* Finds a range of addresses that is free in both processes. A range that the worker uses stays reserved until another is found, as
 * the system would give it again. */
static enum sol_status map_memory(struct far *far) {
    char *tried[MAP_TRIES];
    enum sol_status status = SOL_OK;
    int n = 0;
    while (n < MAP_TRIES && !far->base) {
        tried[n] = reserve(far->size);
        if (tried[n] == MAP_FAILED) break;
        struct far_message message = {.question = FAR_MAP,
                                      .address = (uint64_t)(uintptr_t)tried[n]};
        n++;
        if ((status = far_ask(far, &message, -1))) break;
        if (!message.is_error) far->base = tried[--n];
    }
    while (n--) munmap(tried[n], far->size);
    if (!status && !far->base) status = fail(SOL_EDEVICE, "far %d: no free addresses", far->number);
    return status;
}

/* ---- All ---- */

/* Makes what the two processes share. `ends`: the descriptors of the worker, to be closed by the caller; -1: none. */
static enum sol_status make_shared(struct far *far, const struct far_settings *settings,
                                   int ends[FAR_FD_END - FAR_FD_SOCKET]) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        return fail(SOL_EDEVICE, "far %d: %s", far->number, strerror(errno));
    far->socket = pair[0];
    ends[0] = fcntl(pair[1], F_DUPFD_CLOEXEC, HIGH);
    close(pair[1]);
    ends[1] = high_memory_file("sol-far-shared", sizeof *far->shared);
    far->memory = high_memory_file("sol-far-memory", far->size);
    ends[2] = far->memory;
    if (ends[0] < 0 || ends[1] < 0 || ends[2] < 0)
        return fail(SOL_EDEVICE, "far %d: cannot make its memory: %s", far->number,
                    strerror(errno));
    void *shared = mmap(NULL, sizeof *far->shared, PROT_READ | PROT_WRITE, MAP_SHARED, ends[1], 0);
    if (shared == MAP_FAILED) return fail(SOL_EDEVICE, "far %d: %s", far->number, strerror(errno));
    far->shared = shared;
    far->shared->settings = *settings;
    far->shared->settings.host = getpid();
    return SOL_OK;
}

static enum sol_status start_all(struct far *far, const struct far_settings *settings, int *ends) {
    TRY(make_shared(far, settings, ends));
    struct jit_module *module = NULL;
    TRY(jit_build(&programs, "-O2 -pthread -D_GNU_SOURCE -std=gnu11 -Wl,--no-as-needed -ldl",
                  (const char *const[]){far_worker_text}, 1, false, &module, NULL));
    ends[FAR_FD_PROGRAM - FAR_FD_SOCKET] = (int)(intptr_t)jit_find(module, "main");
    enum sol_status status = start_program(far, ends);
    jit_release(module);
    return status;
}

enum sol_status far_start(struct far *far, const struct far_settings *settings) {
    int ends[FAR_FD_END - FAR_FD_SOCKET] = {-1, -1, -1, -1};
    enum sol_status status = start_all(far, settings, ends);
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0) close(ends[i]);
    if (!status) status = start_watcher(far);
    return status ? status : map_memory(far);
}

static void end_worker(struct far *far) {
    if (!far->worker) return;
    kill(far->worker, SIGKILL);
    if (far->has_watcher) pthread_join(far->watcher, NULL);
    while (waitpid(far->worker, NULL, 0) < 0 && errno == EINTR) continue;
    far->has_watcher = false;
    far->worker = 0;
}

void far_stop(struct far *far) {
    if (far->process == lock_process()) end_worker(far);
    else far->has_watcher = false;
}

void far_free(struct far *far) {
    if (far->base) munmap(far->base, far->size);
    if (far->shared) munmap(far->shared, sizeof *far->shared);
    if (far->memory >= 0) close(far->memory);
    if (far->socket >= 0) close(far->socket);
}

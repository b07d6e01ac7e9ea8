/*
 * The operating system: time, cores, files and child processes.
 *
 * os_spawn uses posix_spawn, as the host process may be large and have threads: no code of SOL runs
 * between fork and exec, and no pages are copied. The child leads a process group, so that
 * its own children (cc1, as, ld) are killed with it.
 *
 * Invariant: every descriptor is opened close-on-exec and closed on every path.
 */
#include "base/base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OUTPUT_LIMIT ((size_t)64 << 10)
#define LARGEST_CPU_SET (1 << 20)
#define FIRST_ROOM ((size_t)64 << 10)    /* first buffer of a stream, whose size is unknown */
#define LARGEST_STREAM ((size_t)2 << 30) /* protobuf's limit of a message */

/* Polling intervals. Normally a child's end is noticed at once, as its output ends. Polling is for a child whose
 * output another process still holds open (LOOK_MS), or that closed its output early (LOOK_CLOSED_MS). */
#define LOOK_MS 20
#define LOOK_CLOSED_MS 1

extern char **environ;

double os_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int os_cores(void) {
    /* The kernel refuses sets that are smaller than its own: doubles the size until it accepts. */
    for (int n = CPU_SETSIZE; n <= LARGEST_CPU_SET; n *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)n);
        if (!set) break;
        size_t size = CPU_ALLOC_SIZE((size_t)n);
        int error = sched_getaffinity(0, size, set) ? errno : 0;
        int cores = error ? 0 : CPU_COUNT_S(size, set);
        CPU_FREE(set);
        if (cores > 0) return cores;
        if (error != EINVAL) break;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

/* Four per core, at least 16: allows experiments with more threads than cores. */
int os_max_threads(void) { return os_cores() > 4 ? 4 * os_cores() : 16; }

int os_threads(void) {
    char valid[64];
    (void)snprintf(valid, sizeof valid, "numbers from 1 to %d", os_max_threads());
    return (int)env_number(ENV_SOL_NUM_THREADS, 1, os_max_threads(), valid, os_cores());
}

/* ---- Files ---- */

/* Reads until `size` bytes or the end of the file. Returns the number of bytes, -1 on an error. */
static ssize_t read_all(int fd, char *to, size_t size) {
    size_t done = 0;
    while (done < size) {
        ssize_t n = read(fd, to + done, size - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (!n) break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

static enum sol_status cannot_read(const char *path, const char *why) {
    return fail(SOL_EINVAL, "cannot read %s: %s", path, why);
}

/* Reads to the end of the file. `room` is the first buffer's size, and doubles until a read does not fill the buffer, which
 * shows the end. For a regular file `room` is its size + 1, so one buffer is enough unless the file grows meanwhile. */
static enum sol_status read_rest(int fd, const char *path, size_t room, char **out, size_t *size) {
    const size_t max = room > LARGEST_STREAM ? room : LARGEST_STREAM;
    char *data = NULL;
    for (size_t done = 0; room <= max; room *= 2) {
        char *more = mem_realloc(data, room + 1);
        ssize_t n = more ? read_all(fd, more + done, room - done) : 0;
        if (!more || n < 0) {
            enum sol_status status = more ? cannot_read(path, strerror(errno))
                                          : fail(SOL_ENOMEM, "out of memory: reading %s", path);
            mem_free(more ? more : data);
            return status;
        }
        data = more;
        done += (size_t)n;
        if (done == room) continue;
        data[done] = 0;
        *out = data;
        *size = done;
        return SOL_OK;
    }
    mem_free(data);
    return cannot_read(path, "more than 2 GiB");
}

static enum sol_status read_open(int fd, const char *path, bool is_any, char **out, size_t *size) {
    struct stat file;
    if (fstat(fd, &file)) return cannot_read(path, strerror(errno));
    if (S_ISREG(file.st_mode)) return read_rest(fd, path, (size_t)file.st_size + 1, out, size);
    if (!is_any) return cannot_read(path, "not a regular file");
    return read_rest(fd, path, FIRST_ROOM, out, size);
}

static enum sol_status read_path(const char *path, bool is_any, char **out, size_t *size) {
    /* O_NONBLOCK: opening a FIFO does not wait for a writer; read_open refuses it. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | (is_any ? 0 : O_NONBLOCK));
    if (fd < 0) return cannot_read(path, strerror(errno));
    enum sol_status status = read_open(fd, path, is_any, out, size);
    close(fd);
    return status;
}

enum sol_status os_read(const char *path, char **out, size_t *size) {
    return read_path(path, false, out, size);
}

enum sol_status os_read_any(const char *path, char **out, size_t *size) {
    return read_path(path, true, out, size);
}

/* ---- Child processes ---- */

/* A running child. */
struct child {
    int pid, fd; /* fd: the pipe of its output; -1 once that has ended */
    char *output;
    size_t size, space; /* bytes in output, and what fits (without the NUL) */
};

/* Signal handling is the default, as the host may block or ignore signals. */
static int set_attributes(posix_spawnattr_t *attributes, bool new_session) {
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    sigdelset(&all, SIGKILL);
    sigdelset(&all, SIGSTOP);
    int error = new_session ? 0 : posix_spawnattr_setpgroup(attributes, 0);
    if (!error) error = posix_spawnattr_setsigmask(attributes, &none);
    if (!error) error = posix_spawnattr_setsigdefault(attributes, &all);
    const int group = new_session ? POSIX_SPAWN_SETSID : POSIX_SPAWN_SETPGROUP;
    const short flags = (short)(group | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    return error ? error : posix_spawnattr_setflags(attributes, flags);
}

/* /dev/null is opened after the others have been copied, as it may take the place of one of them. */
static int set_files(posix_spawn_file_actions_t *actions, const int *fds, int n_fds) {
    int error = 0;
    for (int i = 0; i < n_fds && !error; i++)
        if (fds[i] >= 0) error = posix_spawn_file_actions_adddup2(actions, fds[i], i);
    for (int i = 0; i < n_fds && !error; i++)
        if (fds[i] == OS_NULL)
            error = posix_spawn_file_actions_addopen(actions, i, "/dev/null",
                                                     i ? O_WRONLY : O_RDONLY, 0);
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
    /* The host's own descriptors may not be close-on-exec: sockets, locks, GPU handles. */
    if (!error) error = posix_spawn_file_actions_addclosefrom_np(actions, n_fds);
#endif
    return error;
}

int os_start(const char *program, const char *const *argv, const int *fds, int n_fds,
             bool new_session, int *pid) {
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t actions;
    int error = posix_spawnattr_init(&attributes);
    if (error) return error;
    error = posix_spawn_file_actions_init(&actions);
    if (!error) {
        error = set_attributes(&attributes, new_session);
        if (!error) error = set_files(&actions, fds, n_fds);
        /* posix_spawnp does not write to argv; its type lacks const for historical reasons. */
        char *const *plain = (char *const *)(uintptr_t)argv;
        if (!error) error = posix_spawnp(pid, program, &actions, &attributes, plain, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    posix_spawnattr_destroy(&attributes);
    return error;
}

/* Waits at most `wait_ms` for output, and reads it once. False: no output. */
static bool take_output(struct child *child, int wait_ms) {
    struct pollfd event = {.fd = child->fd, .events = POLLIN}; /* fd -1: poll only waits */
    if (poll(&event, 1, wait_ms) <= 0 || child->fd < 0) return false;
    char chunk[4096];
    ssize_t n = read(child->fd, chunk, sizeof chunk);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (n <= 0) {
        close(child->fd);
        child->fd = -1;
        return true;
    }
    size_t keep = child->space - child->size;
    if (keep > (size_t)n) keep = (size_t)n;
    if (keep) memcpy(child->output + child->size, chunk, keep);
    child->size += keep;
    return true;
}

/* Has the child ended? It stays a zombie, so that its process id is not reused yet. */
static bool has_ended(const struct child *child) {
    siginfo_t info = {0};
    int error = waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT);
    return error ? errno != EINTR : info.si_pid == child->pid;
}

static double max_double(double a, double b) { return a > b ? a : b; }

static double seconds_of(struct timeval t) { return (double)t.tv_sec + 1e-6 * (double)t.tv_usec; }

/* Reaps the child. Returns its exit code, 128 + signal, or -2 if the host has reaped it already. */
static int reap(const struct child *child, struct os_run *run) {
    int status;
    struct rusage usage; /* includes the children that it waited for */
    while (wait4(child->pid, &status, 0, &usage) < 0)
        if (errno != EINTR) return -2;
    double used = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
    run->processor_s = max_double(run->processor_s, used);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Processor time, in seconds, of process /proc/NAME and the children that it waited for; 0 if it is not in the group. */
static double process_time(int proc, const char *name, pid_t group) {
    char path[32], text[1024];
    unsigned long ticks[4];
    int its_group = 0, n = snprintf(path, sizeof path, "%.16s/stat", name);
    int fd = n > 0 ? openat(proc, path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t size = fd >= 0 ? read_all(fd, text, sizeof text - 1) : 0;
    if (fd >= 0) close(fd);
    text[size > 0 ? size : 0] = 0;
    const char *at = strrchr(text, ')'); /* end of the name, which may contain any character */
    if (!at || sscanf(at + 1, " %*c %*d %d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %lu %lu",
                      &its_group, &ticks[0], &ticks[1], &ticks[2], &ticks[3]) != 5)
        return 0;
    double all = (double)ticks[0] + (double)ticks[1] + (double)ticks[2] + (double)ticks[3];
    return its_group == group ? all / (double)sysconf(_SC_CLK_TCK) : 0;
}

/* Processor time of all processes of a group, in seconds; -1 without /proc. It is needed because a compiler runs several
 * processes: setrlimit would limit each of them, but not their sum. */
static double group_time(pid_t group) {
    double sum = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && (entry = readdir(proc));)
        if (*entry->d_name >= '1' && *entry->d_name <= '9')
            sum += process_time(dirfd(proc), entry->d_name, group);
    if (proc) closedir(proc);
    return proc ? sum : -1;
}

/* Measures the child's processor time, and returns the time of the next measurement; 0: it is over the limit. As a compiler
 * runs mostly one thread, it cannot reach the limit earlier. Without /proc, wall time counts instead. */
static double next_look(const struct child *child, struct os_run *run, double now) {
    double used = group_time(child->pid);
    double left = used < 0 ? 0 : run->max_processor_s - used;
    run->processor_s = max_double(used, 0);
    return left <= 0 ? 0 : now + max_double(left, 0.01);
}

/* Waits for the child's end and collects its output; kills it at a limit. Returns what reap returns; -1: killed. */
static int attend(struct child *child, struct os_run *run) {
    double deadline = os_now() + run->max_s, look = os_now() + run->max_processor_s;
    while (!has_ended(child)) {
        double now = os_now(), left_ms = 1e3 * (deadline - now);
        if (run->max_processor_s > 0 && now >= look) look = next_look(child, run, now);
        if (left_ms <= 0 || !look) {
            kill(-child->pid, SIGKILL);
            (void)reap(child, run);
            return -1;
        }
        int wait_ms = child->fd < 0 ? LOOK_CLOSED_MS : LOOK_MS;
        (void)take_output(child, left_ms < wait_ms ? (int)left_ms + 1 : wait_ms);
    }
    /* Reads the rest of the pipe, at most 64 KiB: a grandchild may still write. */
    for (size_t n = 0; n < OUTPUT_LIMIT / 4096 + 1; n++)
        if (!take_output(child, 0)) break;
    return reap(child, run);
}

enum sol_status os_spawn(const char *const *argv, struct os_run *run, char *output,
                         size_t output_size) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return fail(SOL_EDEVICE, "cannot start %s: %s", argv[0], strerror(errno));
    struct child child = {.fd = ends[0], .output = output};
    if (output && output_size) child.space = output_size - 1;
    if (child.space > OUTPUT_LIMIT) child.space = OUTPUT_LIMIT;

    int error =
        os_start(argv[0], argv, (const int[]){OS_NULL, ends[1], ends[1]}, 3, false, &child.pid);
    close(ends[1]);
    run->processor_s = 0;
    int code = error ? 0 : attend(&child, run);
    if (child.fd >= 0) close(child.fd);
    if (output && output_size) output[child.size] = 0;
    if (error) return fail(SOL_EDEVICE, "cannot start %s: %s", argv[0], strerror(error));
    if (code == -2)
        return fail(SOL_EDEVICE, "cannot tell how %s ended: this process ignores SIGCHLD", argv[0]);
    run->code = code;
    return SOL_OK;
}

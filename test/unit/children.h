/* Children of a process with threads. */
#ifndef CHILDREN_H
#define CHILDREN_H

#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

/* A child inherits no threads, but may start its own. It initializes locks again, which ThreadSanitizer would report as an error. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "die_after_fork=0:report_mutex_bugs=0"; }

/* Does `work` return true in a child of this process, which ends within `seconds`? */
static inline bool child_does(bool (*work)(void), unsigned seconds) {
    pid_t pid = fork();
    int status = -1;
    if (!pid) {
        alarm(seconds);
        _exit(work() ? 0 : 1);
    }
    return waitpid(pid, &status, 0) == pid && status == 0;
}

#endif

/*
 * Replaces the files of an earlier deployment with the same name by the new ones.
 *
 * Deployed files are recognized by their content. A deployed file is removed, even if there is no new one of its name. A foreign
 * file is never changed; if it has the name of a new file, the deployment fails. Files are exchanged one by one with those of the
 * working folder, which then has the old ones. If an exchange fails, the earlier ones are undone.
 */
#include "deploy/deploy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Names in the working folder; no library can have them, since they contain a dot. */
#define EARLIER "earlier.d"
#define ASIDE "aside.d"
#define LOCK_TRIES 100 /* of 50 ms */

/* ---- Recognizing deployed files ---- */

static bool holds(const char *data, size_t size, const char *mark, size_t n, bool at_begin) {
    if (at_begin) return size >= n && !memcmp(data, mark, n);
    return memmem(data, size, mark, n) != NULL;
}

/* Is it a regular file that begins with the mark, or contains it anywhere, followed by a NUL? */
static bool has_mark(const char *path, const char *mark, bool at_begin) {
    struct stat at;
    bool answer = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return false;
    if (!fstat(fd, &at) && S_ISREG(at.st_mode) && at.st_size > 0) {
        const size_t size = (size_t)at.st_size, n = strlen(mark) + !at_begin;
        void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        answer = data != MAP_FAILED && holds(data, size, mark, n, at_begin);
        if (data != MAP_FAILED) munmap(data, size);
    }
    close(fd);
    return answer;
}

/* `pattern`, the name of a file or a mark, with its @ replaced by the library's name. */
static const char *fill(const struct deployment *d, const char *pattern, char out[DEPLOY_NAME]) {
    const size_t n = strcspn(pattern, "@");
    (void)snprintf(out, DEPLOY_NAME, "%.*s%s%s", (int)n, pattern, pattern[n] ? d->lib : "",
                   pattern[n] ? pattern + n + 1 : "");
    return out;
}

/* ---- A folder of sources ---- */

/* Is it the source or object of a custom layer: "custom_0", with an ending? */
static bool is_custom(const char *name) {
    static const char prefix[] = "custom_";
    if (strncmp(name, prefix, strlen(prefix))) return false;
    name += strlen(prefix);
    const size_t n = strspn(name, "0123456789");
    return n && (!strcmp(name + n, ".c") || !strcmp(name + n, ".o"));
}

/* Is it the name of a file that a deployment of sources writes or build.sh makes, or a folder in such a name? */
static bool is_of_sources(const struct deployment *d, const char *name) {
    static const char *const fixed[] = {"network.c", "kernels.c", "none.c", "weights",    "far",
                                        "build.sh",  "runtime.o", "own.o",  "generated.o"};
    static const char *const named[] = {"@.h", "@.weights", "lib@.so"};
    const size_t n = strlen(name);
    char own[DEPLOY_NAME];
    for (int i = 0; i < COUNT(fixed); i++)
        if (!strcmp(fixed[i], name)) return true;
    if (is_custom(name)) return true;
    for (int i = 0; i < COUNT(named); i++)
        if (!strcmp(fill(d, named[i], own), name)) return true;
    for (const struct deploy_source *s = deploy_sources; s->name; s++)
        if (!strncmp(s->name, name, n) && (!s->name[n] || s->name[n] == '/')) return true;
    return false;
}

/* Is there an entry in the folder `path` that no deployment of sources makes? `path` becomes the path of the first one. The
 * folder of sources is the first `base` characters of it. */
static bool find_foreign(const struct deployment *d, char path[DEPLOY_PATH], size_t base) {
    const size_t end = strlen(path);
    DIR *folder = opendir(path);
    bool found = !folder;
    for (const struct dirent *entry; folder && !found && (entry = readdir(folder));) {
        struct stat at;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        (void)snprintf(path + end, DEPLOY_PATH - end, "/%s", entry->d_name);
        if (lstat(path, &at)) at.st_mode = 0;
        found = !is_of_sources(d, path + base + 1) ||
                (S_ISDIR(at.st_mode) ? find_foreign(d, path, base) : !S_ISREG(at.st_mode));
    }
    if (folder) closedir(folder);
    if (!found) path[end] = 0;
    return found;
}

/* ---- Files of a deployment ---- */

/* All files of deployments, and the marks by which they are recognized; mark NULL: a folder of sources. A library that a user has
 * built from portable C has the first mark but not the second: a new library replaces it, otherwise it stays. */
struct kind {
    const char *pattern, *mark;
    bool at_begin;
    const char *second;
};
static const struct kind kinds[] = {
    {"@.weights", "SOLW", true, NULL},
    {"lib@.so", "@_input_shape", false, "sol_pool_1_run"},
    {"lib@.a", "@_input_shape", false, "sol_pool_1_run"},
    {"@_math.h", DEPLOY_MATH_HEAD, true, NULL},
    {"@.c", DEPLOY_SOURCE_HEAD, true, NULL},
    {"@", NULL, false, NULL},
    {"@.h", DEPLOY_HEADER_HEAD, true, NULL},
};

/* The two paths of a file: in the folder of the result (outside), and in the working folder (inside). was_outside is false for a
 * foreign file, which stays. */
struct exchange {
    const char *outside, *inside;
    bool was_outside, was_inside;
};

/* A folder is a deployed one if its header is. Then it must not contain foreign files. */
static enum sol_status check_folder(const struct deployment *d, const char *path, bool *is_ours) {
    char entry[DEPLOY_PATH], mark[DEPLOY_NAME];
    struct stat at;
    (void)snprintf(entry, sizeof entry, "%s/%s.h", path, d->lib);
    *is_ours = !lstat(path, &at) && S_ISDIR(at.st_mode) &&
               has_mark(entry, fill(d, DEPLOY_HEADER_HEAD, mark), true);
    (void)snprintf(entry, sizeof entry, "%s", path);
    if (*is_ours && find_foreign(d, entry, strlen(path)))
        return fail(
            SOL_EINVAL,
            "%s was not deployed, but lies among the sources of an earlier library: move it "
            "away, or choose another name or folder",
            entry);
    return SOL_OK;
}

static enum sol_status check_one(const struct deployment *d, const struct kind *kind,
                                 struct exchange *e) {
    char mark[DEPLOY_NAME];
    struct stat at;
    bool is_ours;
    if (lstat(e->outside, &at)) return SOL_OK;
    if (kind->mark) is_ours = has_mark(e->outside, fill(d, kind->mark, mark), kind->at_begin);
    else TRY(check_folder(d, e->outside, &is_ours));
    if (is_ours && kind->second && !e->was_inside)
        is_ours = has_mark(e->outside, kind->second, false);
    e->was_outside = is_ours;
    if (is_ours || !e->was_inside) return SOL_OK;
    return fail(SOL_EINVAL,
                "%s is there, but not from deploying %s: move it away, or choose another name or "
                "folder",
                e->outside, d->lib);
}

/* ---- Exchanging ---- */

/* Exchanges both files atomically if the file system can, so that the file always exists; otherwise by three renames. */
static int exchange_both(const struct exchange *e, const char *aside) {
    if (!renameat2(AT_FDCWD, e->inside, AT_FDCWD, e->outside, RENAME_EXCHANGE)) return 0;
    if (errno != EINVAL && errno != ENOSYS) return -1;
    if (rename(e->outside, aside)) return -1;
    const bool is_out = !rename(e->inside, e->outside);
    if (is_out && !rename(aside, e->inside)) return 0;
    const int error = errno;
    if (is_out) (void)rename(e->outside, e->inside);
    (void)rename(aside, e->outside);
    errno = error;
    return -1;
}

/* Exchanges the inside and the outside file, either of which may be absent; `undo` restores the state before. */
static int exchange(const struct exchange *e, bool undo, const char *aside) {
    if (e->was_inside && e->was_outside) return exchange_both(e, aside);
    if (!e->was_inside && !e->was_outside) return 0;
    return e->was_inside != undo ? rename(e->inside, e->outside) : rename(e->outside, e->inside);
}

static enum sol_status exchange_all(const struct exchange *all, const char *aside) {
    for (int i = 0; i < COUNT(kinds); i++) {
        if (!exchange(&all[i], false, aside)) continue;
        enum sol_status status =
            fail(SOL_EDEVICE, "cannot write %s: %s", all[i].outside, strerror(errno));
        while (i-- > 0) (void)exchange(&all[i], true, aside);
        return status;
    }
    return SOL_OK;
}

/* ---- All of it ---- */

/* Locks the folder of the result, so that two deployments do not mix their files. A deployment holds the lock only for a short
 * time, so after 5 s the function gives up and continues without it. */
static int lock_place(const char *place) {
    int fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const struct timespec pause = {.tv_nsec = 50000000};
    for (int i = 0; fd >= 0 && i < LOCK_TRIES; i++) {
        if (!flock(fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK) break;
        nanosleep(&pause, NULL);
    }
    return fd;
}

static void name_exchange(struct deployment *d, const struct kind *kind, struct exchange *e) {
    char name[DEPLOY_NAME];
    (void)fill(d, kind->pattern, name);
    *e = (struct exchange){.outside = arena_printf(d->arena, "%s/%s", d->place, name)};
    for (int i = 0; i < d->files.n; i++) e->was_inside |= !strcmp(d->files.at[i], name);
    e->inside = arena_printf(d->arena, "%s/%s%s", d->work, e->was_inside ? "" : EARLIER "/", name);
}

/* Nothing is allocated while the lock is held, so no jump can leave it locked. */
enum sol_status deploy_replace(struct deployment *d) {
    struct exchange all[COUNT(kinds)];
    for (int i = 0; i < COUNT(kinds); i++) name_exchange(d, &kinds[i], &all[i]);
    const char *earlier = arena_printf(d->arena, "%s/" EARLIER, d->work);
    const char *aside = arena_printf(d->arena, "%s/" ASIDE, d->work);
    enum sol_status status = SOL_OK;
    const int lock = lock_place(d->place);
    for (int i = 0; i < COUNT(kinds) && !status; i++) status = check_one(d, &kinds[i], &all[i]);
    if (!status && mkdir(earlier, 0777))
        status = fail(SOL_EDEVICE, "cannot write %s: %s", earlier, strerror(errno));
    if (!status) status = exchange_all(all, aside);
    if (lock >= 0) close(lock);
    return status;
}

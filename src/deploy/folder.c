/*
 * The temporary folder of a deployment: `.NAME-XXXXXX` beside the result, on the same file system, removed at the end.
 *
 * A killed process leaves its folder behind. So the folder contains a lock file, which its process keeps locked. The next
 * deployment to the same place removes folders whose lock file is not locked, and nothing else.
 */
#include "deploy/deploy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_NAME "sol-deploy.lock" /* differs from all deployed files, whose names have no - */
#define RANDOM_SIGNS 6              /* characters that mkdtemp chooses */
#define MAX_TRIES 16
/* Room for a path with the folder's own name, and with that of the lock. */
#define FOLDER_PATH (DEPLOY_PATH + DEPLOY_NAME)
#define LOCK_PATH (FOLDER_PATH + 32)

/* ---- Writing ---- */

const char *deploy_path(struct deployment *d, const char *name) {
    return arena_printf(d->arena, "%s/%s", d->folder, name);
}

/* Creates the folders in `name`, such as src/run of src/run/exec.c. */
static void make_folders(struct deployment *d, const char *name) {
    for (const char *at = strchr(name, '/'); at; at = strchr(at + 1, '/'))
        (void)mkdir(deploy_path(d, arena_printf(d->arena, "%.*s", (int)(at - name), name)), 0777);
}

enum sol_status deploy_close(FILE *file, const char *path) {
    bool bad = ferror(file);
    if (fclose(file) || bad) return fail(SOL_EDEVICE, "cannot write %s: %s", path, strerror(errno));
    return SOL_OK;
}

enum sol_status deploy_write(struct deployment *d, const char *name, const void *data,
                             size_t size) {
    const char *path = deploy_path(d, name);
    make_folders(d, name);
    FILE *file = fopen(path, "wbe");
    if (!file) return fail(SOL_EDEVICE, "cannot write %s: %s", path, strerror(errno));
    fwrite(data, 1, size, file);
    return deploy_close(file, path);
}

enum sol_status deploy_write_text(struct deployment *d, const char *name, const struct text *text) {
    return deploy_write(d, name, text->at, text->size);
}

/* ---- Removing ---- */

/* Called by nftw: removes all entries except the folder itself and its lock. */
static int remove_entry(const char *path, const struct stat *file, int type, struct FTW *walk) {
    (void)file, (void)type;
    bool is_lock = walk->level == 1 && !strcmp(path + walk->base, LOCK_NAME);
    if (walk->level && !is_lock) (void)remove(path);
    return 0;
}

static int open_lock(const char *folder, int flags) {
    char path[LOCK_PATH];
    (void)snprintf(path, sizeof path, "%s/" LOCK_NAME, folder);
    return open(path, flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
}

/* Removes the folder. This fails if the compiler of a killed deployment still writes files; then the lock file is created again,
 * so that a later deployment removes the folder. */
static void remove_folder(const char *folder) {
    char lock[LOCK_PATH];
    (void)snprintf(lock, sizeof lock, "%s/" LOCK_NAME, folder);
    (void)nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    (void)unlink(lock);
    if (!rmdir(folder)) return;
    int fd = open_lock(folder, O_CREAT);
    if (fd >= 0) close(fd);
}

/* Removes the folder of a deployment that was killed before it had a lock: empty, with the mode of mkdtemp. */
static void remove_empty(const char *folder) {
    struct stat at;
    if (!lstat(folder, &at) && S_ISDIR(at.st_mode) && (at.st_mode & 07777) == 0700 &&
        at.st_uid == geteuid())
        (void)rmdir(folder);
}

/* Removes the folder if no process has locked it. `is_own`: it has this library's name, so it is removed if it is empty, too. */
static void remove_if_dead(const char *folder, bool is_own) {
    int fd = open_lock(folder, 0);
    if (fd < 0 && is_own) remove_empty(folder);
    if (fd < 0) return;
    if (!flock(fd, LOCK_EX | LOCK_NB)) remove_folder(folder);
    close(fd);
}

/* Is it ".NAME-XXXXXX"? */
static bool is_working_name(const char *name) {
    const char *end = strrchr(name, '-');
    return name[0] == '.' && end && strlen(end + 1) == RANDOM_SIGNS &&
           strspn(end + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") ==
               RANDOM_SIGNS;
}

/* Removes the folders of killed deployments of all libraries. */
static void remove_dead(const struct deployment *d) {
    char path[FOLDER_PATH];
    const size_t n = strlen(d->lib);
    DIR *folder = opendir(d->place);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        const char *name = entry->d_name;
        if (!is_working_name(name)) continue;
        (void)snprintf(path, sizeof path, "%s/%s", d->place, name);
        remove_if_dead(path, !strncmp(name + 1, d->lib, n) && name[1 + n] == '-');
    }
    if (folder) closedir(folder);
}

/* ---- Making ---- */

/* Creates one folder. If it exists already, each error of mkdir is ignored. */
static enum sol_status make_one(struct deployment *d, const char *path) {
    struct stat at;
    if (!mkdir(path, 0777)) {
        VEC_PUSH(d->arena, &d->made, path);
        return SOL_OK;
    }
    int error = errno;
    if (!stat(path, &at)) {
        if (S_ISDIR(at.st_mode)) return SOL_OK;
        error = ENOTDIR;
    }
    return fail(SOL_EINVAL, "cannot make the folder %s: %s", path, strerror(error));
}

/* Creates the folder of the result and its parents. `place` is an absolute path, so that no compiler takes it for an option. */
static enum sol_status make_place(struct deployment *d) {
    char place[DEPLOY_PATH];
    const char *wanted = d->library->path && *d->library->path ? d->library->path : ".";
    for (const char *at = wanted; *at;) {
        at += strspn(at, "/");
        at += strcspn(at, "/");
        TRY(make_one(d, arena_printf(d->arena, "%.*s", (int)(at - wanted), wanted)));
    }
    if (!realpath(wanted, place))
        return fail(SOL_EINVAL, "cannot use the folder %s: %s", wanted, strerror(errno));
    d->place = arena_strdup(d->arena, place);
    return SOL_OK;
}

/* Creates and locks the lock file. False when another deployment has removed the folder meanwhile, as it was not locked yet. On a
 * file system without locks, no deployment removes folders. */
static bool lock_folder(struct deployment *d, const char *folder) {
    struct stat at;
    d->lock = open_lock(folder, O_CREAT | O_EXCL);
    if (d->lock < 0) return errno != ENOENT;
    bool is_taken = flock(d->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    if (!is_taken && !fstat(d->lock, &at) && at.st_nlink) return true;
    close(d->lock);
    d->lock = -1;
    return false;
}

enum sol_status deploy_begin(struct deployment *d) {
    TRY(make_place(d));
    remove_dead(d);
    for (int i = 0; i < MAX_TRIES; i++) {
        char *folder = arena_printf(d->arena, "%s/.%s-XXXXXX", d->place, d->lib);
        if (!mkdtemp(folder))
            return fail(SOL_EINVAL, "cannot write to %s: %s", d->place, strerror(errno));
        d->work = d->folder = folder;
        if (lock_folder(d, folder)) return SOL_OK;
    }
    return fail(SOL_EDEVICE, "cannot work in %s: others remove what is made there", d->place);
}

void deploy_end(struct deployment *d, bool has_failed) {
    if (d->work) remove_folder(d->work);
    if (d->lock >= 0) close(d->lock);
    for (int i = d->made.n; has_failed && i-- > 0;) (void)rmdir(d->made.at[i]);
}

/*
 * The cache folder, and its files.
 *
 *   <32 hex digits>.so   object + full key + struct seal; created by rename, so never incomplete
 *   <32 hex digits>.c    its source: with debug, or if the compiler rejected it
 *   tmp-*                being written, or left by a process that was killed
 *   *.choice             winners of autotuning; device/cpu/tune.c reads and writes them
 *
 * A user who can write to the folder can run code in this process. So the folder is used only if it belongs to this user, no
 * other user can write to it, and the folders above it belong to this user or root. Files in it are checked against accidents
 * only: a file is loaded if checksum and full key are equal. The system's loader ignores bytes behind a shared object; so
 * object, key and seal are in one file and cannot be inconsistent.
 *
 * Invariant: nothing here waits for another process; if two write the same file, the files are equal.
 */
#include "jit/jit_parts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sol/sol.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define STALE_S 3600          /* age of abandoned temporary files: no compile takes that long */
#define ROOM ((off_t)1 << 20) /* more than the size of any kernel */

struct seal {
    char magic[8];
    uint64_t object_size, key_size;
    uint64_t hash; /* of object and key */
};
static const char seal_magic[8] = "SOLSEAL1"; /* without NUL */

/* ---- Which folder ---- */

/* Writes the path of the cache folder; EINVAL with the reason if there is none. */
static enum sol_status choose_folder(char path[JIT_FOLDER_SIZE]) {
    const char *own = env_get(ENV_SOL_CACHE_DIR), *xdg = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    int size = -1;
    if (own) size = snprintf(path, JIT_FOLDER_SIZE, "%s", own);
    else if (xdg && *xdg == '/') size = snprintf(path, JIT_FOLDER_SIZE, "%s/sol", xdg);
    else if (home && *home == '/') size = snprintf(path, JIT_FOLDER_SIZE, "%s/.cache/sol", home);
    if (size < 0) return fail(SOL_EINVAL, "neither SOL_CACHE_DIR, XDG_CACHE_HOME nor HOME is set");
    if (size >= JIT_FOLDER_SIZE)
        return fail(SOL_EINVAL, "the name of the cache folder is too long");
    if (*path != '/') return fail(SOL_EINVAL, "cache folder %s: not an absolute path", path);
    return SOL_OK;
}

/* Makes the folder and missing folders above it. Ignores failures: opening the folder fails later. */
static void make_folders(char *path) {
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        (void)!mkdir(path, 0700);
        *at = '/';
    }
    (void)!mkdir(path, 0700);
}

/* NULL, or why the folder `fd` cannot be used. */
static const char *find_objection(int fd) {
    struct stat folder;
    struct statvfs system;
    if (fstat(fd, &folder) || fstatvfs(fd, &system)) return strerror(errno);
    if (folder.st_uid != geteuid()) return "it belongs to another user";
    if (folder.st_mode & (S_IWGRP | S_IWOTH)) return "others may write to it";
    if (system.f_flag & ST_NOEXEC) return "its file system is mounted noexec";
    return NULL;
}

/* Can other users write to the folder? A group with the number of the user is the user's private group, which a umask of 002 lets
 * write: it is not counted. */
static bool others_may_write(const struct stat *folder) {
    const bool is_own_group = folder->st_gid == geteuid();
    return folder->st_mode & (is_own_group ? S_IWOTH : S_IWGRP | S_IWOTH);
}

/* NULL, or what is wrong with a folder above: a user who can write there can replace our folder. The sticky bit, as of /tmp,
 * prevents that. */
static const char *find_objection_above(const char *path) {
    char real[PATH_MAX];
    struct stat folder;
    if (!realpath(path, real)) return strerror(errno);
    for (char *end = NULL; end != real;) {
        end = strrchr(real, '/');
        end[end == real] = 0; /* the root keeps its slash */
        if (stat(real, &folder)) return strerror(errno);
        if (folder.st_uid && folder.st_uid != geteuid())
            return "a folder above belongs to another user";
        if (others_may_write(&folder) && !(folder.st_mode & S_ISVTX))
            return "others may write to a folder above";
    }
    return NULL;
}

static const char *explain_open(int error) {
    return error == ELOOP || error == ENOTDIR ? "it is a link or no folder" : strerror(error);
}

static bool is_ours(const char *name) {
    size_t hex = strspn(name, "0123456789abcdef");
    return hex == JIT_NAME_SIZE - 1 && (!strcmp(name + hex, ".so") || !strcmp(name + hex, ".c"));
}

enum sweep { COUNT_CACHED, REMOVE_STALE, REMOVE_CACHED };

/* Is it an abandoned temporary file? */
static bool is_stale(const char *name, const struct stat *file) {
    return !strncmp(name, "tmp-", 4) && time(NULL) - file->st_mtime > STALE_S;
}

/* COUNT_CACHED: counts cached files. REMOVE_STALE: removes and counts abandoned temporary files. REMOVE_CACHED: both kinds. */
static struct sol_cache sweep(const char *path, enum sweep what) {
    struct sol_cache found = {0};
    struct stat file;
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (fstatat(dirfd(folder), entry->d_name, &file, AT_SYMLINK_NOFOLLOW)) continue;
        bool is_meant = is_ours(entry->d_name)
                            ? what != REMOVE_STALE
                            : what != COUNT_CACHED && is_stale(entry->d_name, &file);
        if (!is_meant || (what != COUNT_CACHED && unlinkat(dirfd(folder), entry->d_name, 0)))
            continue;
        found.n_files++;
        found.bytes += file.st_size;
    }
    if (folder) closedir(folder);
    return found;
}

enum sol_status jit_open_folder(struct jit_folder *out) {
    static atomic_flag swept = ATOMIC_FLAG_INIT;
    *out = (struct jit_folder){0};
    TRY(choose_folder(out->path));
    make_folders(out->path);
    int fd = open(out->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const char *objection = fd >= 0 ? find_objection(fd) : explain_open(errno);
    if (fd >= 0) close(fd);
    if (!objection) objection = find_objection_above(out->path);
    if (objection) return fail(SOL_EINVAL, "cache folder %s: %s", out->path, objection);
    if (!atomic_flag_test_and_set(&swept)) (void)sweep(out->path, REMOVE_STALE);
    return SOL_OK;
}

enum sol_status jit_make_private(struct jit_folder *out) {
    *out = (struct jit_folder){.path = "/tmp/sol-XXXXXX", .is_private = true};
    if (mkdtemp(out->path)) return SOL_OK;
    return fail(SOL_EDEVICE, "cannot make a folder to compile in: %s: %s", out->path,
                strerror(errno));
}

void jit_close_folder(const struct jit_folder *folder) {
    if (!folder->is_private) return;
    DIR *files = opendir(folder->path);
    for (struct dirent *entry; files && (entry = readdir(files));) {
        size_t size = strlen(entry->d_name);
        bool source =
            size > 2 && !strcmp(entry->d_name + size - 2, ".c"); /* a message may name it */
        if (*entry->d_name != '.' && !source) unlinkat(dirfd(files), entry->d_name, 0);
    }
    if (files) closedir(files);
    rmdir(folder->path);
}

enum sol_status jit_cache_dir(char *out, size_t size) {
    struct jit_folder folder;
    TRY(jit_open_folder(&folder));
    if (strlen(folder.path) >= size)
        return fail(SOL_EINVAL, "the name of the cache folder is too long");
    memcpy(out, folder.path, strlen(folder.path) + 1);
    return SOL_OK;
}

enum sol_status sol_cache_usage(struct sol_cache *out) {
    struct jit_folder folder;
    TRY(jit_open_folder(&folder));
    *out = sweep(folder.path, COUNT_CACHED);
    return SOL_OK;
}

/* Loaded programs and compiles of other processes are not affected. */
enum sol_status sol_cache_clear(struct sol_cache *removed) {
    struct jit_folder folder;
    TRY(jit_open_folder(&folder));
    struct sol_cache found = sweep(folder.path, REMOVE_CACHED);
    if (removed) *removed = found;
    return SOL_OK;
}

/* ---- Files ---- */

/* The largest size of a file that this process may write. */
static off_t size_limit(void) {
    struct rlimit limit;
    bool is_small = !getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur < (rlim_t)INT64_MAX;
    return is_small ? (off_t)limit.rlim_cur : INT64_MAX;
}

/* Checks the limit first, as a write beyond it raises a signal that ends the process. */
static bool write_all(int fd, const void *data, size_t size) {
    struct stat file;
    if (fstat(fd, &file) || size_limit() - file.st_size < (off_t)size) {
        errno = EFBIG;
        return false;
    }
    for (const char *at = data; size;) {
        ssize_t n = write(fd, at, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

/* Creates a file with a unique name, folder/tmp-*.c. Its name with the ending .so is then unique, too. */
static int create_temporary(const struct jit_folder *folder, char path[JIT_PATH_SIZE]) {
    /* Several machines may share the folder, with equal process numbers: O_EXCL makes the name unique. */
    static _Atomic uint64_t counter;
    int fd;
    do {
        uint64_t salt[3] = {atomic_fetch_add(&counter, 1), (uint64_t)getpid(),
                            (uint64_t)time(NULL)};
        uint64_t unique = hash_bytes(0, salt, sizeof salt);
        (void)snprintf(path, JIT_PATH_SIZE, "%s/tmp-%016" PRIx64 ".c", folder->path, unique);
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    } while (fd < 0 && errno == EEXIST);
    return fd;
}

bool jit_has_room(const struct jit_folder *folder) {
    char path[JIT_PATH_SIZE];
    int fd = create_temporary(folder, path);
    if (fd < 0) return false;
    bool room = !posix_fallocate(fd, 0, min_i64(ROOM, max_i64(1, size_limit())));
    close(fd);
    unlink(path);
    return room;
}

/* A #line with the final name of the source, for messages and debug information. Omitted for names that it cannot contain. */
static int print_line(char *out, size_t size, const char *shown) {
    if (strpbrk(shown, "\"\\\n")) return snprintf(out, size, "\n");
    return snprintf(out, size, "#line 2 \"%s\"\n", shown);
}

enum sol_status jit_write_source(const struct jit_folder *folder, const char *shown,
                                 const char *text, char path[JIT_PATH_SIZE]) {
    char line[JIT_PATH_SIZE + 16];
    int size = print_line(line, sizeof line, shown);
    int fd = create_temporary(folder, path);
    if (fd < 0) return fail(SOL_EDEVICE, "cannot write %s: %s", path, strerror(errno));
    bool done = write_all(fd, line, (size_t)size) && write_all(fd, text, strlen(text));
    int error = errno;
    if (close(fd) && done) {
        done = false;
        error = errno;
    }
    if (done) return SOL_OK;
    unlink(path);
    return fail(SOL_EDEVICE, "cannot write %s: %s", path, strerror(error));
}

/* Appends key and seal to the open file, and syncs it to the disk. */
static bool append_seal(int fd, const char *key, size_t key_size, const struct seal *seal) {
    bool done = write_all(fd, key, key_size) && write_all(fd, seal, sizeof *seal);
    return done && !fsync(fd);
}

enum sol_status jit_seal(const char *path, const char *key, size_t key_size) {
    char *object;
    size_t size;
    TRY(os_read(path, &object, &size));
    struct seal seal = {.object_size = size, .key_size = key_size};
    memcpy(seal.magic, seal_magic, sizeof seal.magic);
    seal.hash = hash_bytes(hash_bytes(0, object, size), key, key_size);
    mem_free(object);
    int fd = open(path, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
    bool done = fd >= 0 && append_seal(fd, key, key_size, &seal);
    int error = errno;
    if (fd >= 0) close(fd);
    return done ? SOL_OK : fail(SOL_EDEVICE, "cannot write %s: %s", path, strerror(error));
}

static bool agrees(const char *data, size_t size, const char *key, size_t key_size) {
    struct seal seal;
    if (size < sizeof seal + key_size) return false;
    memcpy(&seal, data + size - sizeof seal, sizeof seal);
    size_t object_size = size - sizeof seal - key_size;
    return !memcmp(seal.magic, seal_magic, sizeof seal.magic) && seal.key_size == key_size &&
           seal.object_size == object_size && !memcmp(data + object_size, key, key_size) &&
           seal.hash == hash_bytes(hash_bytes(0, data, object_size), key, key_size);
}

/* A quick check by the file's size and last bytes, so that a large foreign file is not read as a whole. */
static bool has_seal(int fd, size_t key_size) {
    struct stat file;
    struct seal seal;
    if (fstat(fd, &file) || !S_ISREG(file.st_mode)) return false;
    off_t at = file.st_size - (off_t)sizeof seal;
    if (at < 0 || pread(fd, &seal, sizeof seal, at) != (ssize_t)sizeof seal) return false;
    return !memcmp(seal.magic, seal_magic, sizeof seal.magic) && seal.key_size == key_size &&
           seal.object_size + seal.key_size == (uint64_t)at;
}

bool jit_is_sealed(const char *path, const char *key, size_t key_size) {
    char *data;
    size_t size;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    bool maybe = fd >= 0 && has_seal(fd, key_size);
    if (fd >= 0) close(fd);
    if (!maybe || os_read(path, &data, &size)) return false;
    bool sealed = agrees(data, size, key, key_size);
    mem_free(data);
    return sealed;
}

/* ---- Timeouts ---- */

#define LATE "no object: the C compiler did not end within %lf s\n"

enum sol_status jit_write_timeout(const char *path, double limit_s) {
    char text[128];
    int size = snprintf(text, sizeof text, LATE, limit_s);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool done = fd >= 0 && write_all(fd, text, (size_t)size);
    if (fd >= 0) close(fd);
    return done ? SOL_OK : fail(SOL_EDEVICE, "cannot write %s", path);
}

double jit_read_timeout(const char *path) {
    char *data;
    size_t size;
    double limit_s = 0;
    if (os_read(path, &data, &size)) return 0;
    if (sscanf(data, LATE, &limit_s) != 1) limit_s = 0;
    mem_free(data);
    return limit_s;
}

/*
 * Reads tensors from external files. A model is untrusted, so it must not make SOL read anything except regular files in the
 * model's folder: no absolute paths, no "..", no symbolic or hard links, no devices.
 *
 * Each folder of a path is opened in the previous one without following links. Checks use the open file, not its name, which could
 * change meanwhile.
 */
#include "tensor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct place {
    const char *location;
    int64_t offset, length; /* length -1: not given */
};

static enum sol_status read_number(const struct onnx_entry *entry, int64_t *out) {
    char *end;
    errno = 0;
    long long value = strtoll(entry->value, &end, 10);
    bool is_digits = entry->value[0] >= '0' && entry->value[0] <= '9';
    if (!is_digits || *end || errno || value < 0)
        return fail(SOL_EINVAL, "%s \"%.32s\" of external data is no number", entry->key,
                    entry->value);
    *out = value;
    return SOL_OK;
}

/* Other keys, such as a checksum, are ignored. */
static enum sol_status read_entry(const struct onnx_entry *entry, struct place *out) {
    if (!entry->key || !entry->value) return fail(SOL_EINVAL, "external data lacks a key or value");
    if (!strcmp(entry->key, "location")) out->location = entry->value;
    if (!strcmp(entry->key, "offset")) return read_number(entry, &out->offset);
    if (!strcmp(entry->key, "length")) return read_number(entry, &out->length);
    return SOL_OK;
}

/* Is it the name of an entry of the folder: not empty, not "." or ".."? */
static bool is_plain_name(const char *name, size_t size) {
    if (!size || size > 255 || memchr(name, '\\', size)) return false;
    return strncmp(name, ".", size) != 0 && strncmp(name, "..", size) != 0;
}

/* Opens `name` in `folder` and closes `folder`. Returns the descriptor, or -1. */
static int open_in(int folder, const char *name, size_t size, int flags) {
    char copy[256] = {0};
    int file = -1;
    if (folder >= 0 && is_plain_name(name, size)) {
        memcpy(copy, name, size);
        file = openat(folder, copy, flags | O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    }
    if (folder >= 0) close(folder);
    return file;
}

/* Opens `location`, a relative path. Parts that are "." are skipped, since some writers begin a location with "./". */
static int open_beneath(const char *folder, const char *location) {
    int at = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (const char *slash; (slash = strchr(location, '/')); location = slash + 1)
        if (slash != location + 1 || *location != '.')
            at = open_in(at, location, (size_t)(slash - location), O_DIRECTORY);
    return open_in(at, location, strlen(location), 0);
}

static enum sol_status read_open(int file, const struct place *place, size_t size, char *out) {
    struct stat facts;
    if (fstat(file, &facts) || !S_ISREG(facts.st_mode) || facts.st_nlink != 1)
        return fail(SOL_EINVAL, "external data \"%.128s\" is no plain file", place->location);
    if (place->offset > facts.st_size || (int64_t)size > facts.st_size - place->offset)
        return fail(SOL_EINVAL, "external data \"%.128s\" has %lld bytes; %zu from %lld are wanted",
                    place->location, (long long)facts.st_size, size, (long long)place->offset);
    for (size_t done = 0; done < size;) {
        ssize_t n = pread(file, out + done, size - done, place->offset + (off_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return fail(SOL_EINVAL, "external data \"%.128s\" cannot be read", place->location);
        done += (size_t)n;
    }
    return SOL_OK;
}

/* The file's size, -1 when it cannot be opened. It limits how much memory is allocated. */
static int64_t size_of(const char *folder, const char *location) {
    struct stat facts;
    int file = open_beneath(folder, location);
    if (file < 0) return -1;
    bool is_known = !fstat(file, &facts);
    close(file);
    return is_known ? (int64_t)facts.st_size : -1;
}

enum sol_status external_read(struct arena *arena, const char *folder, const struct list *entries,
                              size_t size, const void **out) {
    struct place place = {.length = -1};
    for (int i = 0; i < entries->n; i++)
        TRY(read_entry(ITEM(*entries, struct onnx_entry, i), &place));
    if (!place.location || !folder)
        return fail(SOL_EINVAL, "external data without a %s", folder ? "location" : "folder");
    if (place.length >= 0 && (uint64_t)place.length != size)
        return fail(SOL_EINVAL, "%lld bytes of external data for a tensor of %zu",
                    (long long)place.length, size);
    if (size_of(folder, place.location) < (int64_t)size)
        return fail(SOL_EINVAL,
                    "external data \"%.128s\" is not in the model's folder, or too short",
                    place.location);
    char *data = arena_alloc(arena, size); /* may jump, so the file is opened afterwards */
    int file = open_beneath(folder, place.location);
    if (file < 0)
        return fail(SOL_EINVAL, "external data \"%.128s\" cannot be opened", place.location);
    enum sol_status status = read_open(file, &place, size, data);
    close(file);
    *out = data;
    return status;
}

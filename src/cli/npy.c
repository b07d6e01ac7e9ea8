/*
 * Reads and writes arrays: NumPy's .npy (format versions 1 to 3, numpy.lib.format), and raw values.
 *
 * The header is the text of a Python dict. The reader searches it for three keys: descr, fortran_order and shape.
 */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST_HEADER 65536

/* NumPy's names of the element types, little endian. */
static const char *const descriptions[] = {
    [SOL_F32] = "<f4", [SOL_F64] = "<f8", [SOL_F16] = "<f2", [SOL_I64] = "<i8", [SOL_I32] = "<i4",
    [SOL_I16] = "<i2", [SOL_I8] = "|i1",  [SOL_U8] = "|u1",  [SOL_BOOL] = "|b1"};

static const char *describe(enum sol_dtype dtype) {
    bool is_known = (size_t)dtype < sizeof descriptions / sizeof *descriptions;
    return is_known ? descriptions[dtype] : NULL;
}

const char *print_shape(char out[512], int rank, const int64_t *dim, name_size *name,
                        const void *user) {
    int at = snprintf(out, 512, "(");
    for (int d = 0; d < rank; d++) {
        const char *word = dim[d] < 0 && name ? name(user, dim[d]) : "?";
        if (d) at += snprintf(out + at, (size_t)(512 - at), ", ");
        if (dim[d] < 0) at += snprintf(out + at, (size_t)(512 - at), "%.32s", clean(word));
        else at += snprintf(out + at, (size_t)(512 - at), "%lld", (long long)dim[d]);
    }
    snprintf(out + at, (size_t)(512 - at), rank == 1 ? ",)" : ")");
    return out;
}

/* ---- Reading ---- */

/* Reads the header's text, with a NUL at the end; false when the file is no .npy. */
static bool read_header(FILE *file, char *out) {
    unsigned char head[12];
    if (fread(head, 1, 10, file) != 10 || memcmp(head, "\x93NUMPY", 6) != 0 || head[6] < 1 ||
        head[6] > 3)
        return false;
    size_t size = head[8] | (size_t)head[9] << 8;
    if (head[6] > 1) {
        if (fread(head + 10, 1, 2, file) != 2) return false;
        size |= (size_t)head[10] << 16 | (size_t)head[11] << 24;
    }
    if (size >= LARGEST_HEADER || fread(out, 1, size, file) != size) return false;
    out[size] = 0;
    return true;
}

/* The text after `key`, which is such as "'shape': "; "" when the header does not have it. */
static const char *find_key(const char *header, const char *key) {
    const char *at = strstr(header, key);
    return at ? at + strlen(key) : "";
}

/* Parses "(2, 3)" into the array's dims; false when it is malformed or has too many dims. */
static bool read_shape(const char *at, struct npy_file *out) {
    if (*at++ != '(') return false;
    for (out->rank = 0; *at != ')'; out->rank++) {
        char *end;
        if (out->rank == SOL_MAX_RANK || !isdigit((unsigned char)*at)) return false;
        errno = 0;
        out->dim[out->rank] = strtoll(at, &end, 10);
        if (errno) return false;
        at = end + strspn(end, "L, ");
    }
    return true;
}

static int parse_header(const char *header, struct npy_file *out) {
    const char *type = find_key(header, "'descr': ");
    snprintf(out->type, sizeof out->type, "%.*s", (int)strcspn(type + (*type == '\''), "'"),
             type + (*type == '\''));
    if (strncmp(find_key(header, "'fortran_order': "), "False", 5) != 0)
        return complain("%s: it is not in C order; numpy.ascontiguousarray makes it so", out->path);
    if (read_shape(find_key(header, "'shape': "), out)) return 0;
    return complain("%s: its shape is none that a network takes", out->path);
}

int open_array(const char *path, struct npy_file *out) {
    static _Thread_local char header[LARGEST_HEADER];
    const size_t length = strlen(path);
    *out = (struct npy_file){.path = path, .rank = -1, .file = fopen(path, "rb")};
    if (!out->file) return complain("cannot read %s: %s", path, strerror(errno));
    out->is_raw = length < 4 || strcmp(path + length - 4, ".npy") != 0;
    if (out->is_raw) return 0;
    return read_header(out->file, header) ? parse_header(header, out)
                                          : complain("%s is no .npy", path);
}

bool array_is(const struct npy_file *array, enum sol_dtype dtype) {
    const char *wanted = describe(dtype);
    return array->is_raw || (wanted && !strcmp(wanted, array->type));
}

int read_array(struct npy_file *array, enum sol_dtype dtype, int64_t n, void *data) {
    const size_t size = (size_t)n * dtype_size(dtype), found = fread(data, 1, size, array->file);
    if (found == size && fgetc(array->file) == EOF) return 0;
    if (ferror(array->file)) return complain("cannot read %s: %s", array->path, strerror(errno));
    return complain("%s does not hold %zu bytes of values, but %s", array->path, size,
                    found < size ? "fewer" : "more");
}

void close_array(struct npy_file *array) {
    if (array->file) fclose(array->file);
    array->file = NULL;
}

/* ---- Writing ---- */

/* The header ends at a multiple of 64 bytes. */
static bool write_header(FILE *file, enum sol_dtype dtype, int rank, const int64_t *dim) {
    char shape[512], header[1024];
    int n =
        snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                 describe(dtype), print_shape(shape, rank, dim, NULL, NULL));
    int size = (10 + n + 1 + 63) / 64 * 64 - 10;
    unsigned char head[10] = {0x93,
                              'N',
                              'U',
                              'M',
                              'P',
                              'Y',
                              1,
                              0,
                              (unsigned char)(size & 255),
                              (unsigned char)(size >> 8)};
    return fwrite(head, 1, 10, file) == 10 && fprintf(file, "%-*s\n", size - 1, header) == size;
}

int write_array(const char *path, enum sol_dtype dtype, int rank, const int64_t *dim,
                const void *data) {
    const size_t size = dtype_size(dtype) * (size_t)count_elements(rank, dim);
    if (!describe(dtype)) return complain("%s: NumPy has no %s", path, dtype_name(dtype));
    FILE *file = fopen(path, "wb");
    if (!file) return complain("cannot write %s: %s", path, strerror(errno));
    bool is_written = write_header(file, dtype, rank, dim) && fwrite(data, 1, size, file) == size;
    is_written &= !fclose(file);
    return is_written ? 0 : complain("cannot write %s", path);
}

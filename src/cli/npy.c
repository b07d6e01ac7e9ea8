/*
 * Arrays in files: NumPy's .npy (format versions 1 to 3, numpy.lib.format), and raw values.
 *
 * A header is a Python dict as text. Only its three known keys are looked for, and the file must hold exactly what is expected.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

#define LARGEST_HEADER 65536

/* NumPy's names of types, little endian. */
static const char *const descriptions[] = {
    [SOL_F32] = "<f4", [SOL_F64] = "<f8", [SOL_F16] = "<f2", [SOL_I64] = "<i8", [SOL_I32] = "<i4",
    [SOL_I16] = "<i2", [SOL_I8] = "|i1",  [SOL_U8] = "|u1",  [SOL_BOOL] = "|b1"};

static const char *describe(enum sol_dtype dtype) {
    bool is_known = (size_t)dtype < sizeof descriptions / sizeof *descriptions;
    return is_known ? descriptions[dtype] : NULL;
}

/* "(2, 3)" and "(2,)", as Python prints tuples. */
static void print_shape(int rank, const int64_t *dim, char out[512]) {
    int at = snprintf(out, 512, "(");
    for (int d = 0; d < rank; d++)
        at += snprintf(out + at, (size_t)(512 - at), d ? ", %lld" : "%lld", (long long)dim[d]);
    snprintf(out + at, (size_t)(512 - at), rank == 1 ? ",)" : ")");
}

/* The header's text, NUL behind it; false when this is no .npy. */
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

/* What follows "'key': ", or "". */
static const char *find_key(const char *header, const char *key) {
    const char *at = strstr(header, key);
    return at ? at + strlen(key) : "";
}

static int check_header(const char *path, const char *header, enum sol_dtype dtype, int rank,
                        const int64_t *dim) {
    char shape[512], type[16];
    const char *wanted = describe(dtype);
    print_shape(rank, dim, shape);
    if (!wanted) return complain("%s: NumPy has no %s", path, dtype_name(dtype));
    snprintf(type, sizeof type, "'%s'", wanted);
    if (strncmp(find_key(header, "'descr': "), type, strlen(type)) != 0)
        return complain("%s: its elements are not %s", path, dtype_name(dtype));
    if (strncmp(find_key(header, "'fortran_order': "), "False", 5) != 0)
        return complain("%s: it is not in C order", path);
    if (strncmp(find_key(header, "'shape': "), shape, strlen(shape)) != 0)
        return complain("%s: its shape is not %s", path, shape);
    return 0;
}

static int read_open(FILE *file, const char *path, enum sol_dtype dtype, int rank,
                     const int64_t *dim, void *data) {
    static _Thread_local char header[LARGEST_HEADER];
    size_t size = dtype_size(dtype), length = strlen(path);
    for (int d = 0; d < rank; d++) size *= (size_t)dim[d];
    if (length > 4 && !strcmp(path + length - 4, ".npy")) {
        if (!read_header(file, header)) return complain("%s is no .npy", path);
        int code = check_header(path, header, dtype, rank, dim);
        if (code) return code;
    }
    if (fread(data, 1, size, file) != size || fgetc(file) != EOF)
        return complain("%s does not hold %zu bytes of values", path, size);
    return 0;
}

int read_array(const char *path, enum sol_dtype dtype, int rank, const int64_t *dim, void *data) {
    FILE *file = fopen(path, "rb");
    if (!file) return complain("cannot read %s", path);
    int code = read_open(file, path, dtype, rank, dim, data);
    fclose(file);
    return code;
}

/* The header ends at a multiple of 64 bytes. */
static bool write_header(FILE *file, enum sol_dtype dtype, int rank, const int64_t *dim) {
    char shape[512], header[1024];
    print_shape(rank, dim, shape);
    int n =
        snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                 describe(dtype), shape);
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
    size_t size = dtype_size(dtype);
    for (int d = 0; d < rank; d++) size *= (size_t)dim[d];
    if (!describe(dtype)) return complain("%s: NumPy has no %s", path, dtype_name(dtype));
    FILE *file = fopen(path, "wb");
    if (!file) return complain("cannot write %s", path);
    bool is_written = write_header(file, dtype, rank, dim) && fwrite(data, 1, size, file) == size;
    is_written &= !fclose(file);
    return is_written ? 0 : complain("cannot write %s", path);
}

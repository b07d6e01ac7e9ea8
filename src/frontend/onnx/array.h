/*
 * Values of the interpreter: tensors of all of ONNX's element types, sequences, optionals.
 *
 * All of them live in a `struct space`, an arena with a limit, which is freed at the end of the call. Each error while computing
 * (no memory, a result over the limit, a bad value) jumps to the space's boundary, so that operators read as formulas. So code
 * that may jump holds no lock, no open file and no memory outside the space.
 *
 * Each element below 8 bits takes a byte. Most operators read elements as doubles or as 64-bit integers, which hold every element
 * type except strings exactly. Results are rounded or truncated to the element type once.
 */
#ifndef SOL_ONNX_ARRAY_H
#define SOL_ONNX_ARRAY_H

#include "wire.h"

#include <sol/sol.h>

/* code, ONNX's number of the element type, name, bytes of an element, kind */
#define TYPE_LIST(X)                                                                              \
    X(F32, 1, "f32", 4, FLOAT) X(U8, 2, "u8", 1, UNSIGNED) X(I8, 3, "i8", 1, SIGNED)              \
    X(U16, 4, "u16", 2, UNSIGNED) X(I16, 5, "i16", 2, SIGNED) X(I32, 6, "i32", 4, SIGNED)         \
    X(I64, 7, "i64", 8, SIGNED) X(STRING, 8, "string", sizeof(struct bytes), TEXT)                \
    X(BOOL, 9, "bool", 1, UNSIGNED) X(F16, 10, "f16", 2, FLOAT) X(F64, 11, "f64", 8, FLOAT)       \
    X(U32, 12, "u32", 4, UNSIGNED) X(U64, 13, "u64", 8, UNSIGNED) X(C64, 14, "c64", 8, COMPLEX)   \
    X(C128, 15, "c128", 16, COMPLEX) X(BF16, 16, "bf16", 2, FLOAT) X(E4M3FN, 17, "f8e4m3fn", 1, FLOAT) \
    X(E4M3FNUZ, 18, "f8e4m3fnuz", 1, FLOAT) X(E5M2, 19, "f8e5m2", 1, FLOAT)                       \
    X(E5M2FNUZ, 20, "f8e5m2fnuz", 1, FLOAT) X(U4, 21, "u4", 1, UNSIGNED) X(I4, 22, "i4", 1, SIGNED) \
    X(E2M1, 23, "f4e2m1", 1, FLOAT) X(E8M0, 24, "f8e8m0", 1, FLOAT) X(U2, 25, "u2", 1, UNSIGNED)  \
    X(I2, 26, "i2", 1, SIGNED)

/* The numbers are those of ONNX, so no translation is needed. Two more types are no element types: an optional without a value,
 * and lists of values: a sequence, a map. */
enum type {
    TYPE_NONE, /* an optional without a value */
    TYPE_SEQUENCE = -1,
    TYPE_MAP = -2, /* a list of two tensors of equal length: keys and values */
#define TYPE_ENUM(code, number, name, size, kind) TYPE_##code = number,
    TYPE_LIST(TYPE_ENUM)
#undef TYPE_ENUM
        N_TYPES = 27
};
enum type_kind { KIND_NONE, KIND_FLOAT, KIND_SIGNED, KIND_UNSIGNED, KIND_TEXT, KIND_COMPLEX };

/* Properties of an element type. */
struct type_row {
    const char *name;
    size_t size;
    enum type_kind kind;
};
/* Indexed by ONNX's number; a row without a name is not a type. */
extern const struct type_row types[N_TYPES];
/* The type of this name; TYPE_NONE when there is none. */
enum type type_find(const char *name);
static inline bool type_is_known(int64_t type) {
    return type > 0 && type < N_TYPES && types[type].name;
}
static inline bool is_float(enum type type) { return type > 0 && types[type].kind == KIND_FLOAT; }
static inline bool is_integer(enum type type) {
    return type > 0 && (types[type].kind == KIND_SIGNED || types[type].kind == KIND_UNSIGNED);
}
/* The SOL dtype with the same bits, for partitions; false when there is none. */
bool type_dtype(enum type type, enum sol_dtype *out);
enum type type_of_dtype(enum sol_dtype dtype);

/*
 * A value. It is filled before it becomes an output or gets a name, and never changes afterwards. So views, sequences and scopes
 * may share data. An array without elements has dims, too; one of them is 0.
 */
struct array {
    enum type type;
    int rank;
    int64_t dim[SOL_MAX_RANK];
    int64_t n;  /* elements: the product of dims; of a list, its length */
    void *data; /* row major; of strings struct bytes, of a list struct array * */
};

/* ---- Memory ---- */

/* The limit is per call, so that the memory of one call does not depend on other calls. */
struct space {
    struct arena arena;
    int64_t left;           /* bytes that may still be allocated */
    enum sol_status status; /* of space_stop; SOL_OK after a jump: the arena is out of memory */
};

void space_init(struct space *space, int64_t limit);
/* Jumps to the boundary with `status`. The message of sol_error() stays. */
void space_stop(struct space *space, enum sol_status status) __attribute__((noreturn, cold));
/* Calls `request(user)`. Each error in it that jumps to the boundary of `space` ends here, as a status. */
enum sol_status space_protect(struct space *space, enum sol_status (*request)(void *), void *user);
/* Zeroed memory for `n` items of `size` bytes; jumps to the boundary at overflow and over the limit. */
void *space_alloc(struct space *space, int64_t n, size_t size);
#define SPACE_ARRAY(space, type, n) ((type *)space_alloc(space, n, sizeof(type)))

/* A position in the order of allocations. space_release frees all memory that was allocated between two marks; it no longer counts
 * towards the limit. */
struct space_mark {
    struct arena_block *block;
    int64_t left;
};
struct space_mark space_mark(struct space *space);
void space_release(struct space *space, const struct space_mark *first,
                   const struct space_mark *second);

/* ---- Arrays ---- */

/* *n is the number of elements. False when a dim is below 0, or when the product of all dims that are not 0 is too large. So the
 * product of any dims of an array fits, even if the array has no elements. */
bool dims_count(int rank, const int64_t *dim, int64_t *n);

/* Zeroed. Stops when the dims are negative, overflow or go over the limit. */
struct array *array_new(struct space *space, enum type type, int rank, const int64_t *dim);
/* The same data with another shape; stops when it has another number of elements. */
struct array *array_view(struct space *space, const struct array *array, int rank,
                         const int64_t *dim);
/* A deep copy: items of sequences and strings are copied, too. `array` may be NULL; the result is NULL then. */
struct array *array_copy(struct space *space, const struct array *array);
/* Has `have` the type and shape of `want`, and its bytes unless want->data is NULL? NaN equals itself, and 0 differs from -0. */
bool array_is_like(const struct array *have, const struct array *want);
/* All elements as doubles or integers, in new memory. A float becomes an integer by truncation, saturated to 64 bits; NaN becomes
 * 0. An unsigned 64-bit integer keeps its bits as an integer. Stops for types that are no numbers, such as strings. */
double *array_doubles(struct space *space, const struct array *array);
int64_t *array_ints(struct space *space, const struct array *array);
/* One element. */
double array_double(const struct array *array, int64_t i);
int64_t array_int(const struct array *array, int64_t i);
void array_set_double(struct array *array, int64_t i, double value);
void array_set_int(struct array *array, int64_t i, int64_t value);
/* Set all elements of the array: doubles are rounded to nearest even, integers are truncated to the type's bits. */
void array_fill_doubles(struct array *array, const double *values);
void array_fill_ints(struct array *array, const int64_t *values);
static inline char *array_at(const struct array *array, int64_t i) {
    return (char *)array->data + i * (int64_t)types[array->type].size;
}
static inline bool is_tensor(const struct array *array) { return array->type > 0; }
/* A sequence, or a map. */
static inline bool is_list(const struct array *array) { return array->type < 0; }

/* float.c: floats below 32 bits, from and to their bits. `saturates`: a value that is too large becomes the largest finite value
 * instead of infinity or NaN. */
double float_decode(enum type type, unsigned bits);
unsigned float_encode(enum type type, double value, bool saturates);

/* ---- Walking ---- */

#define MAX_OPERANDS 4

/* An iterator over all points of a shape in row-major order, with the offsets of up to MAX_OPERANDS operands. */
struct walk {
    int rank;
    int64_t n, dim[SOL_MAX_RANK], at[SOL_MAX_RANK];
    int64_t stride[MAX_OPERANDS][SOL_MAX_RANK], offset[MAX_OPERANDS];
};
void walk_init(struct walk *walk, int rank, const int64_t *dim);
/* Sets the strides of operand `k` to those of an array that is broadcast to the shape. */
void walk_broadcast(struct walk *walk, int k, const struct array *array);
void walk_next(struct walk *walk);

/* Strides of the array, in elements. */
void array_strides(const struct array *array, int64_t stride[SOL_MAX_RANK]);
static inline int64_t product(int rank, const int64_t *dim) {
    int64_t n = 1;
    for (int d = 0; d < rank; d++) n *= dim[d];
    return n;
}

#endif

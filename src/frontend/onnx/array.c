/* Arrays: types, memory with a limit, and elements as doubles or 64-bit integers. */
#include "array.h"

#include <math.h>
#include <string.h>

#define MAX_ELEMENTS ((int64_t)1 << 56) /* so that sizes in bytes fit in 64 bits */
#define MAX_EMPTY ((int64_t)1 << 28)    /* limits loops over the other dims of an array without elements */

const struct type_row types[N_TYPES] = {
#define ROW(code, number, name, size, kind) [number] = {name, size, KIND_##kind},
    TYPE_LIST(ROW)
#undef ROW
};

enum type type_find(const char *name) {
    for (int i = 1; i < N_TYPES; i++)
        if (types[i].name && !strcmp(types[i].name, name)) return (enum type)i;
    return TYPE_NONE;
}

/* ONNX's type for each SOL dtype. ONNX has more types than SOL. */
static const enum type of_dtype[SOL_N_DTYPES] = {
    [SOL_F32] = TYPE_F32, [SOL_F64] = TYPE_F64,  [SOL_BF16] = TYPE_BF16, [SOL_F16] = TYPE_F16,
    [SOL_I64] = TYPE_I64, [SOL_I32] = TYPE_I32,  [SOL_I16] = TYPE_I16,   [SOL_I8] = TYPE_I8,
    [SOL_U8] = TYPE_U8,   [SOL_BOOL] = TYPE_BOOL};

enum type type_of_dtype(enum sol_dtype dtype) { return of_dtype[dtype]; }

bool type_dtype(enum type type, enum sol_dtype *out) {
    for (int i = 0; i < SOL_N_DTYPES; i++) {
        if (of_dtype[i] != type) continue;
        *out = (enum sol_dtype)i;
        return true;
    }
    return false;
}

/* ---- Memory ---- */

void space_init(struct space *space, int64_t limit) {
    *space = (struct space){.left = limit};
    arena_init(&space->arena);
}

void space_stop(struct space *space, enum sol_status status) {
    space->status = status;
    longjmp(*space->arena.boundary, 1);
}

/* Calls may be nested: the outer boundary is valid again afterwards. */
enum sol_status space_protect(struct space *space, enum sol_status (*request)(void *), void *user) {
    jmp_buf boundary, *outer = space->arena.boundary;
    volatile enum sol_status status;
    space->arena.boundary = &boundary;
    space->status = SOL_OK;
    if (setjmp(boundary)) status = space->status ? space->status : SOL_ENOMEM;
    else status = request(user);
    space->arena.boundary = outer;
    return status;
}

/* The extra byte makes the data of an array without elements differ from NULL. The arena zeroes memory; new pages are zeroed by the
 * operating system when they are first used, so memory that is never used costs nothing. */
void *space_alloc(struct space *space, int64_t n, size_t size) {
    int64_t bytes;
    if (n < 0 || __builtin_mul_overflow(n, (int64_t)size, &bytes))
        space_stop(space, fail(SOL_EINVAL, "%lld elements", (long long)n));
    if (bytes > space->left)
        space_stop(space, fail(SOL_ENOMEM, "%lld elements: more memory than a call may take",
                               (long long)n));
    space->left -= bytes;
    return arena_alloc(&space->arena, (size_t)bytes + 1);
}

struct space_mark space_mark(struct space *space) {
    return (struct space_mark){arena_mark(&space->arena), space->left};
}

void space_release(struct space *space, const struct space_mark *first,
                   const struct space_mark *second) {
    arena_release(first->block, second->block);
    space->left += first->left - second->left;
}

/* ---- Arrays ---- */

bool dims_count(int rank, const int64_t *dim, int64_t *n) {
    int64_t all = 1;
    *n = 1;
    for (int d = 0; d < rank; d++) {
        if (dim[d] < 0 || __builtin_mul_overflow(all, max_i64(1, dim[d]), &all) ||
            all > MAX_ELEMENTS)
            return false;
        *n *= dim[d];
    }
    return *n || all <= MAX_EMPTY;
}

/* Dims and number of elements of `array`. */
static void set_dims(struct space *space, struct array *array, int rank, const int64_t *dim) {
    if (rank > SOL_MAX_RANK)
        space_stop(space, fail(SOL_EUNSUPPORTED, "rank %d; it may be 0 to %d", rank, SOL_MAX_RANK));
    array->rank = rank;
    for (int d = 0; d < rank; d++) {
        array->dim[d] = dim[d];
        if (dim[d] < 0) space_stop(space, fail(SOL_EINVAL, "dim %d is %lld", d, (long long)dim[d]));
    }
    if (!dims_count(rank, dim, &array->n))
        space_stop(space, fail(SOL_EINVAL, "the number of elements overflows"));
}

struct array *array_new(struct space *space, enum type type, int rank, const int64_t *dim) {
    struct array *array = SPACE_ARRAY(space, struct array, 1);
    array->type = type;
    set_dims(space, array, rank, dim);
    array->data = space_alloc(space, array->n, types[type].size);
    return array;
}

bool array_is_like(const struct array *have, const struct array *want) {
    if (have->type != want->type || have->rank != want->rank) return false;
    for (int d = 0; d < want->rank; d++)
        if (have->dim[d] != want->dim[d]) return false;
    return !want->data || !memcmp(have->data, want->data, (size_t)want->n * types[want->type].size);
}

static void copy_items(struct space *space, struct array *copy) {
    struct array **items = copy->data;
    struct bytes *texts = copy->data;
    for (int64_t i = 0; i < copy->n; i++) {
        if (is_list(copy)) items[i] = array_copy(space, items[i]);
        else if (texts[i].size) {
            void *text = space_alloc(space, (int64_t)texts[i].size, 1);
            texts[i].at = memcpy(text, texts[i].at, texts[i].size);
        }
    }
}

struct array *array_copy(struct space *space, const struct array *array) {
    if (!array) return NULL;
    struct array *copy = SPACE_ARRAY(space, struct array, 1);
    *copy = *array;
    if (array->type == TYPE_NONE) return copy;
    size_t item = is_list(array) ? sizeof(struct array *) : types[array->type].size;
    copy->data = space_alloc(space, array->n, item);
    if (array->n) memcpy(copy->data, array->data, (size_t)array->n * item);
    if (is_list(array) || array->type == TYPE_STRING) copy_items(space, copy);
    return copy;
}

struct array *array_view(struct space *space, const struct array *array, int rank,
                         const int64_t *dim) {
    struct array *view = SPACE_ARRAY(space, struct array, 1);
    *view = *array;
    set_dims(space, view, rank, dim);
    if (view->n != array->n)
        space_stop(space,
                   fail(SOL_EINVAL, "%lld elements do not fit the new shape", (long long)array->n));
    return view;
}

/* Row-major: the last dim has stride 1. */
void array_strides(const struct array *array, int64_t stride[SOL_MAX_RANK]) {
    int64_t n = 1;
    for (int d = array->rank - 1; d >= 0; d--) {
        stride[d] = n;
        n *= array->dim[d];
    }
}

/* Types that C has. Elements below 8 bits are in the low bits of a byte, and are extended when they are read. */
#define PLAIN_LIST(X)                                                                          \
    X(F32, float) X(F64, double) X(U8, uint8_t) X(I8, int8_t) X(U16, uint16_t) X(I16, int16_t) \
    X(I32, int32_t) X(I64, int64_t) X(U32, uint32_t) X(U64, uint64_t) X(BOOL, uint8_t)

/* The low bits of a byte as an integer. For signed types, the exclusive or and the subtraction extend the sign, the highest of
 * these bits. */
static int64_t extend(enum type type, uint8_t byte) {
    switch (type) {
    case TYPE_U4: return byte & 15;
    case TYPE_I4: return (int64_t)((byte & 15) ^ 8) - 8;
    case TYPE_U2: return byte & 3;
    default: return (int64_t)((byte & 3) ^ 2) - 2;
    }
}

/* The bits of a float of one or two bytes. */
static unsigned small_bits(const struct array *array, int64_t i) {
    uint16_t wide;
    if (types[array->type].size == 1) return ((const uint8_t *)array->data)[i];
    memcpy(&wide, (const char *)array->data + 2 * i, 2);
    return wide;
}

/* The switch per element is slow, but lets each operator be written once for all types. Speed is the task of compiled
 * partitions. */
double array_double(const struct array *array, int64_t i) {
    switch (array->type) {
#define READ(code, ctype) \
    case TYPE_##code: return (double)((const ctype *)array->data)[i];
        PLAIN_LIST(READ)
#undef READ
    default: break;
    }
    if (is_integer(array->type))
        return (double)extend(array->type, ((const uint8_t *)array->data)[i]);
    return float_decode(array->type, small_bits(array, i));
}

/* Truncates to an integer, saturated to 64 bits; NaN becomes 0. */
static int64_t whole_of(double value) {
    if (value != value) return 0;
    if (value >= 9223372036854775808.0) return INT64_MAX;
    return value < -9223372036854775808.0 ? INT64_MIN : (int64_t)value;
}

/* Types that C has are converted directly; small floats via a double. */
int64_t array_int(const struct array *array, int64_t i) {
    switch (array->type) {
    case TYPE_F32: return whole_of((double)((const float *)array->data)[i]);
    case TYPE_F64: return whole_of(((const double *)array->data)[i]);
#define READ(code, ctype) \
    case TYPE_##code: return (int64_t)((const ctype *)array->data)[i];
        READ(U8, uint8_t)
        READ(I8, int8_t)
        READ(U16, uint16_t)
        READ(I16, int16_t)
        READ(I32, int32_t)
        READ(I64, int64_t)
        READ(U32, uint32_t)
        READ(U64, uint64_t)
        READ(BOOL, uint8_t)
#undef READ
    default: break;
    }
    if (is_integer(array->type)) return extend(array->type, ((const uint8_t *)array->data)[i]);
    return whole_of(array_double(array, i));
}

/* Keeps the low bits of the value: C defines that for conversions to unsigned types, and the compilers that build SOL do the same
 * for signed types. */
void array_set_int(struct array *array, int64_t i, int64_t value) {
    switch (array->type) {
    case TYPE_BOOL: ((uint8_t *)array->data)[i] = value != 0; return;
#define WRITE(code, ctype) \
    case TYPE_##code: ((ctype *)array->data)[i] = (ctype)value; return;
        WRITE(U8, uint8_t)
        WRITE(I8, int8_t)
        WRITE(U16, uint16_t)
        WRITE(I16, int16_t)
        WRITE(I32, int32_t)
        WRITE(I64, int64_t)
        WRITE(U32, uint32_t)
        WRITE(U64, uint64_t)
#undef WRITE
    default: break;
    }
    if (is_integer(array->type))
        ((uint8_t *)array->data)[i] = (uint8_t)extend(array->type, (uint8_t)value);
    else array_set_double(array, i, (double)value);
}

/* Truncates a double to the integer that is stored: as array_ints, but an array of u64 also gets values of 2^63 and above. */
static int64_t cut(const struct array *array, double value) {
    bool is_high = array->type == TYPE_U64 && value >= 9223372036854775808.0;
    if (!is_high) return whole_of(value);
    return value < 18446744073709551616.0 ? (int64_t)(uint64_t)value : -1;
}

/* Infinities and values that are too large saturate in small floats, as ONNX's casts do by default; f16 and bf16 get
 * an infinity. */
void array_set_double(struct array *array, int64_t i, double value) {
    unsigned bits;
    switch (array->type) {
    case TYPE_F32: ((float *)array->data)[i] = (float)value; return;
    case TYPE_F64: ((double *)array->data)[i] = value; return;
    case TYPE_BOOL: ((uint8_t *)array->data)[i] = value != 0; return;
    default: break;
    }
    if (is_integer(array->type)) {
        array_set_int(array, i, cut(array, value));
        return;
    }
    bits = float_encode(array->type, value, true);
    if (types[array->type].size == 1) ((uint8_t *)array->data)[i] = (uint8_t)bits;
    else ((uint16_t *)array->data)[i] = (uint16_t)bits;
}

/* Stops for strings, sequences, complex numbers and empty optionals, which are not converted to numbers. */
static void check_numbers(struct space *space, const struct array *array) {
    if (is_float(array->type) || is_integer(array->type)) return;
    space_stop(space, fail(SOL_EUNSUPPORTED, "elements of type %s",
                           array->type > 0 ? types[array->type].name : "sequence or none"));
}

/* A copy, which the caller may change. */
double *array_doubles(struct space *space, const struct array *array) {
    check_numbers(space, array);
    double *out = SPACE_ARRAY(space, double, array->n);
    for (int64_t i = 0; i < array->n; i++) out[i] = array_double(array, i);
    return out;
}

int64_t *array_ints(struct space *space, const struct array *array) {
    check_numbers(space, array);
    int64_t *out = SPACE_ARRAY(space, int64_t, array->n);
    for (int64_t i = 0; i < array->n; i++) out[i] = array_int(array, i);
    return out;
}

void array_fill_doubles(struct array *array, const double *values) {
    for (int64_t i = 0; i < array->n; i++) array_set_double(array, i, values[i]);
}

void array_fill_ints(struct array *array, const int64_t *values) {
    for (int64_t i = 0; i < array->n; i++) array_set_int(array, i, values[i]);
}

/* ---- Walking ---- */

/* All strides begin as 0. */
void walk_init(struct walk *walk, int rank, const int64_t *dim) {
    *walk = (struct walk){.rank = rank, .n = product(rank, dim)};
    for (int d = 0; d < rank; d++) walk->dim[d] = dim[d];
}

/* A dim of 1 gets stride 0, so it is repeated along the dim of the shape. Leading dims that the operand lacks keep stride 0. */
void walk_broadcast(struct walk *walk, int k, const struct array *array) {
    int64_t n = 1;
    for (int d = array->rank - 1; d >= 0; d--) {
        walk->stride[k][walk->rank - array->rank + d] = array->dim[d] == 1 ? 0 : n;
        n *= array->dim[d];
    }
}

/* Advances the last dim; a dim that reaches its end goes back to 0 and advances the one before it. After the last point, the
 * iterator is at the first point again. */
void walk_next(struct walk *walk) {
    for (int d = walk->rank - 1; d >= 0; d--) {
        for (int k = 0; k < MAX_OPERANDS; k++) walk->offset[k] += walk->stride[k][d];
        if (++walk->at[d] < walk->dim[d]) return;
        for (int k = 0; k < MAX_OPERANDS; k++) walk->offset[k] -= walk->dim[d] * walk->stride[k][d];
        walk->at[d] = 0;
    }
}

/*
 * Arguments of kernels: their values, and where a C function expects them (tasks.h).
 *
 * An ARG_STACK is memory of the caller that the kernel gets as a pointer to a copy in the device's memory. It is read when the
 * kernel is launched, and written when the caller waits for the kernel.
 */
#include "parts.h"

#include <stdlib.h>
#include <string.h>

VEDAresult vedaArgsCreate(VEDAargs *out) {
    *out = calloc(1, sizeof **out);
    return *out ? VEDA_SUCCESS : VEDA_ERROR_OUT_OF_MEMORY;
}

VEDAresult vedaArgsDestroy(VEDAargs args) {
    if (!args) return VEDA_ERROR_INVALID_ARGS;
    free(args);
    return VEDA_SUCCESS;
}

/* Indices may come in any order; a gap is found by the launch. */
static VEDAresult set(VEDAargs args, int i, struct arg arg) {
    if (!args || i < 0 || i >= VEDA_MAX_ARGS) return VEDA_ERROR_INVALID_ARGS;
    args->at[i] = arg;
    if (i >= args->n) args->n = i + 1;
    return VEDA_SUCCESS;
}

/* Short integers are extended by their sign, as registers hold them. */
#define INTEGER(name, type)                                                                \
    VEDAresult name(VEDAargs args, const int i, const type value) {                        \
        return set(args, i, (struct arg){.kind = ARG_INTEGER, .value = (uint64_t)value});  \
    }
INTEGER(vedaArgsSetI8, int8_t)
INTEGER(vedaArgsSetI16, int16_t)
INTEGER(vedaArgsSetI32, int32_t)
INTEGER(vedaArgsSetI64, int64_t)
INTEGER(vedaArgsSetU8, uint8_t)
INTEGER(vedaArgsSetU16, uint16_t)
INTEGER(vedaArgsSetU32, uint32_t)
INTEGER(vedaArgsSetU64, uint64_t)
INTEGER(vedaArgsSetVPtr, VEDAdeviceptr)
#undef INTEGER

#define FLOAT(name, type)                                        \
    VEDAresult name(VEDAargs args, const int i, const type value) { \
        struct arg arg = {.kind = ARG_FLOAT};                    \
        memcpy(&arg.value, &value, sizeof value);                \
        return set(args, i, arg);                                \
    }
FLOAT(vedaArgsSetF32, float)
FLOAT(vedaArgsSetF64, double)
#undef FLOAT

/* The raw pointer, so this waits if the host does not know it yet. */
VEDAresult vedaArgsSetPtr(VEDAargs args, const int i, const VEDAdeviceptr value) {
    void *raw;
    if (!args) return VEDA_ERROR_INVALID_ARGS;
    VEDA_TRY(vedaMemPtr(&raw, value));
    return vedaArgsSetU64(args, i, (uint64_t)(uintptr_t)raw);
}

VEDAresult vedaArgsSetStack(VEDAargs args, const int i, void *at, VEDAargs_intent intent,
                            const size_t size) {
    if ((!at && size) || (unsigned)intent > VEDA_ARGS_INTENT_OUT) return VEDA_ERROR_INVALID_ARGS;
    return set(args, i, (struct arg){ARG_STACK, 0, at, size, intent});
}

/* ---- For launches ---- */

/* Where an argument's copy ends, if it begins at `offset`. */
static uint64_t stack_end(const struct arg *arg, uint64_t offset) {
    if (arg->kind != ARG_STACK) return offset;
    return offset + (uint64_t)round_up((int64_t)arg->size, ARG_ALIGNMENT);
}

/* All copies lie in one block of the device's memory, in the order of the arguments. */
uint64_t args_stack_size(const struct veo_args *args) {
    uint64_t size = 0;
    for (int i = 0; i < args->n; i++) size = stack_end(&args->at[i], size);
    return size;
}

void args_copy(const struct veo_args *args, char *stack, bool in) {
    uint64_t offset = 0;
    for (int i = 0; i < args->n; i++) {
        const struct arg *arg = &args->at[i];
        if (arg->kind == ARG_STACK && arg->size) {
            if (in && arg->intent != VEDA_ARGS_INTENT_OUT)
                memcpy(stack + offset, arg->at, arg->size);
            if (!in && arg->intent != VEDA_ARGS_INTENT_IN)
                memcpy(arg->at, stack + offset, arg->size);
        }
        offset = stack_end(arg, offset);
    }
}

/* An argument that was never set is an error of the caller. */
VEDAresult args_sort(const struct veo_args *args, uint64_t stack, struct veda_call *out) {
    int n_integers = 0, n_floats = 0, n_words = 0;
    uint64_t offset = stack;
    for (int i = 0; i < args->n; i++) {
        const struct arg *arg = &args->at[i];
        uint64_t value = arg->kind == ARG_STACK ? offset : arg->value;
        offset = stack_end(arg, offset);
        if (arg->kind == ARG_NONE) return VEDA_ERROR_INVALID_ARGS;
        if (arg->kind == ARG_FLOAT && n_floats < VEDA_FLOATS) {
            memcpy(&out->floats[n_floats++], &value, sizeof value);
        } else if (arg->kind != ARG_FLOAT && n_integers < VEDA_INTEGERS) {
            out->integers[n_integers++] = value;
        } else {
            if (n_words == VEDA_WORDS) return VEDA_ERROR_INVALID_ARGS;
            out->words[n_words++] = value;
        }
    }
    return VEDA_SUCCESS;
}

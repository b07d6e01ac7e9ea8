/*
 * The types of VEDA that the host and the device share: results, arguments' intents, virtual pointers.
 *
 * Names, numbers and layouts are those of VEDA 2.3, so that code that is compiled against the real library's headers also works
 * with this one.
 */
#ifndef VEDA_TYPES_H
#define VEDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* X(NAME) in the order of their numbers; 0 is VEDA_SUCCESS. */
#define VEDA_ERRORS(X)                                                                             \
    X(ALREADY_INITIALIZED) X(CANNOT_CREATE_CONTEXT) X(CANNOT_CREATE_DEVICE) X(CANNOT_CREATE_STREAM) \
    X(CANNOT_POP_CONTEXT) X(CANT_READ_SENSOR_FILE) X(FUNCTION_NOT_FOUND) X(INITIALIZING_DEVICE)    \
    X(INVALID_ARGS) X(INVALID_CONTEXT) X(INVALID_COREIDX) X(INVALID_DEVICE) X(INVALID_MODULE)      \
    X(INVALID_REQID) X(INVALID_STREAM) X(INVALID_VALUE) X(MODULE_NOT_FOUND) X(NOT_IMPLEMENTED)     \
    X(NOT_INITIALIZED) X(NO_DEVICES_FOUND) X(NO_SENSOR_FILE) X(OFFSETTED_VPTR_NOT_ALLOWED)         \
    X(OUT_OF_BOUNDS) X(OUT_OF_MEMORY) X(SHUTTING_DOWN) X(UNABLE_TO_DETECT_DEVICES)                 \
    X(UNKNOWN_CONTEXT) X(UNKNOWN_DEVICE) X(UNKNOWN_KERNEL) X(UNKNOWN_MODULE) X(UNKNOWN_PPTR)       \
    X(UNKNOWN_ATTRIBUTE) X(UNKNOWN_STREAM) X(UNKNOWN_VPTR) X(VEDA_LD_LIBRARY_PATH_NOT_DEFINED)     \
    X(VEO_COMMAND_ERROR) X(VEO_COMMAND_EXCEPTION) X(VEO_COMMAND_UNFINISHED)                        \
    X(VEO_COMMAND_UNKNOWN_ERROR) X(VEO_STATE_BLOCKED) X(VEO_STATE_RUNNING) X(VEO_STATE_SYSCALL)    \
    X(VEO_STATE_UNKNOWN) X(VPTR_ALREADY_ALLOCATED) X(TODO) X(ASSERT) X(CONTEXT_IS_DESTROYED)       \
    X(INVALID_HANDLE) X(UNKNOWN) X(INVALID_DTYPE) X(OFFSET_NOT_ALLOWED) X(UNKNOWN_HMEM)            \
    X(UNKNOWN_CALLBACK) X(CALLBACK_ALREADY_REGISTERED) X(MEMORY_MISALIGNED)                        \
    X(UNKNOWN_VEDA_ARCHITECTURE) X(CANT_RELEASE_NON_DELAYED_VPTR)                                  \
    X(CANT_RELEASE_ALREADY_RELEASED_VPTR) X(CANT_FREE_NON_DELAYED_VPTR)                            \
    X(CANT_RELEASE_NON_DEVICE_ALLOCATED_VPTR) X(OVERRIDE_ALREADY_SET)

#define VEDA_ERROR_ROW(name) VEDA_ERROR_##name,
typedef enum VEDAresult_enum {
    VEDA_SUCCESS,
    VEDA_ERRORS(VEDA_ERROR_ROW) VEDA_N_RESULTS
} VEDAresult;
#undef VEDA_ERROR_ROW

typedef enum VEDAargs_intent_enum {
    VEDA_ARGS_INTENT_IN,
    VEDA_ARGS_INTENT_INOUT,
    VEDA_ARGS_INTENT_OUT,
} VEDAargs_intent;

/* A virtual pointer: device, 22 bits index, offset. Arithmetic changes the offset. Index 0 is none. The paper about VEDA has 32 bits of offset,
 * all versions 37, so that 5 bits are left for the device. */
#ifndef VEDA_OFFSET_BITS
#define VEDA_OFFSET_BITS 37
#endif
typedef struct {
    int8_t unused;
} VEDAdeviceptr_;
typedef VEDAdeviceptr_ *VEDAdeviceptr;

#define VEDA_SHIFT_DEVICE (VEDA_OFFSET_BITS + 22)
#define VEDA_SHIFT_IDX VEDA_OFFSET_BITS
#define VEDA_BITS_OFFSET ((1ull << VEDA_OFFSET_BITS) - 1)
#define VEDA_CNT_IDX 0x3FFFFF
#define VEDA_MAX_DEVICES 16
#define VEDA_GET_DEVICE(vptr) ((int)((uint64_t)(vptr) >> VEDA_SHIFT_DEVICE))
#define VEDA_GET_IDX(vptr) ((uint32_t)((uint64_t)(vptr) >> VEDA_SHIFT_IDX & VEDA_CNT_IDX))
#define VEDA_GET_OFFSET(vptr) ((uint64_t)(vptr) & VEDA_BITS_OFFSET)

#endif

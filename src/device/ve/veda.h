/*
 * The functions of libveda that SOL calls, with their types: VEDA is NEC's interface to vector engines, in the style of CUDA's driver.
 * The library is opened when it is needed (open.c), so no file of it is needed to build SOL. These declarations are for its versions
 * 2.0 to 2.3.
 *
 * What differs from what the names suggest:
 * - A stream is a number. In a context of mode OMP there is stream 0 only, whose kernels use all cores by OpenMP.
 * - A pointer is virtual: device, index of the allocation and offset as parts of 64 bits. Allocating only picks a number and adds a command to the
 *   stream, so that a lack of memory is found later. On the device, vedaMemPtr turns it into an address.
 * - The result of a kernel is written to where vedaLaunchKernelEx is told to, when the stream is synchronised. libveda itself
 *   checks those of its own commands only.
 * - A device has one context per process; each thread has a stack of them, whose last one most functions refer to.
 */
#ifndef SOL_VE_VEDA_H
#define SOL_VE_VEDA_H

#include <stddef.h>
#include <stdint.h>

/* Virtual pointers are numbers here, as they are for SOL. */
typedef uint64_t veda_ptr;
typedef struct veda_context *veda_context;
typedef struct veda_module *veda_module;
typedef struct veda_args *veda_args;
/* Passed by value. `kernel` belongs to the module. */
struct veda_function {
    uint64_t ptr;
    const char *kernel;
};

/* Of a virtual pointer, in the layout of all versions, and in that of the paper about VEDA: an allocation is smaller than 128 or 4 GiB. */
enum { VEDA_OFFSET_BITS = 37, VEDA_SHORT_OFFSET_BITS = 32 };

/* Results that SOL tells apart. */
enum {
    VEDA_SUCCESS = 0,
    VEDA_ERROR_ALREADY_INITIALIZED = 1,
    VEDA_ERROR_OFFSETTED_VPTR_NOT_ALLOWED = 22,
    VEDA_ERROR_OUT_OF_MEMORY = 24,
    VEDA_ERROR_UNKNOWN_VPTR = 34,
};
enum { VEDA_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 2 };
enum { VEDA_ARGS_INTENT_IN = 0 };
enum { VEDA_CONTEXT_MODE_OMP = 0 };

/* X(name without veda, parameters). All return a result. */
#define VEDA_API(X)                                                                              \
    X(GetVersion, (const char **text))                                                           \
    X(Init, (uint32_t flags))                                                                    \
    X(GetErrorName, (int result, const char **name))                                             \
    X(DeviceGetCount, (int *n))                                                                  \
    X(DeviceGetAttribute, (int *value, int attribute, int device))                               \
    X(DeviceTotalMem, (size_t *size, int device))                                                \
    X(CtxCreate, (veda_context *out, int mode, int device))                                      \
    X(CtxDestroy, (veda_context))                                                                \
    X(CtxPushCurrent, (veda_context))                                                            \
    X(CtxPopCurrent, (veda_context *out))                                                        \
    X(StreamSynchronize, (int stream))                                                           \
    X(MemAllocAsync, (veda_ptr *out, size_t size, int stream))                                   \
    X(MemFreeAsync, (veda_ptr, int stream))                                                      \
    X(MemcpyHtoDAsync, (veda_ptr to, const void *from, size_t size, int stream))                 \
    X(MemcpyDtoHAsync, (void *to, veda_ptr from, size_t size, int stream))                       \
    X(MemcpyDtoDAsync, (veda_ptr to, veda_ptr from, size_t size, int stream))                    \
    X(MemsetD8Async, (veda_ptr, uint8_t value, size_t n, int stream))                            \
    X(ModuleLoad, (veda_module *out, const char *path))                                          \
    X(ModuleUnload, (veda_module))                                                               \
    X(ModuleGetFunction, (struct veda_function *out, veda_module, const char *name))             \
    X(ArgsCreate, (veda_args *out))                                                              \
    X(ArgsDestroy, (veda_args))                                                                  \
    X(ArgsSetStack, (veda_args, int index, void *from, int intent, size_t size))                 \
    X(LaunchKernelEx, (struct veda_function, int stream, veda_args, int destroys_args, uint64_t *result)) \
    X(LaunchHostFuncEx, (int stream, uint64_t (*function)(void *), void *user, uint64_t *result))

#endif

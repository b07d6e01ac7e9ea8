/*
 * The host's API of the stand-in for VEDA 2.3, NEC's library for SX-Aurora. A part of the real one, with its names and numbers.
 *
 *   a user of VEDA -> libveda.so (test/veda) -> struct target far_target -> the worker: device.c, and the user's kernels
 *
 * The devices are SOL's far devices: $SOL_FAR has their number, memory, threads and faults. What is not declared here the library
 * does not have. `parts.h` lists the differences from the real one.
 */
#ifndef VEDA_H
#define VEDA_H

#include "veda_types.h"

#pragma GCC visibility push(default)

typedef int VEDAdevice;
typedef int
    VEDAstream; /* an index; nothing creates streams. Functions without one are those on stream -1: queue 0, then wait */
typedef struct veo_args *VEDAargs;
typedef struct veda_context *VEDAcontext;
typedef struct veda_module *VEDAmodule;
typedef uint64_t (*VEDAhost_function)(void *user);
typedef void (*VEDAstream_callback)(VEDAstream stream, VEDAresult result, void *user);
typedef struct VEDAfunction_struct {
    uint64_t ptr;
    const char *kernel;
} VEDAfunction;

typedef enum VEDAcontext_mode_enum {
    VEDA_CONTEXT_MODE_OMP,    /* one stream, and all cores for each kernel */
    VEDA_CONTEXT_MODE_SCALAR, /* a stream per core */
} VEDAcontext_mode;

typedef enum VEDAdevice_attribute_enum {
    VEDA_DEVICE_ATTRIBUTE_CLOCK_RATE,
    VEDA_DEVICE_ATTRIBUTE_CLOCK_BASE,
    VEDA_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    VEDA_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE,
    VEDA_DEVICE_ATTRIBUTE_L1D_CACHE_SIZE,
    VEDA_DEVICE_ATTRIBUTE_L1I_CACHE_SIZE,
    VEDA_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
    VEDA_DEVICE_ATTRIBUTE_LLC_CACHE_SIZE,
    VEDA_DEVICE_ATTRIBUTE_ABI_VERSION,
    VEDA_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO,
    VEDA_DEVICE_ATTRIBUTE_FIREWARE_VERSION,
    VEDA_DEVICE_ATTRIBUTE_MODEL,
} VEDAdevice_attribute;

/* ---- The library: veda.c ---- */

/* All functions but those for names and versions return NOT_INITIALIZED before vedaInit. Init reads the environment: which devices are
 * visible (VEDA_VISIBLE_DEVICES, VE_NODE_NUMBER, _VENODELIST), VE_OMP_NUM_THREADS, VEDA_MEM_TRACE. Flags are 0. Exit destroys all
 * contexts, and empties all threads' stacks of them. */
VEDAresult vedaInit(uint32_t flags);
VEDAresult vedaExit(void);
VEDAresult vedaGetVersion(const char **out);
VEDAresult vedaDriverGetVersion(const char **out);
VEDAresult vedaGetArchitecture(int *out);
VEDAresult vedaGetErrorName(VEDAresult error, const char **out);
VEDAresult vedaGetErrorString(VEDAresult error, const char **out);

/* Devices count from 0 among the visible ones, at most VEDA_MAX_DEVICES; the physical id is that of the hardware. */
VEDAresult vedaDeviceGetCount(int *out);
VEDAresult vedaDeviceGet(VEDAdevice *out, int ordinal);
VEDAresult vedaDeviceGetName(char *out, int size, VEDAdevice device);
VEDAresult vedaDeviceTotalMem(size_t *out, VEDAdevice device);
VEDAresult vedaDeviceGetPhysicalId(int *out, VEDAdevice device);
VEDAresult vedaDeviceGetAttribute(int *out, VEDAdevice_attribute attribute, VEDAdevice device);

/* ---- Contexts: context.c ---- */

/* One per device, whether it is created or retained; CANNOT_CREATE_CONTEXT if it exists. Create pushes it onto the thread's stack,
 * Retain does not, Release does nothing. The top of the stack is the current context, in which the functions without a virtual
 * pointer work: UNKNOWN_CONTEXT if the stack is empty, CONTEXT_IS_DESTROYED if it is not active. SetCurrent replaces the top. What a
 * context has, memory, modules and what runs, dies with it. */
VEDAresult vedaDevicePrimaryCtxRetain(VEDAcontext *out, VEDAdevice device);
VEDAresult vedaDevicePrimaryCtxRelease(VEDAdevice device);
VEDAresult vedaDevicePrimaryCtxGetState(VEDAdevice device, uint32_t *flags, int *active);
VEDAresult vedaCtxCreate(VEDAcontext *out, int mode, VEDAdevice device);
VEDAresult vedaCtxDestroy(VEDAcontext context);
VEDAresult vedaCtxGet(VEDAcontext *out, const VEDAdevice device);
VEDAresult vedaCtxGetCurrent(VEDAcontext *out);
VEDAresult vedaCtxSetCurrent(VEDAcontext context);
VEDAresult vedaCtxPushCurrent(VEDAcontext context);
VEDAresult vedaCtxPopCurrent(VEDAcontext *out);
VEDAresult vedaCtxGetDevice(VEDAdevice *out);
VEDAresult vedaCtxGetApiVersion(VEDAcontext context, uint32_t *out);
VEDAresult vedaCtxStreamCnt(int *out);
VEDAresult vedaCtxSynchronize(void);

/* ---- Kernels: launch.c, args.c ---- */

/* A module is a shared object for the device. A function is valid as long as its module. */
VEDAresult vedaModuleLoad(VEDAmodule *out, const char *path);
VEDAresult vedaModuleUnload(VEDAmodule module);
VEDAresult vedaModuleGetFunction(VEDAfunction *out, VEDAmodule module, const char *name);

/* Arguments may be set in any order, and used for several launches. VPtr gives the kernel the virtual pointer; Ptr the raw one, for
 * which it may wait. Stack gives it a pointer to a copy: the caller's memory is read by the launch, and written by the
 * synchronization; at most 64 MiB for all. */
VEDAresult vedaArgsCreate(VEDAargs *out);
VEDAresult vedaArgsDestroy(VEDAargs args);
VEDAresult vedaArgsSetI8(VEDAargs args, const int i, const int8_t value);
VEDAresult vedaArgsSetI16(VEDAargs args, const int i, const int16_t value);
VEDAresult vedaArgsSetI32(VEDAargs args, const int i, const int32_t value);
VEDAresult vedaArgsSetI64(VEDAargs args, const int i, const int64_t value);
VEDAresult vedaArgsSetU8(VEDAargs args, const int i, const uint8_t value);
VEDAresult vedaArgsSetU16(VEDAargs args, const int i, const uint16_t value);
VEDAresult vedaArgsSetU32(VEDAargs args, const int i, const uint32_t value);
VEDAresult vedaArgsSetU64(VEDAargs args, const int i, const uint64_t value);
VEDAresult vedaArgsSetF32(VEDAargs args, const int i, const float value);
VEDAresult vedaArgsSetF64(VEDAargs args, const int i, const double value);
VEDAresult vedaArgsSetVPtr(VEDAargs args, const int i, const VEDAdeviceptr value);
VEDAresult vedaArgsSetPtr(VEDAargs args, const int i, const VEDAdeviceptr value);
VEDAresult vedaArgsSetStack(VEDAargs args, const int i, void *at, VEDAargs_intent intent,
                            const size_t size);

/* `result` is written by the synchronization: the caller keeps it until then. So are errors of kernels found. `destroy`: the launch
 * takes the arguments, also if it fails. Host functions run on another thread, in the order of the stream. */
VEDAresult vedaLaunchKernel(VEDAfunction function, VEDAstream stream, VEDAargs args);
VEDAresult vedaLaunchKernelEx(VEDAfunction function, VEDAstream stream, VEDAargs args,
                              const int destroy, uint64_t *result);
VEDAresult vedaLaunchHostFunc(VEDAstream stream, VEDAhost_function function, void *user);
VEDAresult vedaLaunchHostFuncEx(VEDAstream stream, VEDAhost_function function, void *user,
                                uint64_t *result);

/* ---- Streams: stream.c ---- */

/* Synchronize: -1 is all streams. Returns the first error of what has run since the last time. Query: VEO_STATE_RUNNING until the stream
 * has done all. AddCallback waits, and calls in the caller's thread. There are no events. */
VEDAresult vedaStreamSynchronize(VEDAstream stream);
VEDAresult vedaStreamQuery(VEDAstream stream);
VEDAresult vedaStreamGetFlags(VEDAstream stream, uint32_t *out);
VEDAresult vedaStreamAddCallback(VEDAstream stream, VEDAstream_callback callback, void *user,
                                 unsigned flags);

/* ---- Memory: memory.c, copy.c ---- */

/* An allocation returns at once; later commands of its stream may use the pointer. Size 0: delayed, a kernel allocates by
 * vedaMemAllocPtr. Only the base of an allocation can be freed. A free on a destroyed context succeeds. */
VEDAresult vedaMemAlloc(VEDAdeviceptr *out, size_t size);
VEDAresult vedaMemAllocAsync(VEDAdeviceptr *out, size_t size, VEDAstream stream);
VEDAresult vedaMemFree(VEDAdeviceptr at);
VEDAresult vedaMemFreeAsync(VEDAdeviceptr at, VEDAstream stream);

/* These may wait: for a raw pointer that the host does not know, or for the size of a delayed allocation, which is 0 as long as no
 * kernel has allocated it. A raw pointer of NULL: the device had no memory. Sizes are those of whole allocations. */
VEDAresult vedaMemGetInfo(size_t *free, size_t *total);
VEDAresult vedaMemGetAddressRange(VEDAdeviceptr *base, size_t *size, VEDAdeviceptr at);
VEDAresult vedaMemGetDevice(VEDAdevice *out, VEDAdeviceptr at);
VEDAresult vedaMemSize(size_t *out, VEDAdeviceptr at);
VEDAresult vedaMemPtr(void **out, VEDAdeviceptr at);
VEDAresult vedaMemPtrSize(void **out, size_t *size, VEDAdeviceptr at);
VEDAresult vedaMemReport(void);

/* Exchanges what two pointers mean, without a copy. */
VEDAresult vedaMemSwap(VEDAdeviceptr a, VEDAdeviceptr b);
VEDAresult vedaMemSwapAsync(VEDAdeviceptr a, VEDAdeviceptr b, VEDAstream stream);

/* On the device, or between two of them by way of the host. OUT_OF_BOUNDS is an error of the synchronization. */
VEDAresult vedaMemcpy(VEDAdeviceptr to, VEDAdeviceptr from, size_t size);
VEDAresult vedaMemcpyAsync(VEDAdeviceptr to, VEDAdeviceptr from, size_t size, VEDAstream stream);
VEDAresult vedaMemcpyDtoD(VEDAdeviceptr to, VEDAdeviceptr from, size_t size);
VEDAresult vedaMemcpyDtoDAsync(VEDAdeviceptr to, VEDAdeviceptr from, size_t size,
                               VEDAstream stream);

/* The host checks the bounds. The first one of an allocation waits for the device; the host's memory is used until the synchronization. */
VEDAresult vedaMemcpyDtoH(void *to, VEDAdeviceptr from, size_t size);
VEDAresult vedaMemcpyDtoHAsync(void *to, VEDAdeviceptr from, size_t size, VEDAstream stream);
VEDAresult vedaMemcpyHtoD(VEDAdeviceptr to, const void *from, size_t size);
VEDAresult vedaMemcpyHtoDAsync(VEDAdeviceptr to, const void *from, size_t size, VEDAstream stream);

/* n values from `at` on; OUT_OF_BOUNDS as above. */
VEDAresult vedaMemsetD8(VEDAdeviceptr at, uint8_t value, size_t n);
VEDAresult vedaMemsetD8Async(VEDAdeviceptr at, uint8_t value, size_t n, VEDAstream stream);
VEDAresult vedaMemsetD16(VEDAdeviceptr at, uint16_t value, size_t n);
VEDAresult vedaMemsetD16Async(VEDAdeviceptr at, uint16_t value, size_t n, VEDAstream stream);
VEDAresult vedaMemsetD32(VEDAdeviceptr at, uint32_t value, size_t n);
VEDAresult vedaMemsetD32Async(VEDAdeviceptr at, uint32_t value, size_t n, VEDAstream stream);
VEDAresult vedaMemsetD64(VEDAdeviceptr at, uint64_t value, size_t n);
VEDAresult vedaMemsetD64Async(VEDAdeviceptr at, uint64_t value, size_t n, VEDAstream stream);
VEDAresult vedaMemsetD128(VEDAdeviceptr at, uint64_t x, uint64_t y, size_t n);
VEDAresult vedaMemsetD128Async(VEDAdeviceptr at, uint64_t x, uint64_t y, size_t n,
                               VEDAstream stream);

#pragma GCC visibility pop

#endif

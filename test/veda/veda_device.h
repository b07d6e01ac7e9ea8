/*
 * What kernels of the stand-in for VEDA call; test/veda/device.c defines it.
 *
 * A kernel is an external function, in C++ `extern "C"`, of a shared object that the host's compiler made with -shared -fPIC. Its
 * arguments are integers, pointers and floats, at most VEDA_MAX_ARGS (parts.h); no structs, no bool. It returns a VEDAresult as
 * uint64_t: 0 is success. These functions resolve when the module is loaded, so kernels may also declare them on their own.
 */
#ifndef VEDA_DEVICE_H
#define VEDA_DEVICE_H

#ifndef VEDA_TYPES_H
#include "veda_types.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

VEDAresult vedaGetErrorName(VEDAresult error, const char **name);
VEDAresult vedaGetErrorString(VEDAresult error, const char **name);

/* ---- Virtual pointers ---- */

/* Allocates what the host has allocated with size 0. VPTR_ALREADY_ALLOCATED: it is, with this size; INVALID_VALUE: another. */
VEDAresult vedaMemAlloc(VEDAdeviceptr vptr, const size_t size);
VEDAresult vedaMemAllocPtr(void **ptr, VEDAdeviceptr vptr, const size_t size);
VEDAresult vedaMemFree(VEDAdeviceptr vptr);
/* The raw pointer, with the offset; the size is that of the whole allocation. */
VEDAresult vedaMemPtr(void **ptr, VEDAdeviceptr vptr);
VEDAresult vedaMemPtrSize(void **ptr, size_t *size, VEDAdeviceptr vptr);
VEDAresult vedaMemSize(size_t *size, VEDAdeviceptr vptr);
VEDAresult vedaMemSwap(VEDAdeviceptr a, VEDAdeviceptr b);

/* ---- Raw pointers ---- */

VEDAresult vedaMemcpy(void *to, const void *from, const size_t size);
VEDAresult vedaMemsetD8(void *at, const uint8_t value, const size_t n);
VEDAresult vedaMemsetD16(void *at, const uint16_t value, const size_t n);
VEDAresult vedaMemsetD32(void *at, const uint32_t value, const size_t n);
VEDAresult vedaMemsetD64(void *at, const uint64_t value, const size_t n);
VEDAresult vedaMemsetD128(void *at, const uint64_t x, const uint64_t y, const size_t n);

#ifdef __cplusplus
}
#endif

#endif

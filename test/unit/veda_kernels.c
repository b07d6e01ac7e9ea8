/*
 * Kernels of the tests of test/veda, as a user of VEDA writes them. test/unit/veda_user.h compiles the text when a test runs, behind that
 * of the headers.
 */
#ifndef VEDA_DEVICE_H
#include "veda/veda_device.h"
#endif

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

uint64_t scale(VEDAdeviceptr at, float f, int64_t n) {
    float *p;
    VEDAresult r = vedaMemPtr((void **)&p, at);
    for (int64_t i = 0; i < n && !r; i++) p[i] *= f;
    return r;
}

uint64_t add(uint8_t *p, uint8_t x, int64_t n) {
    for (int64_t i = 0; i < n; i++) p[i] += x;
    return 0;
}

/* Runs until a file exists, or 20 s. */
uint64_t hold(const char *path) {
    for (time_t end = time(0) + 20; access(path, F_OK) && time(0) < end;) usleep(200);
    return 0;
}

uint64_t grow(VEDAdeviceptr at, int64_t n) {
    unsigned char *p;
    VEDAresult r = vedaMemAllocPtr((void **)&p, at, n);
    for (int64_t i = 0; i < n && !r; i++) p[i] = i;
    return r;
}

#define A(i) int64_t a##i
#define S(i) a##i * (i + 1)
uint64_t many(A(0), A(1), A(2), A(3), A(4), A(5), A(6), A(7), A(8), A(9), A(10), A(11), A(12),
              A(13), A(14), A(15), A(16), A(17), A(18), A(19), A(20), A(21), A(22), A(23), A(24),
              A(25), A(26), A(27), A(28), A(29), A(30), A(31), A(32), A(33), A(34), A(35), A(36),
              A(37), A(38), A(39)) {
    return S(0) + S(1) + S(2) + S(3) + S(4) + S(5) + S(6) + S(7) + S(8) + S(9) + S(10) + S(11) +
           S(12) + S(13) + S(14) + S(15) + S(16) + S(17) + S(18) + S(19) + S(20) + S(21) + S(22) +
           S(23) + S(24) + S(25) + S(26) + S(27) + S(28) + S(29) + S(30) + S(31) + S(32) + S(33) +
           S(34) + S(35) + S(36) + S(37) + S(38) + S(39);
}

uint64_t kinds(int8_t a, uint8_t b, float f0, int16_t c, uint16_t d, double d0, int32_t e,
               uint32_t f, int64_t g, uint64_t h, float f1, double d1, float f2, float f3, float f4,
               float f5, float f6, double d2) {
    return a == -1 && b == 255 && c == -2 && d == 65535 && e == -3 && f == 4000000000u && g == -4 &&
           h == 1ull << 63 && f0 == 0.5f && d0 == -0.25 && f1 == 1.5f && d1 == 1e300 && f2 == 2 &&
           f3 == 3 && f4 == 4 && f5 == 5 && f6 == 6 && d2 == 7;
}

uint64_t stack(int64_t *in, int64_t *inout, int64_t *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        out[i] = in[i] + 1;
        inout[i] *= 2;
        in[i] = 99;
    }
    return 0;
}

uint64_t give(uint64_t x) { return x; }
uint64_t crash(void) { return *(volatile int *)8; }

static int n;
uint64_t next(void) { return ++n; }
uint64_t last(void) { return n; }
uint64_t omp_threads(void) { return atoi(getenv("OMP_NUM_THREADS")); }

/* The line of the first check that fails; a has 64 bytes, b 32, c none. */
#define C(x)                         \
    do {                             \
        if (!(x)) return __LINE__; \
    } while (0)
uint64_t functions(VEDAdeviceptr a, VEDAdeviceptr b, VEDAdeviceptr c) {
    void *p, *q;
    size_t size;
    const char *name;
    C(!vedaMemPtr(&p, a));
    C(!vedaMemPtr(&q, a + 5));
    C((char *)q == (char *)p + 5);
    C(!vedaMemPtrSize(&q, &size, a + 5));
    C(size == 64);
    C(!vedaMemSize(&size, b));
    C(size == 32);
    C(vedaMemPtr(&q, c) == VEDA_ERROR_UNKNOWN_VPTR);
    C(vedaMemAlloc(c + 1, 8) == VEDA_ERROR_OFFSETTED_VPTR_NOT_ALLOWED);
    C(vedaMemAlloc(c, 0) == VEDA_ERROR_INVALID_ARGS);
    C(vedaMemAlloc(0, 8) == VEDA_ERROR_INVALID_ARGS);
    C(!vedaMemAlloc(c, 8));
    C(vedaMemAlloc(c, 8) == VEDA_ERROR_VPTR_ALREADY_ALLOCATED);
    C(vedaMemAlloc(c, 9) == VEDA_ERROR_INVALID_VALUE);
    C(!vedaMemSwap(a, b));
    C(!vedaMemPtr(&q, b));
    C(q == p);
    C(!vedaMemSwap(a, b));
    C(!vedaMemsetD32(p, 7, 16));
    C(((int *)p)[15] == 7);
    C(!vedaMemPtr(&q, b));
    C(!vedaMemcpy(q, p, 32));
    C(((int *)q)[7] == 7);
    C(!vedaMemsetD128(p, 1, 2, 2));
    C(((int64_t *)p)[3] == 2);
    C(!vedaMemFree(c));
    C(vedaMemFree(c) == VEDA_ERROR_UNKNOWN_VPTR);
    C(!vedaGetErrorName(VEDA_ERROR_OUT_OF_BOUNDS, &name));
    C(name[11] == 'O');
    return 0;
}

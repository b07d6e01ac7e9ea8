/*
 * For tests of test/veda: the library as its users see it, opened by dlopen, and kernels in a file.
 *
 * The library is $SOL_VEDA, or build/NAME/libveda.so beside the test. The test has SOL's base, too, so both must not get into each
 * other's way. A test is `begin`, calls, `end`: the library is initialized for each one, with a context on device 0.
 */
#ifndef VEDA_USER_H
#define VEDA_USER_H

#include "check.h"
#include "device/cpu/cpu.h"
#include "veda/veda.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#define SETTINGS "latency=0,bandwidth=1000,threads=2,memory=64"
#define HEAP (56u << 20) /* what such a device has for allocations */

/* ---- The library ---- */

/* All that the library has. */
#define FUNCTIONS(X)                                                                               \
    X(Init) X(Exit) X(GetVersion) X(DriverGetVersion) X(GetArchitecture) X(GetErrorName)           \
    X(GetErrorString) X(DeviceGetCount) X(DeviceGet) X(DeviceGetName) X(DeviceTotalMem)            \
    X(DeviceGetPhysicalId) X(DeviceGetAttribute) X(DevicePrimaryCtxRetain)                         \
    X(DevicePrimaryCtxRelease) X(DevicePrimaryCtxGetState) X(CtxCreate) X(CtxDestroy) X(CtxGet)    \
    X(CtxGetCurrent) X(CtxSetCurrent) X(CtxPushCurrent) X(CtxPopCurrent) X(CtxGetDevice)           \
    X(CtxGetApiVersion) X(CtxStreamCnt) X(CtxSynchronize) X(ModuleLoad) X(ModuleUnload)            \
    X(ModuleGetFunction) X(ArgsCreate) X(ArgsDestroy) X(ArgsSetI8) X(ArgsSetI16) X(ArgsSetI32)     \
    X(ArgsSetI64) X(ArgsSetU8) X(ArgsSetU16) X(ArgsSetU32) X(ArgsSetU64) X(ArgsSetF32)             \
    X(ArgsSetF64) X(ArgsSetVPtr) X(ArgsSetPtr) X(ArgsSetStack) X(LaunchKernel) X(LaunchKernelEx)   \
    X(LaunchHostFunc) X(LaunchHostFuncEx) X(StreamSynchronize) X(StreamQuery) X(StreamGetFlags)    \
    X(StreamAddCallback) X(MemAlloc) X(MemAllocAsync) X(MemFree) X(MemFreeAsync) X(MemGetInfo)     \
    X(MemGetAddressRange) X(MemGetDevice) X(MemSize) X(MemPtr) X(MemPtrSize) X(MemReport)          \
    X(MemSwap) X(MemSwapAsync) X(Memcpy) X(MemcpyAsync) X(MemcpyDtoD) X(MemcpyDtoDAsync)           \
    X(MemcpyDtoH) X(MemcpyDtoHAsync) X(MemcpyHtoD) X(MemcpyHtoDAsync) X(MemsetD8) X(MemsetD8Async) \
    X(MemsetD16) X(MemsetD16Async) X(MemsetD32) X(MemsetD32Async) X(MemsetD64) X(MemsetD64Async)   \
    X(MemsetD128) X(MemsetD128Async)

#define MEMBER(name) __typeof__(&veda##name) name;
static struct {
    FUNCTIONS(MEMBER)
} v;

static void *library;

static void find_path(char *out, size_t size) {
    const char *path = getenv("SOL_VEDA");
    check_path("libveda.so", out, size);
    if (path) (void)snprintf(out, size, "%s", path);
}

/* Calls go by pointers of the prototypes' types, as in a program that does not link the library. What is not in the list, such as
 * the far devices inside the library, is hidden. */
static void open_library(void) {
    char path[1024];
    find_path(path, sizeof path);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "%s\n", dlerror());
    REQUIRE(library);
    void *address;
#define FIND(name) \
    REQUIRE((address = dlsym(library, "veda" #name))); \
    memcpy(&v.name, &address, sizeof address);
    FUNCTIONS(FIND)
    CHECK(!dlsym(library, "vedaMemAllocPitch") && !dlsym(library, "far_target"));
}

/* ---- Kernels ---- */

EMBED_TEXT(veda_kernels, EMBED_FILE("test/veda/veda_types.h") EMBED_FILE("test/veda/veda_device.h")
                             EMBED_FILE("test/unit/veda_kernels.c"));

static char folder[] = "/tmp/sol-test-veda-XXXXXX";
static char module_path[64], flag_path[64];

/* The compiler's object becomes a file of this test: the cache may lose it. */
static void *keep_object(const char *path) {
    char *data;
    size_t size;
    if (os_read(path, &data, &size)) return NULL;
    FILE *file = fopen(module_path, "wb");
    bool written = file && fwrite(data, 1, size, file) == size;
    if (file) written = !fclose(file) && written;
    mem_free(data);
    return written ? module_path : NULL;
}

static void *find_none(void *object, const char *symbol) {
    (void)object, (void)symbol;
    return NULL;
}

static void close_none(void *object) { (void)object; }

static void compile_kernels(void) {
    static const struct jit_loader files = {
        .open = keep_object, .find = find_none, .close = close_none};
    const char *const text = veda_kernels;
    struct jit_module *module;
    REQUIRE(mkdtemp(folder));
    (void)snprintf(module_path, sizeof module_path, "%s/kernels.so", folder);
    (void)snprintf(flag_path, sizeof flag_path, "%s/flag", folder);
    enum sol_status status =
        jit_build(&files, CPU_OBJECT_FLAGS "-O1 -w", &text, 1, false, &module, NULL);
    if (status) fprintf(stderr, "%s\n", sol_error());
    REQUIRE(!status);
    jit_release(module);
}

/* ---- Short forms ---- */

static VEDAcontext context;
static VEDAmodule module;

/* The environment counts when the library is initialized. */
static void begin_mode(const char *settings, int mode) {
    setenv("SOL_FAR", settings, 1);
    REQUIRE(!v.Init(0));
    REQUIRE(!v.CtxCreate(&context, mode, 0));
    REQUIRE(!v.ModuleLoad(&module, module_path));
}

static void begin(void) { begin_mode(SETTINGS, VEDA_CONTEXT_MODE_OMP); }
static void end(void) { CHECK(!v.Exit()); }

static VEDAdeviceptr alloc(size_t size) {
    VEDAdeviceptr at = NULL;
    REQUIRE(!v.MemAllocAsync(&at, size, 0));
    return at;
}

/* v: virtual pointer, p: raw pointer, i: int64_t, f: float, d: double, and, with a size: I: memory to read, O: to write, B: both. */
static VEDAresult set_args(VEDAargs args, const char *kinds, va_list list) {
    VEDAresult result = VEDA_SUCCESS;
    for (int i = 0; kinds[i] && !result; i++) {
        void *at = strchr("IOB", kinds[i]) ? va_arg(list, void *) : NULL;
        switch (kinds[i]) {
        case 'v': result = v.ArgsSetVPtr(args, i, va_arg(list, VEDAdeviceptr)); break;
        case 'p': result = v.ArgsSetPtr(args, i, va_arg(list, VEDAdeviceptr)); break;
        case 'i': result = v.ArgsSetI64(args, i, va_arg(list, int64_t)); break;
        case 'f': result = v.ArgsSetF32(args, i, (float)va_arg(list, double)); break;
        case 'd': result = v.ArgsSetF64(args, i, va_arg(list, double)); break;
        case 'I':
            result = v.ArgsSetStack(args, i, at, VEDA_ARGS_INTENT_IN, va_arg(list, size_t));
            break;
        case 'O':
            result = v.ArgsSetStack(args, i, at, VEDA_ARGS_INTENT_OUT, va_arg(list, size_t));
            break;
        default:
            result = v.ArgsSetStack(args, i, at, VEDA_ARGS_INTENT_INOUT, va_arg(list, size_t));
            break;
        }
    }
    return result;
}

/* Waits for the function's address before the launch. */
static VEDAresult launch_on(VEDAstream stream, uint64_t *out, const char *name, const char *kinds,
                            va_list list) {
    VEDAfunction function;
    VEDAargs args;
    REQUIRE(!v.ModuleGetFunction(&function, module, name) && !v.ArgsCreate(&args));
    VEDAresult result = set_args(args, kinds, list);
    if (!result) return v.LaunchKernelEx(function, stream, args, 1, out);
    CHECK(!v.ArgsDestroy(args));
    return result;
}

/* On stream 0, without waiting. */
static inline VEDAresult launch(const char *name, const char *kinds, ...) {
    va_list list;
    va_start(list, kinds);
    VEDAresult result = launch_on(0, NULL, name, kinds, list);
    va_end(list);
    return result;
}

/* Waits, and returns what the kernel returned. */
static uint64_t call(const char *name, const char *kinds, ...) {
    va_list list;
    uint64_t value = UINT64_MAX;
    va_start(list, kinds);
    CHECK(!launch_on(-1, &value, name, kinds, list));
    va_end(list);
    return value;
}

/* ---- The program ---- */

static void run_test(const char *name, void (*function)(void)) {
    double start = os_now();
    function();
    if (getenv("TEST_TIMES")) printf("%-30s %.2f s\n", name, os_now() - start);
}
#define TEST(name) run_test(#name, test_##name)

/* False, with the reason on stdout: no test can run here. */
static bool open_veda(void) {
    const char *compiler, *version;
    if (check_is_emulated("the stand-in for VEDA")) return false;
    if (jit_compiler(&compiler, &version)) {
        printf("left out without a C compiler: the stand-in for VEDA\n");
        return false;
    }
    open_library();
    compile_kernels();
    return true;
}

static int close_veda(void) {
    (void)unlink(module_path);
    (void)unlink(flag_path);
    (void)rmdir(folder);
    return check_done();
}

#endif

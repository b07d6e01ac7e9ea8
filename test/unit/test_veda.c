/*
 * test/veda: the stand-in for NEC's VEDA, as a user of the library sees it: opened by dlopen, with kernels in files.
 *
 * The library is $SOL_VEDA, or build/NAME/libveda.so beside this program. This program has SOL's base, too, so both do not get into
 * each other's way. test_random compares it with a simple model. Needs a C compiler.
 */
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
    ssize_t n = readlink("/proc/self/exe", out, size - 1);
    REQUIRE(n > 0);
    out[n] = 0;
    for (int i = 0; i < 3; i++) *strrchr(out, '/') = 0; /* test/unit/test_veda */
    (void)snprintf(out + strlen(out), size - strlen(out), "/libveda.so");
    if (path) (void)snprintf(out, size, "%s", path);
}

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

__asm__(".section .rodata.veda_header,\"a\"\nveda_header:\n"
        ".incbin \"test/veda/veda_types.h\"\n.incbin \"test/veda/veda_device.h\"\n"
        ".byte 0\n.previous\n");
extern const char veda_header[];

static const char kernel_text[] =
    "#include <stdlib.h>\n#include <time.h>\n#include <unistd.h>\n"
    "uint64_t scale(VEDAdeviceptr at, float f, int64_t n) {\n"
    "    float *p; VEDAresult r = vedaMemPtr((void **)&p, at);\n"
    "    for (int64_t i = 0; i < n && !r; i++) p[i] *= f;\n"
    "    return r;\n"
    "}\n"
    "uint64_t add(uint8_t *p, uint8_t x, int64_t n) {\n"
    "    for (int64_t i = 0; i < n; i++) p[i] += x;\n"
    "    return 0;\n"
    "}\n"
    /* Runs until a file exists, or 20 s. */
    "uint64_t hold(const char *path) {\n"
    "    for (time_t end = time(0) + 20; access(path, F_OK) && time(0) < end;) usleep(200);\n"
    "    return 0;\n"
    "}\n"
    "uint64_t grow(VEDAdeviceptr at, int64_t n) {\n"
    "    unsigned char *p; VEDAresult r = vedaMemAllocPtr((void **)&p, at, n);\n"
    "    for (int64_t i = 0; i < n && !r; i++) p[i] = i;\n"
    "    return r;\n"
    "}\n"
    "#define A(i) int64_t a##i\n#define S(i) a##i * (i + 1)\n"
    "uint64_t many(A(0), A(1), A(2), A(3), A(4), A(5), A(6), A(7), A(8), A(9), A(10), A(11), A(12), A(13),\n"
    "    A(14), A(15), A(16), A(17), A(18), A(19), A(20), A(21), A(22), A(23), A(24), A(25), A(26), A(27),\n"
    "    A(28), A(29), A(30), A(31), A(32), A(33), A(34), A(35), A(36), A(37), A(38), A(39)) {\n"
    "    return S(0) + S(1) + S(2) + S(3) + S(4) + S(5) + S(6) + S(7) + S(8) + S(9) + S(10) + S(11) + S(12) + S(13) +\n"
    "    S(14) + S(15) + S(16) + S(17) + S(18) + S(19) + S(20) + S(21) + S(22) + S(23) + S(24) + S(25) + S(26) + S(27) +\n"
    "    S(28) + S(29) + S(30) + S(31) + S(32) + S(33) + S(34) + S(35) + S(36) + S(37) + S(38) + S(39);\n"
    "}\n"
    "uint64_t kinds(int8_t a, uint8_t b, float f0, int16_t c, uint16_t d, double d0, int32_t e, uint32_t f, int64_t g,\n"
    "    uint64_t h, float f1, double d1, float f2, float f3, float f4, float f5, float f6, double d2) {\n"
    "    return a == -1 && b == 255 && c == -2 && d == 65535 && e == -3 && f == 4000000000u && g == -4 &&\n"
    "           h == 1ull << 63 && f0 == 0.5f && d0 == -0.25 && f1 == 1.5f && d1 == 1e300 && f2 == 2 && f3 == 3 &&\n"
    "           f4 == 4 && f5 == 5 && f6 == 6 && d2 == 7;\n"
    "}\n"
    "uint64_t stack(int64_t *in, int64_t *inout, int64_t *out, int64_t n) {\n"
    "    for (int64_t i = 0; i < n; i++) { out[i] = in[i] + 1; inout[i] *= 2; in[i] = 99; }\n"
    "    return 0;\n"
    "}\n"
    "uint64_t give(uint64_t x) { return x; }\n"
    "uint64_t crash(void) { return *(volatile int *)8; }\n"
    "static int n;\n"
    "uint64_t next(void) { return ++n; }\n"
    "uint64_t last(void) { return n; }\n"
    "uint64_t omp_threads(void) { return atoi(getenv(\"OMP_NUM_THREADS\")); }\n"
    /* The line of the first check that fails; a has 64 bytes, b 32, c none. */
    "#define C(x) if (!(x)) return __LINE__;\n"
    "uint64_t functions(VEDAdeviceptr a, VEDAdeviceptr b, VEDAdeviceptr c) {\n"
    "    void *p, *q; size_t size; const char *name;\n"
    "    C(!vedaMemPtr(&p, a)) C(!vedaMemPtr(&q, a + 5)) C((char *)q == (char *)p + 5)\n"
    "    C(!vedaMemPtrSize(&q, &size, a + 5)) C(size == 64) C(!vedaMemSize(&size, b)) C(size == 32)\n"
    "    C(vedaMemPtr(&q, c) == VEDA_ERROR_UNKNOWN_VPTR)\n"
    "    C(vedaMemAlloc(c + 1, 8) == VEDA_ERROR_OFFSETTED_VPTR_NOT_ALLOWED)\n"
    "    C(vedaMemAlloc(c, 0) == VEDA_ERROR_INVALID_ARGS) C(vedaMemAlloc(0, 8) == VEDA_ERROR_INVALID_ARGS)\n"
    "    C(!vedaMemAlloc(c, 8)) C(vedaMemAlloc(c, 8) == VEDA_ERROR_VPTR_ALREADY_ALLOCATED)\n"
    "    C(vedaMemAlloc(c, 9) == VEDA_ERROR_INVALID_VALUE)\n"
    "    C(!vedaMemSwap(a, b)) C(!vedaMemPtr(&q, b)) C(q == p) C(!vedaMemSwap(a, b))\n"
    "    C(!vedaMemsetD32(p, 7, 16)) C(((int *)p)[15] == 7) C(!vedaMemPtr(&q, b)) C(!vedaMemcpy(q, p, 32))\n"
    "    C(((int *)q)[7] == 7) C(!vedaMemsetD128(p, 1, 2, 2)) C(((int64_t *)p)[3] == 2)\n"
    "    C(!vedaMemFree(c)) C(vedaMemFree(c) == VEDA_ERROR_UNKNOWN_VPTR)\n"
    "    C(!vedaGetErrorName(VEDA_ERROR_OUT_OF_BOUNDS, &name)) C(name[11] == 'O')\n"
    "    return 0;\n"
    "}\n";

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
    static char text[1 << 16];
    const char *const texts[] = {text};
    struct jit_module *module;
    REQUIRE(mkdtemp(folder));
    (void)snprintf(module_path, sizeof module_path, "%s/kernels.so", folder);
    (void)snprintf(flag_path, sizeof flag_path, "%s/flag", folder);
    (void)snprintf(text, sizeof text, "%s%s", veda_header, kernel_text);
    enum sol_status status =
        jit_build(&files, CPU_OBJECT_FLAGS "-O1 -w", texts, 1, false, &module, NULL);
    if (status) fprintf(stderr, "%s\n", sol_error());
    REQUIRE(!status);
    jit_release(module);
}

/* ---- Short forms ---- */

static VEDAcontext context;
static VEDAmodule module;

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
static VEDAresult launch(const char *name, const char *kinds, ...) {
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

/* With the argument 0. Returns the last result. */
static VEDAresult launch_often(const char *name, int n) {
    VEDAfunction function;
    VEDAargs args;
    VEDAresult result = VEDA_SUCCESS;
    REQUIRE(!v.ModuleGetFunction(&function, module, name) && !v.ArgsCreate(&args));
    CHECK(!v.ArgsSetI64(args, 0, 0));
    for (int i = 0; i < n; i++) result = v.LaunchKernel(function, 0, args);
    CHECK(!v.ArgsDestroy(args));
    return result;
}

/* Until `release`, stream 0 is busy. GetFunction waits, so it comes first. */
static VEDAargs holding;
static void hold(void) {
    VEDAfunction function;
    (void)unlink(flag_path);
    REQUIRE(!v.ModuleGetFunction(&function, module, "hold") && !v.ArgsCreate(&holding));
    CHECK(!v.ArgsSetStack(holding, 0, flag_path, VEDA_ARGS_INTENT_IN, strlen(flag_path) + 1));
    CHECK(!v.LaunchKernel(function, 0, holding));
    CHECK(v.StreamQuery(0) == VEDA_ERROR_VEO_STATE_RUNNING);
}

static void let_go(void) {
    CHECK(v.StreamQuery(0) == VEDA_ERROR_VEO_STATE_RUNNING); /* so nothing has waited */
    int fd = open(flag_path, O_CREAT | O_WRONLY, 0600);
    REQUIRE(fd >= 0);
    close(fd);
}

static void release(void) {
    let_go();
    CHECK(!v.StreamSynchronize(0));
    CHECK(!v.StreamQuery(0) && !v.ArgsDestroy(holding));
}

/* ---- The library and its devices ---- */

static void test_errors(void) {
    const char *name = NULL;
    CHECK(!v.GetErrorName(VEDA_SUCCESS, &name) && !strcmp(name, "VEDA_SUCCESS"));
    CHECK(!v.GetErrorString(VEDA_ERROR_UNKNOWN_VPTR, &name));
    CHECK_TEXT(name, "VEDA_ERROR_UNKNOWN_VPTR");
    CHECK(v.GetErrorName(1000, &name) == VEDA_ERROR_UNKNOWN);
    CHECK(VEDA_ERROR_NOT_INITIALIZED == 19 && VEDA_ERROR_VEO_COMMAND_EXCEPTION == 37 &&
          VEDA_ERROR_UNKNOWN == 49 && VEDA_ERROR_OVERRIDE_ALREADY_SET == 61);
    CHECK(!v.GetVersion(&name) && !strncmp(name, "2.3", 3) && !v.DriverGetVersion(&name));
}

static void test_init(void) {
    int n;
    VEDAcontext c;
    VEDAdeviceptr at = NULL;
    CHECK(v.DeviceGetCount(&n) == VEDA_ERROR_NOT_INITIALIZED &&
          v.Exit() == VEDA_ERROR_NOT_INITIALIZED);
    CHECK(v.CtxCreate(&c, 0, 0) == VEDA_ERROR_NOT_INITIALIZED);
    CHECK(v.MemFree((VEDAdeviceptr)1) == VEDA_ERROR_NOT_INITIALIZED);
    CHECK(v.Init(1) == VEDA_ERROR_INVALID_VALUE && !v.Init(0) &&
          v.Init(0) == VEDA_ERROR_ALREADY_INITIALIZED);
    CHECK(v.CtxGetCurrent(&c) == VEDA_ERROR_UNKNOWN_CONTEXT);
    CHECK(v.MemAlloc(&at, 8) == VEDA_ERROR_UNKNOWN_CONTEXT);
    CHECK(v.CtxCreate(&c, 0, 99) == VEDA_ERROR_INVALID_DEVICE && v.CtxCreate(&c, 2, 0));
    end();
}

/* What is visible with these variables: a string of physical numbers. */
static const char *visible(const char *name, const char *value) {
    static char out[32];
    int n, id, device;
    if (value) setenv(name, value, 1);
    REQUIRE(!v.Init(0) && !v.DeviceGetCount(&n) && n <= 16);
    for (int i = 0; i < n; i++)
        if (CHECK(!v.DeviceGet(&device, i) && device == i && !v.DeviceGetPhysicalId(&id, i)))
            out[i] = (char)('a' + id);
    out[n] = 0;
    CHECK(v.DeviceGet(&device, n) == VEDA_ERROR_INVALID_DEVICE);
    if (value) unsetenv(name);
    end();
    return out;
}

static void test_visible(void) {
    setenv("SOL_FAR", "devices=4", 1);
    CHECK_TEXT(visible("", NULL), "abcd");
    CHECK_TEXT(visible("VEDA_VISIBLE_DEVICES", ""), "abcd");
    CHECK_TEXT(visible("VEDA_VISIBLE_DEVICES", "2,0.0,7"), "ac");
    CHECK_TEXT(visible("VEDA_VISIBLE_DEVICES", "1.1"), "");
    CHECK_TEXT(visible("VE_NODE_NUMBER", "3"), "d");
    setenv("VEDA_VISIBLE_DEVICES", "1", 1);
    CHECK_TEXT(visible("VE_NODE_NUMBER", "3"), "b");
    unsetenv("VEDA_VISIBLE_DEVICES");
    CHECK_TEXT(visible("_VENODELIST", ""), "");
    CHECK_TEXT(visible("_VENODELIST", "1 2"), "bc");
    setenv("SOL_FAR", "devices=20", 1);
    CHECK_TEXT(visible("", NULL), "abcdefghijklmnop");
}

static void test_attributes(void) {
    char name[64] = "";
    size_t bytes;
    int n, arch;
    setenv("SOL_FAR", SETTINGS, 1);
    REQUIRE(!v.Init(0));
    CHECK(!v.DeviceGetName(name, sizeof name, 0) && !strncmp(name, "NEC SX-Aurora", 13));
    CHECK(v.DeviceGetName(name, sizeof name, 9) == VEDA_ERROR_INVALID_DEVICE);
    CHECK(!v.DeviceTotalMem(&bytes, 0) && bytes == 64u << 20 && !v.GetArchitecture(&arch) &&
          arch == 1);
    CHECK(!v.DeviceGetAttribute(&n, VEDA_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0) && n == 2);
    CHECK(v.DeviceGetAttribute(&n, 99, 0) == VEDA_ERROR_UNKNOWN_ATTRIBUTE);
    end();
}

/* ---- Contexts ---- */

static void test_modes(void) {
    int n, active;
    uint32_t flags;
    VEDAcontext c;
    begin();
    CHECK(v.CtxCreate(&c, 0, 0) == VEDA_ERROR_CANNOT_CREATE_CONTEXT); /* one per device */
    CHECK(!v.CtxStreamCnt(&n) && n == 1 && call("omp_threads", "") == 2);
    CHECK(v.StreamSynchronize(1) == VEDA_ERROR_UNKNOWN_STREAM);
    CHECK(!v.StreamGetFlags(0, &flags) && !flags);
    CHECK(!v.DevicePrimaryCtxRetain(&c, 0) && c == context && !v.DevicePrimaryCtxRelease(0));
    CHECK(!v.DevicePrimaryCtxGetState(0, &flags, &active) && active);
    CHECK(!v.DevicePrimaryCtxGetState(1, &flags, &active) && !active);
    CHECK(!v.CtxGetApiVersion(c, &flags));
    end();
    begin_mode(SETTINGS, VEDA_CONTEXT_MODE_SCALAR);
    CHECK(!v.CtxStreamCnt(&n) && n == 2 && call("omp_threads", "") == 1);
    CHECK(!v.StreamSynchronize(1) && v.StreamSynchronize(2) == VEDA_ERROR_UNKNOWN_STREAM);
    end();
    setenv("VE_OMP_NUM_THREADS", "1", 1);
    begin_mode(SETTINGS, VEDA_CONTEXT_MODE_OMP);
    unsetenv("VE_OMP_NUM_THREADS");
    CHECK(call("omp_threads", "") == 1);
    end();
}

static void *has_no_context(void *unused) {
    VEDAcontext c;
    int device = -1;
    (void)unused;
    CHECK(v.CtxGetCurrent(&c) == VEDA_ERROR_UNKNOWN_CONTEXT);
    CHECK(!v.CtxSetCurrent(context) && !v.CtxGetDevice(&device) && device == 0);
    return NULL;
}

static VEDAcontext current(void) {
    VEDAcontext c = NULL;
    return v.CtxGetCurrent(&c) ? NULL : c;
}

static void test_stack(void) {
    VEDAcontext a, b, c;
    pthread_t thread;
    begin();
    a = context;
    CHECK(!v.CtxCreate(&b, 0, 1) && a != b && current() == b);
    CHECK(!v.CtxGet(&c, 1) && c == b);
    CHECK(!v.CtxPushCurrent(a) && current() == a && !v.CtxSetCurrent(b) && current() == b);
    CHECK(!v.CtxPopCurrent(&c) && c == b && current() == b); /* a was replaced */
    CHECK(!v.CtxSetCurrent(NULL) && current() == a);
    CHECK(v.CtxPushCurrent(NULL) == VEDA_ERROR_INVALID_CONTEXT);
    REQUIRE(!pthread_create(&thread, NULL, has_no_context, NULL) && !pthread_join(thread, NULL));
    CHECK(!v.CtxPopCurrent(&c) && c == a && !current());
    CHECK(v.CtxPopCurrent(&c) == VEDA_ERROR_UNKNOWN_CONTEXT);
    end();
}

/* What a context has dies with it; frees that come later are ignored. */
static void test_destroy(void) {
    VEDAdeviceptr at;
    VEDAcontext c;
    begin();
    at = alloc(100);
    CHECK(!v.CtxPushCurrent(context) && !v.CtxDestroy(context));
    CHECK(!current() && v.CtxDestroy(context) == VEDA_ERROR_CONTEXT_IS_DESTROYED);
    CHECK(!v.MemFree(at) && !v.MemFreeAsync(at, 0));
    CHECK(v.MemcpyHtoD(at, "", 1) == VEDA_ERROR_CONTEXT_IS_DESTROYED);
    CHECK(!v.CtxPushCurrent(context) && v.CtxGetCurrent(&c) == VEDA_ERROR_CONTEXT_IS_DESTROYED);
    CHECK(v.CtxDestroy(NULL) == VEDA_ERROR_UNKNOWN_CONTEXT);
    CHECK(!v.CtxCreate(&c, 0, 0) && c == context); /* again */
    CHECK(v.MemFree(at) == VEDA_ERROR_UNKNOWN_VPTR);
    end();
}

/* What `stop` prints on stdout. */
static const char *printed_by(VEDAresult (*stop)(void)) {
    static char text[4096];
    char path[64];
    (void)snprintf(path, sizeof path, "%s/printed", folder);
    (void)fflush(stdout);
    int old = dup(1), fd = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600);
    REQUIRE(old >= 0 && fd >= 0 && dup2(fd, 1) == 1);
    CHECK(!stop());
    (void)fflush(stdout);
    REQUIRE(dup2(old, 1) == 1);
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    text[n < 0 ? 0 : n] = 0;
    close(fd), close(old), (void)unlink(path);
    return text;
}

static void test_leaks(void) {
    setenv("VEDA_MEM_TRACE", "1", 1);
    begin();
    CHECK(!v.MemFree(alloc(10)));
    (void)alloc(1234);
    CHECK(strstr(printed_by(v.MemReport), " 1234B"));
    const char *text = printed_by(v.Exit);
    CHECK(strstr(text, "with size 1234B has not been freed") && !strstr(text, "size 10B"));
    unsetenv("VEDA_MEM_TRACE");
    begin();
    (void)alloc(1234);
    CHECK_TEXT(printed_by(v.Exit), "");
}

/* ---- Virtual pointers ---- */

static void test_layout(void) {
    VEDAdeviceptr a, b, base;
    VEDAdevice device;
    VEDAcontext c;
    size_t size;
    void *p, *q;
    begin();
    a = alloc(100);
    b = alloc(100);
    CHECK((uint64_t)a == 1ull << 37 &&
          (uint64_t)b == 2ull << 37); /* device 0; index 0 is reserved */
    CHECK(!v.MemPtr(&p, a) && !v.MemPtrSize(&q, &size, a + 7) && size == 100);
    CHECK((char *)q == (char *)p + 7);
    CHECK(!v.MemGetAddressRange(&base, &size, a + 7) && base == a && size == 100);
    CHECK(v.MemSize(&size, (VEDAdeviceptr)5) == VEDA_ERROR_UNKNOWN_VPTR); /* index 0 */
    CHECK(v.MemFree(a) == 0 && alloc(1) != a); /* indices are not used again soon */
    CHECK(!v.CtxCreate(&c, 0, 1));
    a = alloc(100);
    CHECK((uint64_t)a == (1ull << 59 | 1ull << 37) && !v.MemGetDevice(&device, a) && device == 1);
    CHECK(v.MemSwap(a, b) == VEDA_ERROR_INVALID_CONTEXT);
    CHECK(v.MemFree((VEDAdeviceptr)(9ull << 59)) == VEDA_ERROR_INVALID_DEVICE);
    CHECK(v.MemFree(NULL) == VEDA_ERROR_INVALID_VALUE);
    end();
}

/* The device is busy, and nothing of this waits for it. */
static void test_async(void) {
    uint8_t out[64];
    begin();
    VEDAdeviceptr a = alloc(64), known = alloc(64);
    CHECK(!v.MemcpyHtoD(known, kernel_text, 64));
    hold();
    VEDAdeviceptr b = alloc(64), c = alloc(64), delayed = alloc(0);
    CHECK(!v.MemsetD8Async(b, 7, 64, 0) && !v.MemsetD64Async(c, ~0ull, 8, 0));
    CHECK(!v.MemcpyDtoDAsync(a + 32, b, 32, 0) && !v.MemcpyAsync(a, c + 8, 32, 0));
    CHECK(!v.MemSwapAsync(a, b, 0) && !v.MemFreeAsync(a, 0) && !v.MemFreeAsync(delayed, 0));
    CHECK(!v.MemcpyDtoHAsync(out, known, 64, 0)); /* the host knows its address */
    release();
    CHECK(!memcmp(out, kernel_text, 64));
    CHECK(!v.MemcpyDtoH(out, b, 64) && out[0] == 255 && out[31] == 255 && out[32] == 7 &&
          out[63] == 7);
    end();
}

static void *let_go_later(void *unused) {
    (void)unused;
    usleep(30000);
    int fd = open(flag_path, O_CREAT | O_WRONLY, 0600);
    if (CHECK(fd >= 0)) close(fd);
    return NULL;
}

static void test_first_copy_waits(void) {
    pthread_t thread;
    char data[16] = "data";
    begin();
    hold();
    VEDAdeviceptr at = alloc(16);
    REQUIRE(!pthread_create(&thread, NULL, let_go_later, NULL));
    CHECK(!v.MemcpyHtoDAsync(at, data, 16, 0));
    CHECK(!access(flag_path, F_OK)); /* the kernel has ended */
    REQUIRE(!pthread_join(thread, NULL));
    CHECK(!v.StreamSynchronize(0) && !v.ArgsDestroy(holding));
    hold();
    CHECK(!v.MemcpyHtoDAsync(at, data, 16, 0)); /* the second one does not wait */
    release();
    end();
}

static void test_bounds(void) {
    char data[64] = "";
    begin();
    VEDAdeviceptr at = alloc(64), other = alloc(64);
    CHECK(!v.MemcpyHtoD(at + 60, data, 4) && !v.MemcpyHtoD(at + 64, data, 0));
    CHECK(v.MemcpyHtoD(at + 60, data, 5) == VEDA_ERROR_OUT_OF_BOUNDS);
    CHECK(v.MemcpyDtoHAsync(data, at, 65, 0) == VEDA_ERROR_OUT_OF_BOUNDS);
    CHECK(v.MemcpyDtoH(data, at - 1, 1) == VEDA_ERROR_UNKNOWN_VPTR); /* another index */
    CHECK(v.MemcpyHtoD(NULL, data, 1) == VEDA_ERROR_INVALID_VALUE);
    CHECK(v.MemcpyHtoD(at, NULL, 1) == VEDA_ERROR_INVALID_VALUE);
    CHECK(v.MemcpyHtoDAsync(at, data, 1, 3) == VEDA_ERROR_UNKNOWN_STREAM);
    CHECK(v.MemFree(at + 1) == VEDA_ERROR_OFFSETTED_VPTR_NOT_ALLOWED);
    /* The device checks the bounds of these. */
    CHECK(!v.MemcpyDtoDAsync(at, other + 1, 64, 0) &&
          v.StreamSynchronize(0) == VEDA_ERROR_OUT_OF_BOUNDS);
    CHECK(v.MemsetD32(at + 4, 0, 16) == VEDA_ERROR_OUT_OF_BOUNDS && !v.MemsetD32(at + 4, 0, 15));
    CHECK(!v.StreamSynchronize(0)); /* an error is returned once, and the context is fine */
    CHECK(!v.MemFree(at) && v.MemFree(at) == VEDA_ERROR_UNKNOWN_VPTR);
    CHECK(v.MemcpyDtoH(data, at, 1) == VEDA_ERROR_UNKNOWN_VPTR);
    CHECK(v.MemsetD8(at, 0, 1) == VEDA_ERROR_UNKNOWN_VPTR);
    end();
}

static void test_delayed(void) {
    enum { N = 20 };
    unsigned char out[8] = "";
    VEDAdeviceptr at[N];
    size_t size, free_size, total;
    begin();
    for (int i = 0; i < N; i++) at[i] = alloc(0);
    CHECK(v.MemcpyHtoD(at[0], out, 1) == VEDA_ERROR_UNKNOWN_PPTR); /* not yet */
    CHECK(!v.MemSize(&size, at[0]) && size == 0);
    for (int64_t i = 1; i < N; i++) CHECK(!launch("grow", "vi", at[i], 100 * i));
    CHECK(!v.MemcpyDtoH(out, at[3] + 5, 8) && out[0] == 5 && out[7] == 12);
    CHECK(v.MemcpyDtoH(out, at[3] + 293, 8) == VEDA_ERROR_OUT_OF_BOUNDS);
    for (size_t i = 0; i < N; i++) CHECK(!v.MemSize(&size, at[i]) && size == 100 * i);
    CHECK(!v.MemGetInfo(&free_size, &total) && total - free_size == 19000 && total == 64u << 20);
    CHECK(call("grow", "vi", at[1], (int64_t)100) == VEDA_ERROR_VPTR_ALREADY_ALLOCATED);
    for (int i = 0; i < N; i++) CHECK(!v.MemFreeAsync(at[i], 0)); /* also the first one */
    CHECK(!v.StreamSynchronize(0));
    CHECK(call("grow", "vi", at[1], (int64_t)8) ==
          0); /* the device does not know what the host knows */
    end();
}

static void test_swap(void) {
    char out[8];
    begin();
    VEDAdeviceptr a = alloc(8), b = alloc(4), c = alloc(0);
    size_t size;
    CHECK(!v.MemcpyHtoD(a, "aaaaaaa", 8) && !v.MemSwap(a, b)); /* one is known, one is not */
    CHECK(!v.MemcpyDtoH(out, b, 8) && !strcmp(out, "aaaaaaa"));
    CHECK(v.MemcpyHtoD(a, "aaaaaaa", 8) == VEDA_ERROR_OUT_OF_BOUNDS && !v.MemcpyHtoD(a, "bbb", 4));
    CHECK(!v.MemSwap(b, c) && !v.MemcpyDtoH(out, c, 8) && !strcmp(out, "aaaaaaa"));
    CHECK(!v.MemSize(&size, b) && size == 0 && !v.MemFree(b) && !v.MemFree(a) && !v.MemFree(c));
    CHECK(v.MemSwap(a, c) == VEDA_ERROR_UNKNOWN_VPTR);
    end();
}

/* The device finds that there is no memory; the host learns it when it needs the address. */
static void test_out_of_memory(void) {
    char data[1] = "";
    void *p = data;
    begin();
    VEDAdeviceptr a = alloc(HEAP - 100), b = alloc(101), c = alloc(64);
    CHECK(!v.StreamSynchronize(0) && !v.MemcpyHtoD(a, data, 1) && !v.MemcpyHtoD(c, data, 1));
    CHECK(v.MemcpyHtoD(b, data, 1) == VEDA_ERROR_OUT_OF_MEMORY && !v.MemPtr(&p, b) && !p);
    CHECK(v.MemsetD8(b, 0, 1) == VEDA_ERROR_OUT_OF_MEMORY);
    CHECK(!v.MemFree(a) && !v.MemFree(b));
    b = alloc(101);
    CHECK(!v.MemcpyHtoD(b, data, 1));
    CHECK(v.MemAlloc(&a, 1ull << 37) ==
          VEDA_ERROR_OUT_OF_MEMORY); /* no offset would reach its end */
    end();
}

static void test_fills(void) {
    uint64_t out[8];
    begin();
    VEDAdeviceptr at = alloc(64);
    CHECK(!v.MemsetD8(at, 1, 64) && !v.MemsetD16(at + 2, 0x1234, 1) && !v.MemsetD32(at + 4, 5, 1));
    CHECK(!v.MemsetD64(at + 8, 6, 2) && !v.MemsetD128(at + 32, 7, 8, 2));
    CHECK(!v.MemcpyDtoH(out, at, 64) && out[0] == 0x0000000512340101 && out[1] == 6 && out[2] == 6);
    CHECK(out[3] == 0x0101010101010101 && out[4] == 7 && out[5] == 8 && out[6] == 7 && out[7] == 8);
    end();
}

static void test_other_device(void) {
    char out[8] = "";
    VEDAcontext c;
    begin();
    VEDAdeviceptr a = alloc(8), b;
    CHECK(!v.CtxCreate(&c, 0, 1));
    b = alloc(8);
    CHECK(!v.MemcpyHtoD(a, "message", 8) && !v.MemcpyDtoD(b, a, 8) && !v.MemcpyDtoH(out, b, 8));
    CHECK_TEXT(out, "message");
    end();
}

/* ---- Kernels ---- */

static void test_modules(void) {
    VEDAmodule other;
    VEDAfunction f;
    begin();
    CHECK(v.ModuleLoad(&other, "/nowhere.so") == VEDA_ERROR_MODULE_NOT_FOUND);
    CHECK(v.ModuleGetFunction(&f, module, "nothing") == VEDA_ERROR_FUNCTION_NOT_FOUND && !f.ptr);
    CHECK(!v.ModuleGetFunction(&f, module, "next") && f.ptr && !strcmp(f.kernel, "next"));
    CHECK(call("next", "") == 1 && call("next", "") == 2 && call("last", "") == 2); /* one object */
    CHECK(!v.ModuleUnload(module) && v.ModuleUnload(NULL) == VEDA_ERROR_INVALID_MODULE);
    CHECK(v.ModuleUnload(module) == VEDA_ERROR_UNKNOWN_MODULE);
    CHECK(!v.ModuleLoad(&module, module_path) && call("last", "") == 0);
    setenv("VE_LD_LIBRARY_PATH", folder, 1);
    CHECK(!v.ModuleLoad(&other, strrchr(module_path, '/') + 1) && !v.ModuleUnload(other));
    unsetenv("VE_LD_LIBRARY_PATH");
    CHECK(!v.CtxDestroy(context) && v.ModuleUnload(module) == VEDA_ERROR_UNKNOWN_MODULE);
    end();
}

static void test_many_args(void) {
    enum { N = 40 };
    VEDAfunction f;
    VEDAargs args;
    uint64_t value = 0, expected = 0;
    begin();
    CHECK(!v.ModuleGetFunction(&f, module, "many") && !v.ArgsCreate(&args));
    for (int i = N - 1; i >= 0; i--) { /* in any order */
        CHECK(!v.ArgsSetI64(args, i, 1000 - 37 * i));
        if (i) CHECK(v.LaunchKernelEx(f, 0, args, 0, NULL) == VEDA_ERROR_INVALID_ARGS);
        expected += (uint64_t)((1000 - 37 * i) * (i + 1));
    }
    CHECK(!v.LaunchKernelEx(f, -1, args, 0, &value) && value == expected);
    CHECK(!v.LaunchKernelEx(f, 0, args, 1, &value) && !v.CtxSynchronize());
    CHECK(!v.ArgsCreate(&args) && v.ArgsSetU8(args, -1, 0) == VEDA_ERROR_INVALID_ARGS);
    CHECK(v.ArgsSetU8(args, 1 << 20, 0) == VEDA_ERROR_INVALID_ARGS && !v.ArgsDestroy(args));
    CHECK(v.ArgsSetI8(NULL, 0, 0) == VEDA_ERROR_INVALID_ARGS &&
          v.ArgsDestroy(NULL) == VEDA_ERROR_INVALID_ARGS);
    end();
}

static void test_kinds(void) {
    VEDAfunction f;
    VEDAargs a;
    uint64_t value = 0;
    begin();
    CHECK(!v.ModuleGetFunction(&f, module, "kinds") && !v.ArgsCreate(&a));
    CHECK(!v.ArgsSetI8(a, 0, -1) && !v.ArgsSetU8(a, 1, 255) && !v.ArgsSetF32(a, 2, 0.5f));
    CHECK(!v.ArgsSetI16(a, 3, -2) && !v.ArgsSetU16(a, 4, 65535) && !v.ArgsSetF64(a, 5, -0.25));
    CHECK(!v.ArgsSetI32(a, 6, -3) && !v.ArgsSetU32(a, 7, 4000000000u) && !v.ArgsSetI64(a, 8, -4));
    CHECK(!v.ArgsSetU64(a, 9, 1ull << 63) && !v.ArgsSetF32(a, 10, 1.5f) &&
          !v.ArgsSetF64(a, 11, 1e300));
    for (int i = 0; i < 5; i++) CHECK(!v.ArgsSetF32(a, 12 + i, (float)(i + 2)));
    CHECK(!v.ArgsSetF64(a, 17, 7));
    CHECK(!v.LaunchKernelEx(f, 0, a, 1, &value) && !v.StreamSynchronize(0) && value == 1);
    end();
}

static void test_stack_args(void) {
    int64_t in[3] = {1, 2, 3}, inout[3] = {10, 20, 30}, out[3] = {0};
    begin();
    CHECK(
        !launch("stack", "IBOi", in, sizeof in, inout, sizeof inout, out, sizeof out, (int64_t)3));
    in[0] = 50; /* was read by the launch */
    CHECK(!v.StreamSynchronize(0));
    CHECK(out[0] == 2 && out[2] == 4 && inout[0] == 20 && inout[2] == 60 && in[0] == 50 &&
          in[1] == 2);
    CHECK(launch("give", "I", in, (size_t)(64 << 20) + 1) == VEDA_ERROR_INVALID_ARGS);
    end();
}

static void test_pointer_args(void) {
    float data[4] = {1, 2, 3, 4}, out[4];
    begin();
    VEDAdeviceptr at = alloc(16);
    CHECK(!v.MemcpyHtoDAsync(at, data, 16, 0) && !launch("scale", "vfi", at + 4, 2.5, (int64_t)3));
    CHECK(!launch("add", "pii", at, (int64_t)0, (int64_t)16) && !v.MemcpyDtoHAsync(out, at, 16, 0));
    CHECK(!v.StreamSynchronize(0) && out[0] == 1 && out[1] == 5 && out[3] == 10);
    CHECK(launch("add", "p", (VEDAdeviceptr)(77ull << 37)) == VEDA_ERROR_UNKNOWN_VPTR);
    end();
}

static void test_device_functions(void) {
    begin();
    uint64_t line = call("functions", "vvv", alloc(64), alloc(32), alloc(0));
    if (!CHECK(!line)) fprintf(stderr, "    line %d of the kernels\n", (int)line);
    end();
}

static void test_results(void) {
    VEDAargs args;
    uint64_t value = 0;
    begin();
    CHECK(!launch("give", "i", (int64_t)0) && !v.StreamSynchronize(0));
    CHECK(!launch("give", "i", (int64_t)VEDA_ERROR_TODO) && !launch("give", "i", (int64_t)3));
    CHECK(v.StreamSynchronize(0) == VEDA_ERROR_TODO && !v.StreamSynchronize(0)); /* the first one */
    CHECK(call("give", "i", (int64_t)-5) ==
          (uint64_t)-5); /* with a place for the result it is no error */
    CHECK(!v.ArgsCreate(&args) &&
          v.LaunchKernelEx((VEDAfunction){0}, 0, args, 0, &value) == VEDA_ERROR_UNKNOWN_KERNEL);
    CHECK(!v.ArgsDestroy(args));
    CHECK(!launch_often("give", 5000) &&
          !v.StreamSynchronize(0)); /* more than the device holds results */
    end();
    setenv("SOL_VEDA_EXACT", "1", 1);
    begin();
    CHECK(!launch("give", "i", (int64_t)VEDA_ERROR_TODO) && !v.StreamSynchronize(0));
    CHECK(v.CtxSetCurrent(NULL) == VEDA_ERROR_INVALID_CONTEXT);
    unsetenv("SOL_VEDA_EXACT");
    end();
}

/* Results and errors are those of a stream. */
static void test_streams(void) {
    VEDAargs args;
    VEDAfunction f;
    begin_mode(SETTINGS, VEDA_CONTEXT_MODE_SCALAR);
    CHECK(!v.ModuleGetFunction(&f, module, "give") && !v.ArgsCreate(&args));
    CHECK(!v.ArgsSetI64(args, 0, VEDA_ERROR_TODO) && !v.LaunchKernel(f, 1, args));
    CHECK(!v.StreamSynchronize(0) && v.StreamSynchronize(1) == VEDA_ERROR_TODO);
    CHECK(v.LaunchKernel(f, 2, args) == VEDA_ERROR_UNKNOWN_STREAM);
    CHECK(!v.LaunchKernel(f, 1, args) && v.CtxSynchronize() == VEDA_ERROR_TODO);
    CHECK(v.LaunchKernel(f, -1, args) == VEDA_ERROR_TODO && !v.ArgsDestroy(args));
    end();
}

/* ---- The host's functions ---- */

static uint64_t host_function(void *user) {
    *(int *)user *= 10;
    return 42;
}

static pthread_t callback_thread;
static void callback(VEDAstream stream, VEDAresult result, void *user) {
    CHECK(stream == 0);
    callback_thread = pthread_self();
    *(int *)user = (int)result;
}

static void test_host_functions(void) {
    int number = 3, result = -1;
    uint64_t value = 0;
    char out[2];
    begin();
    VEDAdeviceptr at = alloc(2);
    CHECK(!v.MemcpyHtoD(at, "x", 2));
    CHECK(!v.LaunchHostFuncEx(0, host_function, &number, &value) &&
          !v.LaunchHostFunc(0, host_function, &number));
    CHECK(!v.MemcpyDtoHAsync(out, at, 2, 0) && !v.StreamAddCallback(0, callback, &result, 0));
    CHECK(number == 300 && value == 42 && out[0] == 'x' &&
          result == VEDA_SUCCESS); /* it has waited */
    CHECK(pthread_equal(callback_thread, pthread_self()));
    CHECK(!launch("give", "i", (int64_t)VEDA_ERROR_TODO) &&
          !v.StreamAddCallback(0, callback, &result, 0));
    CHECK(result == VEDA_ERROR_TODO && !v.StreamSynchronize(0));
    end();
}

/* ---- Faults ---- */

static void test_death(void) {
    char data[4] = "abc", out[4] = "";
    VEDAcontext first, other;
    begin();
    first = context;
    VEDAdeviceptr lost = alloc(4), at;
    CHECK(!v.MemcpyHtoD(lost, data, 4) && !v.CtxCreate(&other, 0, 1));
    at = alloc(4);
    CHECK(!v.MemcpyHtoD(at, data, 4) && !v.CtxSetCurrent(first));
    CHECK(!launch("crash", "") && v.StreamSynchronize(0) == VEDA_ERROR_VEO_COMMAND_EXCEPTION);
    CHECK(v.MemcpyDtoH(out, lost, 4) == VEDA_ERROR_VEO_COMMAND_EXCEPTION);
    CHECK(v.StreamQuery(0) == VEDA_ERROR_VEO_COMMAND_EXCEPTION);
    CHECK(v.StreamSynchronize(0) == VEDA_ERROR_VEO_COMMAND_EXCEPTION);
    CHECK(!v.MemcpyDtoH(out, at, 4) && !strcmp(out, "abc"));     /* the other device goes on */
    CHECK(!v.CtxDestroy(first) && !v.CtxCreate(&context, 0, 0)); /* and so does a new context */
    CHECK(!v.ModuleLoad(&module, module_path) && call("give", "i", (int64_t)5) == 5);
    end();
    begin_mode(SETTINGS ",die=6", VEDA_CONTEXT_MODE_OMP);
    (void)launch_often("give", 8);
    CHECK(v.StreamSynchronize(0) == VEDA_ERROR_VEO_COMMAND_EXCEPTION);
    end();
}

/* ---- Everything, against a model ---- */

#define SLOTS 8
#define ROOM 5000
static struct slot {
    VEDAdeviceptr at;
    size_t size;
    uint8_t is[ROOM];
} slots[SLOTS];

static uint64_t random_state = 88172645463325252ull;
static size_t random_below(size_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % n;
}

static void random_alloc(struct slot *s) {
    size_t size = 1 + random_below(ROOM);
    s->at = alloc(random_below(2) ? size : 0);
    CHECK(!launch("grow", "vi", s->at, (int64_t)size) || true);
    (void)v.StreamSynchronize(0); /* ALREADY_ALLOCATED, if it was not delayed */
    s->size = size;
    for (size_t i = 0; i < size; i++) s->is[i] = (uint8_t)i;
    CHECK(!v.MemcpyHtoD(s->at, s->is, size));
}

static void random_copy(struct slot *s, const struct slot *from) {
    size_t n = random_below(s->size < from->size ? s->size : from->size);
    size_t to_offset = random_below(s->size - n + 1),
           from_offset = random_below(from->size - n + 1);
    CHECK(!v.MemcpyDtoDAsync(s->at + to_offset, from->at + from_offset, n, 0));
    memmove(s->is + to_offset, from->is + from_offset, n);
}

static void random_change(struct slot *s) {
    static uint8_t data[ROOM];
    size_t n = random_below(s->size), offset = random_below(s->size - n + 1);
    if (random_below(2)) {
        for (size_t i = 0; i < n; i++) data[i] = (uint8_t)random_below(256);
        CHECK(!v.MemcpyHtoD(s->at + offset, data, n));
        memcpy(s->is + offset, data, n);
    } else {
        CHECK(!launch("add", "pii", s->at + offset, (int64_t)3, (int64_t)n));
        for (size_t i = 0; i < n; i++) s->is[offset + i] += 3;
    }
}

static void random_swap(struct slot *a, struct slot *b) {
    struct slot s = *a;
    CHECK(!v.MemSwapAsync(a->at, b->at, 0));
    *a = *b;
    *b = s;
    b->at = a->at; /* the pointers stay, the contents change */
    a->at = s.at;
}

static void random_step(void) {
    static uint8_t out[ROOM];
    struct slot *s = &slots[random_below(SLOTS)], *other = &slots[random_below(SLOTS)];
    if (!s->size) {
        random_alloc(s);
        return;
    }
    switch (random_below(6)) {
    case 0:
        CHECK(!v.MemFreeAsync(s->at, 0));
        s->size = 0;
        break;
    case 1: CHECK(!v.MemcpyDtoH(out, s->at, s->size) && !memcmp(out, s->is, s->size)); break;
    case 2:
        if (other->size && other != s) random_swap(s, other);
        break;
    case 3:
        if (other->size && other != s) random_copy(s, other);
        break;
    default: random_change(s); break;
    }
}

static void test_random(void) {
    uint8_t out[ROOM];
    begin();
    for (int i = 0; i < 400; i++) random_step();
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].size)
            CHECK(!v.MemcpyDtoH(out, slots[i].at, slots[i].size) &&
                  !memcmp(out, slots[i].is, slots[i].size));
    end();
}

static void test(const char *name, void (*function)(void)) {
    double start = os_now();
    function();
    if (getenv("TEST_TIMES")) printf("%-30s %.2f s\n", name, os_now() - start);
}

int main(void) {
    const char *compiler, *version;
    if (check_is_emulated("the stand-in for VEDA")) return check_done();
    if (jit_compiler(&compiler, &version)) {
        printf("left out without a C compiler: the stand-in for VEDA\n");
        return check_done();
    }
    open_library();
    compile_kernels();
#define TEST(name) test(#name, test_##name)
    TEST(errors);
    TEST(init);
    TEST(visible);
    TEST(attributes);
    TEST(modes);
    TEST(stack);
    TEST(destroy);
    TEST(leaks);
    TEST(layout);
    TEST(async);
    TEST(first_copy_waits);
    TEST(bounds);
    TEST(delayed);
    TEST(swap);
    TEST(out_of_memory);
    TEST(fills);
    TEST(other_device);
    TEST(modules);
    TEST(many_args);
    TEST(kinds);
    TEST(stack_args);
    TEST(pointer_args);
    TEST(device_functions);
    TEST(results);
    TEST(streams);
    TEST(host_functions);
    TEST(death);
    TEST(random);
    (void)unlink(module_path);
    (void)unlink(flag_path);
    (void)rmdir(folder);
    return check_done();
}

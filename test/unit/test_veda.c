/*
 * test/veda: the library, its devices, contexts, modules, kernels, host functions, and what happens when a device dies.
 */
#include "veda_user.h"

/* ---- The library and its devices ---- */

/* Numbers are those of the real library, at both ends and in the middle. */
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

/* Nothing works before vedaInit, which is allowed once. */
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

/* Lists of hardware ids; an empty list of the user is no list, that of a scheduler is empty. At most 16. */
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

/* OMP has one stream and all cores, SCALAR a stream per core and one thread for each kernel. */
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

/* The stack belongs to the thread; creating pushes, setting replaces the top. */
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

/* VEDA_MEM_TRACE lists what was not freed when a context ends. */
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

/* ---- Kernels ---- */

/* The functions of a module share its variables, as it is one object. */
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

/* More arguments than there are registers; each gap is an error. */
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

/* Each type at its end of the range, and floats beyond the registers' number. */
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

/* Copies go in when the kernel is launched, and out when the caller waits. */
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

/* A kernel gets a virtual pointer, or a raw one; both with an offset. */
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

/* A result that is not 0 is an error of the next synchronization, once. */
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

/* Host functions run in the order of the stream; a callback waits, and runs here. */
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

/* Only the device whose process dies is lost, and a new context revives it. */
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

int main(void) {
    if (!open_veda()) return check_done();
    TEST(errors);
    TEST(init);
    TEST(visible);
    TEST(attributes);
    TEST(modes);
    TEST(stack);
    TEST(destroy);
    TEST(leaks);
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
    return close_veda();
}

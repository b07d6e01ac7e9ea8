/*
 * test/veda: virtual pointers, copies and fills; test_random compares them with a simple model.
 */
#include "veda_user.h"

/* ---- Virtual pointers ---- */

/* 5 bits for the device, 22 for the index, 37 for the offset, with which one can calculate. */
static void check_layout(int bits) {
    VEDAdeviceptr a, b, base;
    VEDAdevice device;
    VEDAcontext c;
    size_t size;
    void *p, *q;
    begin();
    a = alloc(100);
    b = alloc(100);
    CHECK((uint64_t)a == 1ull << bits &&
          (uint64_t)b == 2ull << bits); /* device 0; index 0 is reserved */
    CHECK(!v.MemPtr(&p, a) && !v.MemPtrSize(&q, &size, a + 7) && size == 100);
    CHECK((char *)q == (char *)p + 7);
    CHECK(!v.MemGetAddressRange(&base, &size, a + 7) && base == a && size == 100);
    CHECK(v.MemSize(&size, (VEDAdeviceptr)5) == VEDA_ERROR_UNKNOWN_VPTR); /* index 0 */
    CHECK(v.MemFree(a) == 0 && alloc(1) != a); /* indices are not used again soon */
    CHECK(!v.CtxCreate(&c, 0, 1));
    a = alloc(100);
    CHECK((uint64_t)a == (1ull << (bits + 22) | 1ull << bits) && !v.MemGetDevice(&device, a) &&
          device == 1);
    CHECK(v.MemSwap(a, b) == VEDA_ERROR_INVALID_CONTEXT);
    CHECK(v.MemFree((VEDAdeviceptr)(9ull << 59)) == VEDA_ERROR_INVALID_DEVICE);
    CHECK(v.MemFree(NULL) == VEDA_ERROR_INVALID_VALUE);
    CHECK(v.MemAlloc(&a, 1ull << bits) ==
          VEDA_ERROR_OUT_OF_MEMORY); /* no offset would reach its end */
    end();
}

static void test_layout(void) {
    check_layout(37);
    setenv("SOL_VEDA_OFFSET_BITS", "32", 1);
    check_layout(32);
    setenv("SOL_VEDA_OFFSET_BITS", "36", 1);
    CHECK(v.Init(0) == VEDA_ERROR_INVALID_VALUE);
    unsetenv("SOL_VEDA_OFFSET_BITS");
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

static void create_flag(void) {
    int fd = open(flag_path, O_CREAT | O_WRONLY, 0600);
    REQUIRE(fd >= 0);
    close(fd);
}

static void let_go(void) {
    CHECK(v.StreamQuery(0) == VEDA_ERROR_VEO_STATE_RUNNING); /* so nothing has waited */
    create_flag();
}

static void release(void) {
    let_go();
    CHECK(!v.StreamSynchronize(0));
    CHECK(!v.StreamQuery(0) && !v.ArgsDestroy(holding));
}

/* The device is busy, and nothing of this waits for it. */
static void test_async(void) {
    uint8_t out[64];
    begin();
    VEDAdeviceptr a = alloc(64), known = alloc(64);
    CHECK(!v.MemcpyHtoD(known, veda_kernels, 64));
    hold();
    VEDAdeviceptr b = alloc(64), c = alloc(64), delayed = alloc(0);
    CHECK(!v.MemsetD8Async(b, 7, 64, 0) && !v.MemsetD64Async(c, ~0ull, 8, 0));
    CHECK(!v.MemcpyDtoDAsync(a + 32, b, 32, 0) && !v.MemcpyAsync(a, c + 8, 32, 0));
    CHECK(!v.MemSwapAsync(a, b, 0) && !v.MemFreeAsync(a, 0) && !v.MemFreeAsync(delayed, 0));
    CHECK(!v.MemcpyDtoHAsync(out, known, 64, 0)); /* the host knows its address */
    release();
    CHECK(!memcmp(out, veda_kernels, 64));
    CHECK(!v.MemcpyDtoH(out, b, 64) && out[0] == 255 && out[31] == 255 && out[32] == 7 &&
          out[63] == 7);
    end();
}

static void *let_go_later(void *unused) {
    (void)unused;
    usleep(30000);
    create_flag();
    return NULL;
}

/* A copy needs the raw address: the first one learns it from the device. */
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

/* The host checks copies from and to it, the device the others. */
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

/* A kernel decides how large its output is. The host learns all sizes at once when it needs one. */
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

/* Swaps exchange sizes and addresses, whether the host knows them or not. */
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
    end();
}

/* Pointers that the host never needed, and then all of them. Each index of a freed one stays free for a while. */
static void test_many(void) {
    enum { N = 100 };
    static VEDAdeviceptr at[N];
    char out[4];
    begin();
    for (int i = 0; i < 2 * N; i++) CHECK(!v.MemFreeAsync(alloc(8), 0));
    for (int i = 0; i < N; i++) at[i] = alloc(4);
    for (int i = 0; i < N; i++) CHECK(!v.MemsetD32Async(at[i], (uint32_t)i, 1, 0));
    for (int i = 0; i < N / 2; i++) CHECK(!v.MemSwapAsync(at[i], at[N - 1 - i], 0));
    for (int i = 0; i < N; i++) {
        uint32_t is = 0;
        CHECK(!v.MemcpyDtoH(&is, at[i], 4) && is == (uint32_t)(N - 1 - i));
        CHECK(!v.MemFreeAsync(at[i], 0) && v.MemcpyDtoH(out, at[i], 4) == VEDA_ERROR_UNKNOWN_VPTR);
    }
    end();
}

/* A thread's own pointers, among those of others. */
static void *use_memory(void *number) {
    uint64_t is, value = (uint64_t)(uintptr_t)number;
    CHECK(!v.CtxSetCurrent(context));
    for (int i = 0; i < 10; i++, value += 3) {
        VEDAdeviceptr a = alloc(8), b = alloc(8);
        CHECK(!v.MemcpyHtoD(a, &value, 8) && !v.MemSwapAsync(a, b, 0));
        CHECK(!v.MemcpyDtoDAsync(a, b, 8, 0) && !v.MemcpyDtoH(&is, a, 8) && is == value);
        CHECK(!v.MemFreeAsync(a, 0) && !v.MemFree(b));
    }
    return NULL;
}

static void test_threads(void) {
    pthread_t threads[3];
    begin();
    for (uintptr_t i = 0; i < 3; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, use_memory, (void *)i));
    for (int i = 0; i < 3; i++) REQUIRE(!pthread_join(threads[i], NULL));
    end();
}

/* Values of all widths, at offsets. */
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

/* Between two devices by way of the host. */
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

/* ---- Everything, against a model ---- */

/* Allocations, and what is in them; size 0: none. Nothing of this waits but copies to the host, and first copies from it. */
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

/* Allocated by the host, or by a kernel. */
static void random_alloc(struct slot *s) {
    size_t size = 1 + random_below(ROOM);
    s->at = alloc(random_below(2) ? size : 0);
    CHECK(!launch("grow", "vi", s->at, (int64_t)size) || true);
    (void)v.StreamSynchronize(0); /* ALREADY_ALLOCATED, if it was not delayed */
    s->size = size;
    for (size_t i = 0; i < size; i++) s->is[i] = (uint8_t)i;
    CHECK(!v.MemcpyHtoD(s->at, s->is, size));
}

/* Any part of one to any place in another. */
static void random_copy(struct slot *s, const struct slot *from) {
    size_t n = random_below(s->size < from->size ? s->size : from->size);
    size_t to_offset = random_below(s->size - n + 1),
           from_offset = random_below(from->size - n + 1);
    CHECK(!v.MemcpyDtoDAsync(s->at + to_offset, from->at + from_offset, n, 0));
    memmove(s->is + to_offset, from->is + from_offset, n);
}

/* By a copy from the host, or by a kernel. */
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
    for (int i = 0; i < 300; i++) random_step();
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].size)
            CHECK(!v.MemcpyDtoH(out, slots[i].at, slots[i].size) &&
                  !memcmp(out, slots[i].is, slots[i].size));
    end();
}

int main(void) {
    if (!open_veda()) return check_done();
    TEST(layout);
    TEST(async);
    TEST(first_copy_waits);
    TEST(bounds);
    TEST(delayed);
    TEST(swap);
    TEST(out_of_memory);
    TEST(many);
    TEST(threads);
    TEST(fills);
    TEST(other_device);
    TEST(random);
    return close_veda();
}

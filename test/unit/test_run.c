/*
 * Parts of the runtime: slots that share memory, micro-batches, the copy step, and the measured limits of the machine.
 */
#include "check.h"
#include "run/micro_batch.h"
#include "run/program.h"

#include <sol/sol.h>
#include <string.h>

static uint64_t state = 88172645463325252u;
static int64_t draw(int64_t n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (int64_t)(state % (uint64_t)n);
}

#define MOST 40
struct slots {
    int n, first[MOST], last[MOST];
    int64_t size[MOST];
    size_t offset[MOST];
};

static struct slots draw_slots(void) {
    struct slots s = {.n = (int)draw(MOST)};
    for (int i = 0; i < s.n; i++) {
        s.first[i] = (int)draw(30);
        s.last[i] = s.first[i] + (int)draw(8);
        s.size[i] = draw(5) ? draw(100000) : 0;
    }
    return s;
}

static bool share_bytes(const struct slots *s, int a, int b) {
    int64_t a0 = (int64_t)s->offset[a], b0 = (int64_t)s->offset[b];
    return s->size[a] && s->size[b] && a0 < b0 + s->size[b] && b0 < a0 + s->size[a];
}

/* The largest number of bytes that are alive at one time. No placement can be smaller. */
static int64_t live_bytes(const struct slots *s) {
    int64_t most = 0;
    for (int t = 0; t < 40; t++) {
        int64_t sum = 0;
        for (int i = 0; i < s->n; i++) sum += s->first[i] <= t && t <= s->last[i] ? s->size[i] : 0;
        most = max_i64(most, sum);
    }
    return most;
}

static void test_placing(void) {
    for (int round = 0; round < 500; round++) {
        struct slots s = draw_slots();
        size_t total = memory_place(s.n, s.size, s.first, s.last, s.offset);
        CHECK((int64_t)total >= live_bytes(&s));
        for (int a = 0; a < s.n; a++) {
            CHECK(s.offset[a] % 64 == 0);
            CHECK((int64_t)s.offset[a] + s.size[a] <= (int64_t)total);
            for (int b = 0; b < a; b++) {
                bool together = s.first[a] <= s.last[b] && s.first[b] <= s.last[a];
                CHECK(!together || !share_bytes(&s, a, b));
            }
        }
    }
}

/* If memory for the search is out, the placement is larger, but still correct. */
static void test_placing_without_memory(void) {
    struct slots s = draw_slots();
    while (s.n < 2) s = draw_slots();
    mem_fail_at = 1;
    size_t total = memory_place(s.n, s.size, s.first, s.last, s.offset);
    mem_fail_at = 0;
    CHECK((int64_t)total >= live_bytes(&s));
    for (int a = 0; a < s.n; a++)
        for (int b = 0; b < a; b++) CHECK(!share_bytes(&s, a, b));
}

/* For random steps the division is valid; for simple cases it is the expected one (micro_batch.h). */
static void test_portions(void) {
    for (int round = 0; round < 300; round++) {
        struct traffic step[MOST], same[MOST];
        int64_t micro_batch[MOST], batch = draw(3) ? draw(40) : draw(2000);
        int n = (int)draw(MOST);
        for (int i = 0; i < n; i++)
            step[i] = (struct traffic){draw(10 << 20), draw(5 << 20), draw(20 << 20), draw(4) > 0};
        micro_batch_choose(micro_batch_cache, n, step, batch, micro_batch);
        for (int i = 0; i < n; i++) {
            CHECK(micro_batch[i] <= batch && (micro_batch[i] > 0 || !batch));
            CHECK(step[i].by_sample || micro_batch[i] == batch);
        }
        const struct traffic cases[] = {{1000, 1000, 0, true},         /* small: undivided */
                                        {20 << 20, 20 << 20, 0, true}, /* large: single samples */
                                        {20 << 20, 20 << 20, (int64_t)1 << 40, true}}; /* weights */
        const int64_t expected[] = {batch, min_i64(batch, 1), batch};
        for (int c = 0; c < COUNT(cases); c++) {
            for (int i = 0; i < n; i++) same[i] = cases[c];
            micro_batch_choose(micro_batch_cache, n, same, batch, micro_batch);
            for (int i = 0; i < n; i++) CHECK(micro_batch[i] == expected[c]);
            micro_batch_choose(0, n, same, batch, micro_batch);
            for (int i = 0; i < n; i++) CHECK(micro_batch[i] == batch);
        }
    }
}

/* If memory is out while choosing, the batch is not divided. */
static void test_portions_without_memory(void) {
    const struct traffic step = {20 << 20, 0, 0, true};
    int64_t micro_batch = 0;
    mem_fail_at = 1;
    micro_batch_choose(micro_batch_cache, 1, &step, 8, &micro_batch);
    mem_fail_at = 0;
    CHECK(micro_batch == 8);
}

/* Copies elements of `t.element` bytes by a random table, and compares with the definition in program.h. */
static void test_table(int element) {
    static char in[4096 * 8], out[4096 * 8];
    const char zero[8] = {0};
    int32_t base[64];
    struct copy_table t = {.element = element,
                           .n_outer = (int)draw(4) + 1,
                           .n_pixels = (int)draw(6) + 1,
                           .lanes = draw(2) ? 16 : 1,
                           .pixel_stride = 1 + draw(3),
                           .base = base};
    for (int i = 0; i < COUNT(in); i++) in[i] = (char)(draw(255) + 1);
    for (int i = 0; i < t.n_outer * t.lanes; i++) base[i] = draw(6) ? (int32_t)draw(900) : -1;
    if (draw(2))
        for (int i = 1; i < t.n_outer * t.lanes; i++) base[i] = base[0] < 0 ? -1 : base[0] + i;
    int64_t image = (int64_t)t.n_outer * t.n_pixels * t.lanes, arg[] = {2, 1000, image + 5};
    struct step step = {.data = &t};
    memset(out, 0, sizeof out);
    step_copy.run(&step, (void *[]){in, out}, arg, NULL, 0, step_copy.n_tasks(&step, arg));
    for (int64_t i = 0; i < 2 * image; i++) {
        int64_t n = i / image, l = i % t.lanes, p = i / t.lanes % t.n_pixels,
                o = i % image / (t.n_pixels * t.lanes), from = base[o * t.lanes + l];
        const char *expected =
            from < 0 ? zero : &in[(n * arg[1] + from + p * t.pixel_stride) * element];
        CHECK(!memcmp(&out[(n * arg[2] + i % image) * element], expected, (size_t)element));
    }
}

static void test_copy(void) {
    for (int round = 0; round < 200; round++)
        for (int element = 1; element <= 8; element *= 2) test_table(element);
}

/* Buffers whose size is not a multiple of a thread's chunk are read completely, and not beyond their end. */
static void test_rates(void) {
    for (int threads = 1; threads <= 3; threads += 2) {
        sol_set_threads(threads);
        CHECK(sol_measure_flops() > 1e7);
        CHECK(sol_measure_bandwidth(1) > 1e6);
        CHECK(sol_measure_bandwidth(1000003) > 1e6);
    }
    sol_set_threads(0);
}

int main(void) {
    test_placing();
    test_placing_without_memory();
    test_portions();
    test_portions_without_memory();
    test_copy();
    test_rates();
    return check_done();
}

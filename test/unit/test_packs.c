/* Packs: slots are made, shared and freed in random order. The bytes of each slot stay correct; equal slots are stored once. */
#include "check.h"
#include "run/packs.h"

#include <pthread.h>
#include <sol/sol.h>

static uint64_t next_draw(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

/* ---- The table ---- */

#define SLOTS 6
#define KINDS 5 /* of contents of a slot */
#define HOLDERS 12
#define ROUNDS 300

struct holder {
    int n, kind[SLOTS];
    size_t offset[SLOTS + 1];
    char *slot[SLOTS];
    struct pack_block *block[SLOTS];
};

static struct packs packs_of(struct holder *h) {
    return (struct packs){h->n, h->offset, h->slot, h->block};
}

/* Kinds 2k and 2k + 2 differ in the one byte at 1000, which a hash of samples may miss. */
static char byte_of(int slot, int kind, size_t i) {
    return (char)(slot * 31 + (int)(i % 251) + (i == 1000 ? kind / 2 : 0) + kind % 2 * 7);
}

static void make(struct holder *h, uint64_t *state) {
    h->n = 1 + (int)(next_draw(state) % SLOTS);
    for (int i = 0; i < h->n; i++) {
        h->kind[i] = (int)(next_draw(state) % KINDS);
        h->offset[i + 1] = h->offset[i] + (i % 3 ? 8192 + 64 * (size_t)i : 2048);
    }
    const struct packs packs = packs_of(h);
    REQUIRE(packs_alloc(&packs));
    for (int i = 0; i < h->n; i++)
        for (size_t k = 0; k < h->offset[i + 1] - h->offset[i]; k++)
            h->slot[i][k] = byte_of(i, h->kind[i], k);
    packs_deduplicate(&packs);
}

static bool is_right(const struct holder *h) {
    for (int i = 0; i < h->n; i++)
        for (size_t k = 0; k < h->offset[i + 1] - h->offset[i]; k++)
            if (h->slot[i][k] != byte_of(i, h->kind[i], k)) return false;
    return true;
}

static void *play(void *seed) {
    struct holder holders[HOLDERS] = {0};
    uint64_t state = 88172645463325252u + (uint64_t)(uintptr_t)seed;
    int wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct holder *h = &holders[next_draw(&state) % HOLDERS];
        struct packs packs = packs_of(h);
        packs_release(&packs);
        if (h->n) h->n = 0;
        else make(h, &state);
        for (int i = 0; i < HOLDERS; i++) wrong += !is_right(&holders[i]);
    }
    for (int i = 0; i < HOLDERS; i++) {
        struct packs packs = packs_of(&holders[i]);
        packs_release(&packs);
    }
    CHECK(wrong == 0);
    return NULL;
}

static void test_any_order(void) {
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++) REQUIRE(!pthread_create(&threads[i], NULL, play, (void *)i));
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    CHECK(packs_size() == 0);
}

/* ---- Programs ---- */

#define N 64

/* y = x w for x of `rows` rows, with w as in ONNX: the packed parameter is w transposed. */
static struct sol_program *make_program(int rows) {
    char text[512];
    snprintf(text, sizeof text,
             "model \"m\" {\n%%0 = input f32[%d,64] \"x\"\n%%1 = param f32[64,64] \"w\"\n"
             "%%2 = permute %%1 axes=[1,0]\n%%3 = linear %%0 %%2\noutput %%3 \"y\"\n}\n",
             rows);
    struct sol_model *model = NULL;
    struct sol_program *program = NULL;
    REQUIRE(!sol_model_parse(text, &model));
    REQUIRE(!sol_compile(model, NULL, &program));
    sol_model_free(model);
    return program;
}

/* Runs the program for weights of `value` and an input of ones: is the output correct? */
static bool gives(const struct sol_program *program, const struct sol_weights *weights, int rows,
                  float value) {
    static float x[8 * N], y[8 * N];
    bool right = true;
    for (int i = 0; i < rows * N; i++) x[i] = 1, y[i] = -1;
    right &= !sol_program_run(program, weights, &(int64_t){0}, (const void *[]){x}, (void *[]){y});
    for (int i = 0; i < rows * N; i++) right &= y[i] == N * value;
    return right;
}

static struct sol_weights *make_weights(const struct sol_program *program, float value) {
    static float w[N * N];
    struct sol_weights *weights = NULL;
    for (int i = 0; i < N * N; i++) w[i] = value;
    REQUIRE(!sol_weights_new(program, (const void *[]){w}, &weights));
    memset(w, 0, sizeof w);
    return weights;
}

static enum sol_status update(struct sol_weights **weights, float value) {
    static float w[N * N];
    for (int i = 0; i < N * N; i++) w[i] = value;
    return sol_weights_update(weights, (const void *[]){w});
}

/* New values take the place of the old ones, unless somebody else uses these. */
static void test_updates(void) {
    struct sol_program *program = make_program(2), *twin = make_program(3);
    struct sol_weights *weights = make_weights(program, 2), *held = weights;
    const size_t once = packs_size();
    CHECK(!update(&weights, 3) && weights == held && packs_size() == once);
    CHECK(gives(program, weights, 2, 3));
    sol_weights_retain(held);
    CHECK(!update(&weights, 4) && weights != held && packs_size() == 2 * once);
    CHECK(gives(program, weights, 2, 4) && gives(program, held, 2, 3));
    sol_weights_release(held);
    struct sol_weights *shared = make_weights(twin, 4);
    CHECK(packs_size() == once);
    CHECK(!update(&shared, 5) && packs_size() == 2 * once);
    CHECK(gives(twin, shared, 3, 5) && gives(program, weights, 2, 4));
    sol_weights_release(shared);
    sol_weights_release(weights);
    sol_program_release(program);
    sol_program_release(twin);
    CHECK(packs_size() == 0);
}

/* If memory is out, there are either the old values or none. */
static void test_failing_updates(void) {
    struct sol_program *program = make_program(2);
    for (long n = 1, failed = 1; failed; n++) {
        struct sol_weights *weights = make_weights(program, 2);
        mem_fail_at = n;
        failed = update(&weights, 3) != SOL_OK;
        mem_fail_at = 0;
        if (weights) CHECK(gives(program, weights, 2, failed ? 2 : 3));
        else CHECK(failed);
        sol_weights_release(weights);
    }
    sol_program_release(program);
    CHECK(packs_size() == 0);
}

/* Programs for all sizes share their packed parameters. New weights are shared, too, and the old ones stay valid until they are
 * released. */
static void test_programs(void) {
    struct sol_program *program[8];
    struct sol_weights *old[8], *new[8];
    for (int i = 0; i < 8; i++) program[i] = make_program(i + 1);
    for (int i = 0; i < 8; i++) old[i] = make_weights(program[i], 2);
    const size_t once = packs_size();
    CHECK(once >= N * N * 4 && once < 2 * N * N * 4);
    for (int i = 0; i < 8; i++) new[i] = make_weights(program[i], 3);
    CHECK(packs_size() == 2 * once);
    for (int i = 0; i < 8; i++) CHECK(gives(program[i], old[i], i + 1, 2));
    sol_weights_release(old[0]); /* the memory that it allocated is shared by the others */
    for (int i = 1; i < 8; i++) CHECK(gives(program[i], old[i], i + 1, 2));
    for (int i = 1; i < 8; i++) sol_weights_release(old[i]);
    CHECK(packs_size() == once);
    for (int i = 0; i < 8; i++) CHECK(gives(program[i], new[i], i + 1, 3));
    for (int i = 0; i < 8; i++) sol_weights_release(new[i]);
    for (int i = 0; i < 8; i++) sol_program_release(program[i]);
    CHECK(packs_size() == 0);
}

/* If sharing fails because memory is out, slots keep their own memory. */
static void test_failing_allocations(void) {
    uint64_t state = 1;
    for (long n = 1; n < 6; n++) {
        struct holder first = {0}, second = {0};
        make(&first, &state);
        second = first;
        const struct packs ours = packs_of(&first), theirs = packs_of(&second);
        REQUIRE(packs_alloc(&theirs));
        for (int i = 0; i < second.n; i++)
            memcpy(second.slot[i], first.slot[i], second.offset[i + 1] - second.offset[i]);
        mem_fail_at = n;
        packs_deduplicate(&theirs);
        mem_fail_at = 0;
        CHECK(is_right(&first) && is_right(&second));
        packs_release(&ours);
        CHECK(is_right(&second));
        packs_release(&theirs);
    }
    CHECK(packs_size() == 0);
}

int main(void) {
    setenv("SOL_CC", "none", 1);
    test_any_order();
    test_programs();
    test_updates();
    test_failing_updates();
    test_failing_allocations();
    return check_done();
}

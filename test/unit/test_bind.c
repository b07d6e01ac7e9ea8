/*
 * Bindings of random programs, simulated with marks in memory: the mark that a step has written for a sample is still there when a
 * later step reads it, for any division of the batch.
 */
#include "check.h"
#include "run/bind.h"
#include "run/micro_batch.h"

#include <stdlib.h>
#include <string.h>

#define STEPS 12
#define SLOTS 10
#define UNIT 64 /* bytes; the size of a slot is a number of units per sample */

static uint64_t state = 88172645463325252u;
static int64_t draw(int64_t n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (int64_t)(state % (uint64_t)n);
}

struct program {
    struct sol_program compiled; /* with the list as FORWARD */
    struct step_list list;
    struct step step[STEPS];
    struct slot slot[SLOTS];
    struct buffer_ref ptr[STEPS][SLOTS];
    int64_t units[SLOTS]; /* per sample */
    struct size stride[SLOTS];
};
static int64_t one_task(const struct step *step, const int64_t *arg) {
    (void)step, (void)arg;
    return 1;
}

/* Step i has a pointer to each slot that is alive then. The first step of a slot writes it, the later ones read it. */
static void point_to_slots(struct program *p, int i) {
    struct step *step = &p->step[i];
    int64_t bytes = 0;
    for (int s = 0; s < p->list.n_slots; s++) {
        if (p->slot[s].first > i || p->slot[s].last < i) continue;
        p->ptr[i][step->n_ptr++] =
            (struct buffer_ref){.kind = BUFFER_ARENA, .index = s, .sample_stride = &p->stride[s]};
        bytes += p->units[s] * UNIT;
    }
    step->ptr = p->ptr[i];
    step->bytes = size_add(size_scale(size_symbol(0), bytes), size_const(draw(4000)));
}

static void draw_program(struct program *p) {
    static const struct step_kind kind = {.n_tasks = one_task};
    memset(p, 0, sizeof *p);
    p->list = (struct step_list){1 + (int)draw(STEPS), p->step, (int)draw(SLOTS), p->slot};
    for (int s = 0; s < p->list.n_slots; s++) {
        p->units[s] = draw(20);
        p->slot[s].first = (int)draw(p->list.n);
        p->slot[s].last = (int)min_i64(p->list.n - 1, p->slot[s].first + draw(6));
        p->stride[s] = size_const(p->units[s] * UNIT);
        p->slot[s].size = size_scale(size_symbol(0), p->units[s] * UNIT);
    }
    for (int i = 0; i < p->list.n; i++) {
        p->step[i].kind = &kind;
        p->step[i].by_sample = draw(6) > 0;
        point_to_slots(p, i);
    }
    p->compiled.phase[FORWARD] = p->list;
    p->compiled.n_symbols = 1;
}

/* One sample of one pointer: writes the mark into its units, or checks it. */
static void play_image(const struct program *p, const struct binding *b, int i, int ptr,
                       int64_t first, int64_t image, int64_t *memory) {
    const int s = p->ptr[i][ptr].index;
    const int64_t in_micro_batch = image - first, mark = 1 + s + SLOTS * image;
    const int64_t at = b->ptr_offset[i][ptr] + first * b->ptr_sample_stride[i][ptr] +
                       in_micro_batch * p->units[s] * UNIT;
    CHECK(at >= 0 && at + p->units[s] * UNIT <= (int64_t)b->arena_size);
    for (int64_t u = 0; u < p->units[s]; u++) {
        if (p->slot[s].first == i) memory[at / UNIT + u] = mark;
        else CHECK(memory[at / UNIT + u] == mark);
    }
}

/* Visits sections, micro-batches and steps in the order of exec.c. Returns the number of steps that were run. */
static int play(const struct program *p, const struct binding *b, int64_t batch, int64_t *memory) {
    int n = 0;
    for (int s = 0; s < b->n_sections; s++) {
        const struct section *section = &b->section[s];
        for (int64_t first = 0; first < batch; first += section->micro_batch)
            for (int i = section->begin; i < section->end; i++, n++)
                for (int ptr = 0; ptr < p->step[i].n_ptr; ptr++)
                    for (int64_t k = first; k < min_i64(batch, first + section->micro_batch); k++)
                        play_image(p, b, i, ptr, first, k, memory);
    }
    return n;
}

static void test_random_programs(void) {
    static struct program p;
    int divided = 0, n_sections = 0;
    micro_batch_step = 0;
    for (int round = 0; round < 3000; round++) {
        int64_t batch = 1 + draw(9), symbols[SIZE_SYMBOLS] = {batch};
        struct binding *b = NULL;
        draw_program(&p);
        p.compiled.portion_cache = draw(12000);
        if (!CHECK(!binding_new(&p.compiled, FORWARD, symbols, &b))) continue;
        int64_t *memory = calloc(b->arena_size / UNIT + 1, sizeof *memory);
        divided += play(&p, b, batch, memory) > p.list.n;
        n_sections += b->n_sections;
        free(memory);
        binding_free(b);
    }
    printf("%d of 3000 batches divided, %d sections\n", divided, n_sections);
    CHECK(divided > 500 && n_sections > 3500);
}

int main(void) {
    test_random_programs();
    return check_done();
}

/*
 * Buffer reuse: decides which slots share memory.
 *
 *   sizes and lifetimes of slots (bind.c) -> memory_place -> offsets in the arena
 *
 * A slot lives from the step that writes it to the last step that reads it. Slots are placed one after the other into the
 * lowest gap that fits (greedy by size, Pisarchyk and Lee, arXiv 2001.03288). No order is best for all networks, and placing
 * is cheap, so several orders are tried, and the smallest arena wins.
 *
 * Invariant: two slots that are alive at the same step do not overlap.
 */
#include "run/program.h"

#define MEMORY_ALIGN 64

struct placed {
    int slot;
    int64_t begin, end;
};

/* Orders of placing: the largest size first, the largest size x lifetime first, or the earliest step first. */
enum order { BY_SIZE, BY_AREA, BY_TIME, N_ORDERS };

struct slots {
    int n;
    const int64_t *size;
    const int *first, *last;
};

static bool lives_touch(const struct slots *s, int a, int b) {
    return s->first[a] <= s->last[b] && s->first[b] <= s->last[a];
}

static double rank_of(const struct slots *s, enum order order, int slot) {
    const double size = (double)s->size[slot];
    switch (order) {
    case BY_AREA: return size * (s->last[slot] - s->first[slot] + 1);
    case BY_TIME: return -(double)s->first[slot];
    case BY_SIZE:
    case N_ORDERS: break;
    }
    return size;
}

/* Sorts slots by falling rank. The sort is stable, so that the placement is the same on every run. */
static void sort_slots(const struct slots *s, enum order order, int *sorted) {
    for (int i = 0; i < s->n; i++) {
        const double rank = rank_of(s, order, i);
        int at = i;
        for (; at > 0 && rank_of(s, order, sorted[at - 1]) < rank; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = i;
    }
}

/* The lowest offset at which `size` bytes fit between the placed slots that are alive at the same time.
 * `placed` is sorted by begin. */
static int64_t find_gap(const struct slots *s, int n, const struct placed *placed, int slot,
                        int64_t size) {
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        if (!lives_touch(s, placed[i].slot, slot)) continue;
        if (at + size <= placed[i].begin) break;
        at = max_i64(at, placed[i].end);
    }
    return at;
}

static void insert_placed(int n, struct placed *placed, struct placed item) {
    int at = n;
    for (; at > 0 && placed[at - 1].begin > item.begin; at--) placed[at] = placed[at - 1];
    placed[at] = item;
}

/* The fallback if the search gets no memory: slots share nothing, which is larger but correct. */
static size_t place_apart(int n, const int64_t *size, size_t *offset) {
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        offset[i] = at;
        at += (size_t)round_up(size[i], MEMORY_ALIGN);
    }
    return at;
}

/* One placement; returns the bytes needed. */
static size_t place(const struct slots *s, const int *sorted, struct placed *placed) {
    int64_t total = 0;
    for (int i = 0; i < s->n; i++) {
        const int64_t bytes = round_up(s->size[sorted[i]], MEMORY_ALIGN);
        const int64_t at = find_gap(s, i, placed, sorted[i], bytes);
        insert_placed(i, placed, (struct placed){sorted[i], at, at + bytes});
        total = max_i64(total, at + bytes);
    }
    return (size_t)total;
}

/* Tries all orders and keeps the smallest placement; of equal ones the first. */
static size_t place_best(const struct slots *s, int *sorted, struct placed *placed,
                         size_t *offset) {
    size_t best = SIZE_MAX;
    for (enum order order = 0; order < N_ORDERS; order++) {
        sort_slots(s, order, sorted);
        const size_t total = place(s, sorted, placed);
        if (total >= best) continue;
        for (int i = 0; i < s->n; i++) offset[placed[i].slot] = (size_t)placed[i].begin;
        best = total;
    }
    return best;
}

size_t memory_place(int n, const int64_t *size, const int *first, const int *last, size_t *offset) {
    const struct slots slots = {n, size, first, last};
    int *sorted = mem_alloc(sizeof *sorted * (size_t)n, 16);
    struct placed *placed = mem_alloc(sizeof *placed * (size_t)n, 16);
    size_t total = sorted && placed ? place_best(&slots, sorted, placed, offset)
                                    : place_apart(n, size, offset);
    mem_free(sorted);
    mem_free(placed);
    return total;
}

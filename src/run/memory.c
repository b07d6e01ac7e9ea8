/*
 * Buffer reuse: decides which intermediate values share memory.
 *
 * A value lives from the step that writes it to the last step that reads it; two values may share bytes only if
 * their lives do not touch. Values are placed largest first into the lowest gap that fits (greedy by size, Pisarchyk
 * and Lee, arXiv 2001.03288), which is within a few percent of the largest live set on real networks.
 */
#include "run/program.h"

#define MEMORY_ALIGN 64

struct placed {
    int slot;
    int64_t begin, end;
};

static bool lives_touch(const int *first, const int *last, int a, int b) {
    return first[a] <= last[b] && first[b] <= last[a];
}

/* Inserts by falling size; ties keep their order, so that the plan is the same on every run. */
static void sort_by_size(int n, const int64_t *size, int *order) {
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && size[order[at - 1]] < size[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
}

/* The lowest offset at which `size` bytes fit between the placed slots that live at the same time.
 * `placed` is sorted by begin. */
static int64_t find_gap(int n, const struct placed *placed, const int *first, const int *last,
                        int slot, int64_t size) {
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        if (!lives_touch(first, last, placed[i].slot, slot)) continue;
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

/* With no memory for the search itself every slot gets bytes of its own: larger, but right. */
static size_t place_apart(int n, const int64_t *size, size_t *offset) {
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        offset[i] = at;
        at += (size_t)round_up(size[i], MEMORY_ALIGN);
    }
    return at;
}

size_t memory_place(int n, const int64_t *size, const int *first, const int *last, size_t *offset) {
    if (n == 0) return 0;
    int *order = mem_alloc(sizeof(int) * (size_t)n, 16);
    struct placed *placed = mem_alloc(sizeof *placed * (size_t)n, 16);
    size_t total = 0;
    if (!order || !placed) {
        total = place_apart(n, size, offset);
    } else {
        sort_by_size(n, size, order);
        for (int i = 0; i < n; i++) {
            int slot = order[i];
            int64_t bytes = round_up(size[slot], MEMORY_ALIGN);
            int64_t at = find_gap(i, placed, first, last, slot, bytes);
            insert_placed(i, placed, (struct placed){slot, at, at + bytes});
            offset[slot] = (size_t)at;
            total = (size_t)max_i64((int64_t)total, at + bytes);
        }
    }
    mem_free(order);
    mem_free(placed);
    return total;
}

/*
 * A table of all packs by a sample of their bytes; equal samples are compared.
 *
 * New slots lie in one block. If others have a good part of them, what is left moves to a smaller block. Otherwise the block stays,
 * large pages and all. A block lives as long as one of its slots is used; so it may keep other slots that nobody reads any more.
 *
 * Invariant: the table and all counts are under `lock`. Bytes are read without it, by those who have counted the block.
 */
#include "run/packs.h"

#include "base/lock.h"
#include "run/bind.h"

#include <string.h>

#define HEADS 1024
#define LEAST 4096 /* bytes; a bias is not worth a place in the table */

struct pack {
    struct pack *next;
    uint64_t sample;
    const char *at;
    size_t size;
    struct pack_block *block;
};

struct pack_block {
    int n_users;
    size_t size;
    char *memory;
    int n;
    struct pack pack[];
};

static struct lock lock = LOCK_INITIALIZER;
static struct pack *table[HEADS];
static size_t total;

size_t packs_size(void) {
    lock_take(&lock);
    const size_t size = total;
    lock_release(&lock);
    return size;
}

/* ---- Blocks ---- */

/* For `n` slots, which are its users. */
static struct pack_block *new_block(size_t size, int n) {
    struct pack_block *block = mem_alloc(sizeof *block + sizeof(struct pack) * (size_t)n, 16);
    char *memory = mem_alloc(size + 64, 4096);
    if (!block || !memory) {
        mem_free(block);
        mem_free(memory);
        return NULL;
    }
    *block = (struct pack_block){.n_users = n, .size = size, .memory = memory};
    workspace_advise_huge(memory, size);
    lock_take(&lock);
    total += size;
    lock_release(&lock);
    return block;
}

static struct pack **head_of(uint64_t sample) { return &table[sample % HEADS]; }

/* The lock is held. */
static void unlink_packs(struct pack_block *block) {
    for (int i = 0; i < block->n; i++) {
        struct pack **at = head_of(block->pack[i].sample);
        while (*at != &block->pack[i]) at = &(*at)->next;
        *at = block->pack[i].next;
    }
    total -= block->size;
}

static void release(struct pack_block *block) {
    lock_take(&lock);
    const bool is_last = --block->n_users == 0;
    if (is_last) unlink_packs(block);
    lock_release(&lock);
    if (!is_last) return;
    mem_free(block->memory);
    mem_free(block);
}

void packs_release(int n, struct pack_block *const *block) {
    for (int i = 0; i < n; i++) release(block[i]);
}

bool packs_alloc(int n, const size_t *offset, char **slot, struct pack_block **block) {
    if (!n) return true;
    struct pack_block *all = new_block(offset[n], n);
    for (int i = 0; i < n && all; i++) {
        slot[i] = all->memory + offset[i];
        block[i] = all;
    }
    return all != NULL;
}

/* ---- Sharing ---- */

/* Of 64 places. Weights that were trained differ in all of them. */
static uint64_t take_sample(const char *at, size_t size) {
    const size_t step = (size_t)round_up((int64_t)size / 64, 64);
    uint64_t sample = size;
    for (size_t i = 0; i < size; i += step) sample = hash_bytes(sample, at + i, 64);
    return sample;
}

/* An equal pack, with a user more; NULL: the newest of the same sample differs, or there is none. */
static struct pack *find_equal(const char *at, size_t size) {
    const uint64_t sample = take_sample(at, size);
    lock_take(&lock);
    struct pack *pack = *head_of(sample);
    while (pack && (pack->sample != sample || pack->size != size)) pack = pack->next;
    if (pack) pack->block->n_users++;
    lock_release(&lock);
    if (!pack || !memcmp(pack->at, at, size)) return pack;
    release(pack->block);
    return NULL;
}

/* Enters the slots that lie in the block. */
static void enter(int n, const size_t *offset, char *const *slot, struct pack_block *const *block,
                  struct pack_block *own) {
    for (int i = 0; i < n; i++) {
        const size_t size = offset[i + 1] - offset[i];
        if (block[i] != own || size < LEAST) continue;
        struct pack *pack = &own->pack[own->n++];
        *pack = (struct pack){NULL, take_sample(slot[i], size), slot[i], size, own};
        lock_take(&lock);
        pack->next = *head_of(pack->sample);
        *head_of(pack->sample) = pack;
        lock_release(&lock);
    }
}

/* Equal packs of all slots; returns their bytes. */
static size_t find_all(int n, const size_t *offset, char *const *slot, struct pack **found) {
    size_t shared = 0;
    for (int i = 0; i < n; i++) {
        const size_t size = offset[i + 1] - offset[i];
        found[i] = size < LEAST ? NULL : find_equal(slot[i], size);
        if (found[i]) shared += size;
    }
    return shared;
}

/* What nobody else has moves to `rest`, which is NULL if that is nothing. */
static void move_slots(int n, const size_t *offset, char **slot, struct pack_block **block,
                       struct pack *const *found, struct pack_block *rest) {
    char *to = rest ? rest->memory : NULL;
    for (int i = 0; i < n; i++) {
        const size_t size = offset[i + 1] - offset[i];
        char *at = found[i] ? (char *)(uintptr_t)found[i]->at : to;
        if (!found[i]) {
            memcpy(to, slot[i], size);
            to += size;
        }
        slot[i] = at;
        release(block[i]);
        block[i] = found[i] ? found[i]->block : rest;
    }
}

/* Replaces what was found. Without memory for the rest all stays as it is: false. */
static bool replace(int n, const size_t *offset, char **slot, struct pack_block **block,
                    struct pack *const *found, size_t shared) {
    struct pack_block *rest = NULL;
    int left = 0;
    for (int i = 0; i < n; i++) left += !found[i];
    if (left && !(rest = new_block(offset[n] - shared, left))) return false;
    move_slots(n, offset, slot, block, found, rest);
    if (rest) enter(n, offset, slot, block, rest);
    return true;
}

/* Moving the rest must pay: a quarter is arbitrary. */
void packs_share(int n, const size_t *offset, char **slot, struct pack_block **block) {
    struct pack **found = n ? mem_alloc(sizeof *found * (size_t)n, 16) : NULL;
    if (!found) return;
    const size_t shared = find_all(n, offset, slot, found);
    const bool pays = shared && shared >= offset[n] / 4;
    if (!pays || !replace(n, offset, slot, block, found, shared)) {
        for (int i = 0; i < n; i++)
            if (found[i]) release(found[i]->block);
        enter(n, offset, slot, block, block[0]);
    }
    mem_free(found);
}

/*
 * Deduplicates packed parameters by a hash table of all packs of the process. The hash is over a sample of a pack's bytes; packs
 * with equal hashes are compared in full.
 *
 * The slots of new weights lie in one block. If at least a quarter of their bytes exist in other blocks, those slots are
 * redirected and the others move to a smaller block. Otherwise the block stays as it is, in huge pages. A block is freed
 * when none of its slots is used, so unused slots of it may stay in memory.
 *
 * Invariant: `lock` guards the table and all counts. Bytes of a block are read without the lock, but only while holding a
 * reference to the block.
 */
#include "run/packs.h"

#include "base/lock.h"

#include <string.h>

#define HEADS 1024
#define LEAST 4096 /* bytes; smaller slots, such as a bias, are not deduplicated */

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
    lock_acquire(&lock);
    const size_t size = total;
    lock_release(&lock);
    return size;
}

/* ---- Blocks ---- */

/* A block for `n` slots; each of them holds a reference. NULL: out of memory. */
static struct pack_block *new_block(size_t size, int n) {
    struct pack_block *block = mem_alloc(sizeof *block + sizeof(struct pack) * (size_t)n, 16);
    char *memory = mem_alloc(size + 64, 4096);
    if (!block || !memory) {
        mem_free(block);
        mem_free(memory);
        return NULL;
    }
    *block = (struct pack_block){.n_users = n, .size = size, .memory = memory};
    lock_acquire(&lock);
    total += size;
    lock_release(&lock);
    return block;
}

static struct pack **head_of(uint64_t sample) { return &table[sample % HEADS]; }

/* Removes the block's packs from the table. The caller holds the lock. */
static void unlink_packs(struct pack_block *block) {
    for (int i = 0; i < block->n; i++) {
        struct pack **at = head_of(block->pack[i].sample);
        while (*at != &block->pack[i]) at = &(*at)->next;
        *at = block->pack[i].next;
    }
    block->n = 0;
}

static void release(struct pack_block *block) {
    lock_acquire(&lock);
    const bool is_last = --block->n_users == 0;
    if (is_last) {
        unlink_packs(block);
        total -= block->size;
    }
    lock_release(&lock);
    if (!is_last) return;
    mem_free(block->memory);
    mem_free(block);
}

void packs_release(const struct packs *p) {
    for (int i = 0; i < p->n; i++) release(p->block[i]);
}

bool packs_alloc(const struct packs *p) {
    if (!p->n) return true;
    struct pack_block *all = new_block(p->offset[p->n], p->n);
    for (int i = 0; i < p->n && all; i++) {
        p->slot[i] = all->memory + p->offset[i];
        p->block[i] = all;
    }
    return all != NULL;
}

/* Slots that were redirected lie in another block. */
bool packs_claim(const struct packs *p) {
    if (!p->n) return true;
    struct pack_block *own = p->block[0];
    int n_own = 0;
    while (n_own < p->n && p->block[n_own] == own) n_own++;
    lock_acquire(&lock);
    const bool alone = n_own == p->n && own->n_users == p->n;
    if (alone) unlink_packs(own);
    lock_release(&lock);
    return alone;
}

static size_t slot_size(const struct packs *p, int i) { return p->offset[i + 1] - p->offset[i]; }

/* ---- Deduplication ---- */

/* Hashes the size and 64 bytes at up to 64 positions. Different trained weights differ nearly everywhere, so this is enough. */
static uint64_t take_sample(const char *at, size_t size) {
    const size_t step = (size_t)round_up((int64_t)size / 64, 64);
    uint64_t sample = size;
    for (size_t i = 0; i < size; i += step) sample = hash_bytes(sample, at + i, 64);
    return sample;
}

/* Finds a pack with equal bytes and adds a user to its block. NULL: not found; compares only the newest pack with this hash. */
static struct pack *find_equal(const char *at, size_t size) {
    const uint64_t sample = take_sample(at, size);
    lock_acquire(&lock);
    struct pack *pack = *head_of(sample);
    while (pack && (pack->sample != sample || pack->size != size)) pack = pack->next;
    if (pack) pack->block->n_users++;
    lock_release(&lock);
    if (!pack || !memcmp(pack->at, at, size)) return pack;
    release(pack->block);
    return NULL;
}

/* Adds the slots that lie in block `own` to the table. */
static void enter(const struct packs *p, struct pack_block *own) {
    for (int i = 0; i < p->n; i++) {
        const size_t size = slot_size(p, i);
        if (p->block[i] != own || size < LEAST) continue;
        struct pack *pack = &own->pack[own->n++];
        *pack = (struct pack){NULL, take_sample(p->slot[i], size), p->slot[i], size, own};
        lock_acquire(&lock);
        pack->next = *head_of(pack->sample);
        *head_of(pack->sample) = pack;
        lock_release(&lock);
    }
}

/* Redirects slot i to found[i]; slots without one move to block `rest`, which is NULL if there are none. */
static void move_slots(const struct packs *p, struct pack *const *found, struct pack_block *rest) {
    char *to = rest ? rest->memory : NULL;
    for (int i = 0; i < p->n; i++) {
        struct pack_block *old = p->block[i];
        p->block[i] = found[i] ? found[i]->block : rest;
        if (found[i]) p->slot[i] = (char *)(uintptr_t)found[i]->at;
        else {
            p->slot[i] = memcpy(to, p->slot[i], slot_size(p, i));
            to += slot_size(p, i);
        }
        release(old);
    }
}

/* Redirects slots if the packs found have at least a quarter of the bytes (an arbitrary limit): less is not worth moving
 * the others. False: nothing was changed, also if there is no memory for the others. */
static bool replace(const struct packs *p, struct pack *const *found) {
    struct pack_block *rest = NULL;
    size_t shared = 0;
    int left = 0;
    for (int i = 0; i < p->n; i++) {
        if (found[i]) shared += slot_size(p, i);
        else left++;
    }
    if (!shared || shared < p->offset[p->n] / 4) return false;
    if (left && !(rest = new_block(p->offset[p->n] - shared, left))) return false;
    move_slots(p, found, rest);
    if (rest) enter(p, rest);
    return true;
}

void packs_deduplicate(const struct packs *p) {
    struct pack **found = p->n ? mem_alloc(sizeof *found * (size_t)p->n, 16) : NULL;
    if (!found) return;
    for (int i = 0; i < p->n; i++)
        if (slot_size(p, i) >= LEAST) found[i] = find_equal(p->slot[i], slot_size(p, i));
    if (!replace(p, found)) {
        for (int i = 0; i < p->n; i++)
            if (found[i]) release(found[i]->block);
        enter(p, p->block[0]);
    }
    mem_free(found);
}

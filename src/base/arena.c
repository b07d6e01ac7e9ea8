/*
 * Memory: the bump allocator of compile time, and the two functions that call malloc.
 *
 *   arena_alloc, vec_grow, text.c  ->  take_block  ->  mem_alloc  ->  malloc
 *
 * An arena is a list of blocks; only the newest one is filled, so an allocation is an addition.
 * Blocks come zeroed and are never reused before they are freed, which makes everything from an arena
 * zeroed.
 *
 * Invariant: when memory is out, nothing of the arena has changed, and control is at its boundary.
 */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 16

/* Most graphs need a few hundred kilobytes: small enough a first block to be cheap for a tiny
 * model, and doubling keeps the number of blocks low for a large one. */
#define FIRST_BLOCK ((size_t)16 << 10)
#define LARGEST_BLOCK ((size_t)1 << 20)

struct arena_block {
    struct arena_block *older;
    size_t used, cap; /* bytes of data[] */
    _Alignas(ALIGNMENT) char data[];
};

_Thread_local long mem_fail_at;

/* ---- malloc ---- */

static bool fails_now(void) { return mem_fail_at > 0 && --mem_fail_at == 0; }

void *mem_alloc(size_t size, size_t alignment) {
    ASSERT(alignment >= ALIGNMENT && (alignment & (alignment - 1)) == 0);
    if (fails_now() || size > PTRDIFF_MAX) return NULL;
    if (!size) size = 1; /* NULL shall mean nothing but out of memory */
    /* calloc gets fresh pages zeroed by the kernel for nothing; malloc is aligned to 16 on 64
     * bit. */
    if (alignment <= _Alignof(max_align_t)) return calloc(1, size);
    void *memory;
    if (posix_memalign(&memory, alignment, size)) return NULL;
    return memset(memory, 0, size);
}

void *mem_realloc(void *memory, size_t size) {
    if (fails_now() || size > PTRDIFF_MAX) return NULL;
    return realloc(memory, size ? size : 1);
}

void mem_free(void *memory) { free(memory); }

/* ---- Arena ---- */

void arena_init(struct arena *arena) { *arena = (struct arena){0}; }

/* Frees `block` and older ones up to `end`, which stays. */
static void free_blocks(struct arena_block *block, const struct arena_block *end) {
    for (struct arena_block *older; block != end; block = older) {
        older = block->older;
        mem_free(block);
    }
}

void arena_fini(struct arena *arena) {
    free_blocks(arena->block, NULL);
    arena->block = NULL;
}

size_t arena_size(const struct arena *arena) {
    size_t size = 0;
    for (const struct arena_block *block = arena->block; block; block = block->older)
        size += sizeof *block + block->cap;
    return size;
}

static void __attribute__((noreturn, cold)) leave(struct arena *arena, size_t size) {
    ASSERT(arena->boundary);
    (void)fail(SOL_ENOMEM, "out of memory: cannot allocate %zu bytes", size);
    longjmp(*arena->boundary, 1);
}

/* Puts a block in front that has at least `size` free bytes. */
static void take_block(struct arena *arena, size_t size) {
    size_t cap = arena->block ? 2 * arena->block->cap : FIRST_BLOCK;
    if (cap > LARGEST_BLOCK) cap = LARGEST_BLOCK;
    if (cap < size) cap = size;
    struct arena_block *block = mem_alloc(sizeof *block + cap, ALIGNMENT);
    if (!block) leave(arena, size);
    block->cap = cap;
    block->older = arena->block;
    arena->block = block;
}

void *arena_alloc(struct arena *arena, size_t size) {
    if (size > PTRDIFF_MAX / 2) leave(arena, size); /* also keeps the sums below from wrapping */
    size = (size + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    if (!size) size = ALIGNMENT; /* different objects have different addresses */
    if (!arena->block || arena->block->cap - arena->block->used < size) take_block(arena, size);
    void *memory = arena->block->data + arena->block->used;
    arena->block->used += size;
    return memory;
}

/* A block of its own for what follows. */
struct arena_block *arena_mark(struct arena *arena) {
    take_block(arena, 0);
    return arena->block;
}

/* Blocks are listed newest first; until here all of them were in the list, so a jump in between loses none. */
void arena_release(struct arena_block *first, struct arena_block *second) {
    struct arena_block *rest = first->older; /* `first` itself is freed */
    free_blocks(second->older, rest);
    second->older = rest;
}

void *arena_alloc_array(struct arena *arena, size_t item_size, size_t n) {
    size_t size;
    if (__builtin_mul_overflow(item_size, n, &size)) size = SIZE_MAX; /* arena_alloc refuses that */
    return arena_alloc(arena, size);
}

void *arena_copy(struct arena *arena, const void *data, size_t size) {
    void *copy = arena_alloc(arena, size);
    if (size) memcpy(copy, data, size); /* data may be NULL when there is none */
    return copy;
}

char *arena_strdup(struct arena *arena, const char *string) {
    return arena_copy(arena, string, strlen(string) + 1);
}

char *arena_printf(struct arena *arena, const char *format, ...) {
    struct text text;
    va_list args;
    text_init(&text, arena);
    va_start(args, format);
    text_add_args(&text, format, args);
    va_end(args);
    return text.at;
}

void *vec_grow(struct arena *arena, void *at, int n, int *cap, size_t item_size) {
    if (n > INT32_MAX / 2) leave(arena, SIZE_MAX);
    int larger = n < 4 ? 8 : 2 * n;
    void *memory = arena_alloc_array(arena, item_size, (size_t)larger);
    if (n) memcpy(memory, at, item_size * (size_t)n);
    *cap = larger;
    return memory;
}

/*
 * Memory: the arena (bump allocator), and the functions that call malloc.
 *
 *   arena_alloc, vec_grow, text.c  ->  take_block  ->  mem_alloc  ->  malloc
 *
 * An arena is a list of blocks. Allocations take memory from the newest one, so most are one addition.
 * Memory of an arena is zeroed, as blocks are zeroed and no part is used twice.
 *
 * Invariant: when memory is out, the arena is unchanged, and control jumps to its boundary.
 */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGNMENT 16

/* Memory of at least so many bytes that begins a page is in huge pages, if the system has some: packed weights, workspaces. They
 * need fewer address translations, and processors prefetch within one page only. Reading weights from memory is 1.3 times as fast
 * (bench of products with one row). */
#define PAGE ((uintptr_t)4096)
#define LEAST_HUGE ((size_t)4 << 20)

/* Most models need a few hundred kilobytes. The first block is small, so that a tiny model
 * is cheap; each next one is twice as large, so that a large model has few blocks. */
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

void mem_advise_huge(void *memory, size_t size) {
    const uintptr_t begin = ((uintptr_t)memory + PAGE - 1) & ~(PAGE - 1),
                    end = ((uintptr_t)memory + size) & ~(PAGE - 1);
    if (begin < end) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
}

void *mem_alloc(size_t size, size_t alignment) {
    ASSERT(alignment >= ALIGNMENT && (alignment & (alignment - 1)) == 0);
    if (fails_now() || size > PTRDIFF_MAX) return NULL;
    if (!size) size = 1; /* so that NULL always means out of memory */
    /* calloc does not clear fresh pages, as they come zeroed from the kernel. Its alignment is 16 on 64
     * bit. */
    if (alignment <= _Alignof(max_align_t)) return calloc(1, size);
    void *memory;
    if (posix_memalign(&memory, alignment, size)) return NULL;
    if (alignment >= PAGE && size >= LEAST_HUGE) mem_advise_huge(memory, size);
    return memset(memory, 0, size);
}

void *mem_realloc(void *memory, size_t size) {
    if (fails_now() || size > PTRDIFF_MAX) return NULL;
    return realloc(memory, size ? size : 1);
}

void mem_free(void *memory) { free(memory); }

/* ---- Arena ---- */

void arena_init(struct arena *arena) { *arena = (struct arena){0}; }

/*
 * Blocks of the largest size are pages of their own, which the system gets back at once: a compile takes hundreds of megabytes for a
 * second, and malloc would keep them for the process. The leak sanitizer does not look for pointers there.
 */
#ifdef __SANITIZE_ADDRESS__
#define LEAST_PAGES SIZE_MAX
#else
#define LEAST_PAGES LARGEST_BLOCK
#endif

static struct arena_block *new_block(size_t cap) {
    const size_t size = sizeof(struct arena_block) + cap;
    if (cap < LEAST_PAGES) return mem_alloc(size, ALIGNMENT);
    if (fails_now()) return NULL;
    void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

static void free_block(struct arena_block *block) {
    if (block->cap >= LEAST_PAGES) munmap(block, sizeof *block + block->cap);
    else mem_free(block);
}

/* Frees `block` and older ones, down to `end`, which stays. */
static void free_blocks(struct arena_block *block, const struct arena_block *end) {
    for (struct arena_block *older; block != end; block = older) {
        older = block->older;
        free_block(block);
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

/* Reports out of memory and jumps to the boundary. */
static void __attribute__((noreturn, cold)) leave(struct arena *arena, size_t size) {
    ASSERT(arena->boundary);
    (void)fail(SOL_ENOMEM, "out of memory: cannot allocate %zu bytes", size);
    longjmp(*arena->boundary, 1);
}

/* Adds a block of at least `size` bytes. */
static void take_block(struct arena *arena, size_t size) {
    size_t cap = arena->block ? 2 * arena->block->cap : FIRST_BLOCK;
    if (cap > LARGEST_BLOCK) cap = LARGEST_BLOCK;
    if (cap < size) cap = size;
    struct arena_block *block = new_block(cap);
    if (!block) leave(arena, size);
    block->cap = cap;
    block->older = arena->block;
    arena->block = block;
}

void *arena_alloc(struct arena *arena, size_t size) {
    if (size > PTRDIFF_MAX / 2) leave(arena, size); /* so that the sums below do not overflow */
    size = (size + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    if (!size) size = ALIGNMENT; /* different objects have different addresses */
    if (!arena->block || arena->block->cap - arena->block->used < size) take_block(arena, size);
    void *memory = arena->block->data + arena->block->used;
    arena->block->used += size;
    return memory;
}

/* Starts a new block, so that later allocations are not in older blocks. */
struct arena_block *arena_mark(struct arena *arena) {
    take_block(arena, 0);
    return arena->block;
}

/* Blocks are listed newest first. Until this call all of them are in the list, so arena_fini frees all, also after a jump. */
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

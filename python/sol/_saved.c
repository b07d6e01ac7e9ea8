/*
 * Saved memory: what a forward call leaves for its backward call (sol_program_forward), as a tensor of the framework. And memory of
 * large gradients, with a list for each.
 *
 *   saved_list_take, saved_list_take_typed: a block of the idle list, or a new one -> DLPack capsule -> a tensor of the framework
 *   no tensor uses the memory any more -> release_block -> the idle list
 *
 * A training step that allocated this memory anew would fault in all of its pages. DLPack's release function is called when the
 * memory is free for sure: views of the tensor, which hooks of autograd may make, count, too.
 *
 * For a program of a far device, a block is only the name of memory on the device, which is freed with it.
 *
 * Invariant: a block is in the idle list, or belongs to one tensor. The list lives as long as its program's object and all of its
 * blocks, and the program as long as the list.
 * release_block may run on any thread, without the GIL, and after a fork; so the list has no lock: blocks are pushed one by one, and
 * taken all at once.
 */
#include "_core.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64 }; /* of sol_program_forward */
/* Memory of at least so many bytes is in huge pages, if the system has some: backward reads what forward has written, often with far
 * strides, and needs fewer address translations. Whole pages only: the rest of a block would take memory that nothing uses. */
enum { LEAST_HUGE = 4 << 20, HUGE_PAGE = 2 << 20 };

struct block {
    struct managed managed; /* first, as DLPack passes its address */
    struct saved_list *list;
    struct block *next;
    size_t size;
    void *data;
};

struct saved_list {
    struct sol_program *program;
    _Atomic(struct block *) idle;
    atomic_int n_refs;
};

static void free_blocks(const struct saved_list *list, struct block *block) {
    while (block) {
        struct block *next = block->next;
        sol_program_saved_free(list->program, block->data);
        free(block->data);
        free(block);
        block = next;
    }
}

void saved_list_release(struct saved_list *list) {
    if (!list || atomic_fetch_sub(&list->n_refs, 1) > 1) return;
    free_blocks(list, atomic_load(&list->idle));
    sol_program_release(list->program);
    free(list);
}

static void push(struct saved_list *list, struct block *block) {
    block->next = atomic_load(&list->idle);
    while (!atomic_compare_exchange_weak(&list->idle, &block->next, block)) continue;
}

static void release_block(struct managed *managed) {
    struct block *block = (struct block *)managed;
    struct saved_list *list = block->list;
    push(list, block);
    saved_list_release(list);
}

/* Takes an idle block of exactly this size. If there is none, the idle ones are of another batch size, and are freed: a program
 * keeps the blocks of one size only. */
static struct block *take_idle(struct saved_list *list, size_t size) {
    struct block *idle = atomic_exchange(&list->idle, NULL), **at = &idle;
    while (*at && (*at)->size != size) at = &(*at)->next;
    struct block *found = *at;
    if (!found) {
        free_blocks(list, idle);
        return NULL;
    }
    *at = found->next;
    for (struct block *next; idle; idle = next) {
        next = idle->next;
        push(list, idle);
    }
    return found;
}

static void *new_memory(size_t size) {
    const size_t alignment = size < LEAST_HUGE ? ALIGNMENT : HUGE_PAGE;
    void *data = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    if (data && size >= LEAST_HUGE) madvise(data, size / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    return data;
}

static struct block *new_block(size_t size) {
    struct block *block = calloc(1, sizeof *block);
    if (!block) return NULL;
    block->size = size;
    block->data = new_memory(size);
    if (block->data) return block;
    free(block);
    return NULL;
}

static struct saved_list *new_list(struct sol_program *program) {
    struct saved_list *list = calloc(1, sizeof *list);
    if (!list) return NULL;
    sol_program_retain(program);
    list->program = program;
    atomic_init(&list->n_refs, 1);
    return list;
}

PyObject *saved_list_take(struct saved_list **list, struct sol_program *program, size_t size) {
    struct dl_tensor bytes = {.ndim = 1, .shape = (int64_t[]){(int64_t)size}};
    find_dl_type("u8", &bytes);
    return saved_list_take_typed(list, program, &bytes);
}

PyObject *saved_list_take_typed(struct saved_list **list, struct sol_program *program,
                                const struct dl_tensor *as) {
    size_t size = as->dtype.bits / 8;
    for (int i = 0; i < as->ndim; i++) size *= (size_t)as->shape[i];
    if (!*list && !(*list = new_list(program))) return PyErr_NoMemory();
    struct block *block = take_idle(*list, size);
    if (!block && !(block = new_block(size))) return PyErr_NoMemory();
    atomic_fetch_add(&(*list)->n_refs, 1);
    block->list = *list;
    block->managed = (struct managed){.release = release_block};
    block->managed.tensor = *as;
    block->managed.tensor.data = block->data;
    block->managed.tensor.device.type = DL_CPU;
    block->managed.tensor.shape = block->managed.dim;
    memcpy(block->managed.dim, as->shape, (size_t)as->ndim * sizeof *as->shape);
    return new_dl_capsule(&block->managed);
}

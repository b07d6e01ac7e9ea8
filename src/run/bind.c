/*
 * Bindings: a program's formulas evaluated for one vector of symbol values.
 *
 *   symbols -> sections -> sizes and lifetimes of slots -> memory_place -> arguments, task counts, offsets
 *
 * A program keeps a few bindings, most recently used first, so that a call with known sizes evaluates nothing.
 *
 * Invariant: a binding with calls in flight (n_users > 0) is not freed.
 */
#include "run/bind.h"

#include "run/micro_batch.h"

#include <stdio.h>
#include <string.h>

/* ---- Symbols ---- */

void formulas_derive(const struct formulas *formulas, const int64_t *free, int n,
                     int64_t symbols[SIZE_SYMBOLS]) {
    if (n) memcpy(symbols, free, sizeof *free * (size_t)n);
    size_derive(formulas->quotient, formulas->n_quotients, symbols);
}

static enum sol_status complain(const struct condition *condition, const int64_t *symbols) {
    char shape[256];
    int at = 0;
    for (int d = 0; d < condition->rank && at < 230; d++)
        at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%lld", d ? "," : "",
                       (long long)size_eval(&condition->shape[d], symbols));
    return fail(SOL_EINVAL, "%s [%.*s]", condition->what, at, shape);
}

enum sol_status formulas_check(const struct formulas *formulas, const int64_t *symbols) {
    for (int i = 0; i < formulas->n_conditions; i++) {
        const struct condition *condition = &formulas->condition[i];
        int64_t value = size_eval(&condition->value, symbols);
        if (value < condition->min) return complain(condition, symbols);
    }
    return SOL_OK;
}

/* The binding's symbols, for another number of samples. */
static void set_samples(const struct binding *b, int64_t samples, int64_t symbols[SIZE_SYMBOLS]) {
    memcpy(symbols, b->symbol, sizeof b->symbol);
    symbols[0] = samples;
    size_derive(b->formulas->quotient, b->formulas->n_quotients, symbols);
}

/* ---- Tables ---- */

void binding_free(struct binding *binding) {
    if (!binding) return;
    for (struct workspace *w = binding->idle, *next; w; w = next) {
        next = w->next;
        mem_free(w);
    }
    struct arena arena = binding->arena; /* a copy: the binding itself is in this arena */
    arena_fini(&arena);
}

static struct bound new_bound(struct arena *arena, int n_steps) {
    return (struct bound){ARENA_ARRAY(arena, int64_t *, n_steps),
                          ARENA_ARRAY(arena, int64_t, n_steps)};
}

static struct binding *alloc_tables(struct arena *arena, const struct step_list *list) {
    struct binding *b = ARENA_NEW(arena, struct binding);
    b->section = ARENA_ARRAY(arena, struct section, list->n + 1);
    b->full = new_bound(arena, list->n);
    b->rest = new_bound(arena, list->n);
    b->step = ARENA_ARRAY(arena, const struct step *, list->n);
    b->ptr_offset = ARENA_ARRAY(arena, int64_t *, list->n);
    b->ptr_sample_stride = ARENA_ARRAY(arena, int64_t *, list->n);
    for (int i = 0; i < list->n; i++) {
        const struct step *step = &list->at[i];
        b->full.arg[i] = ARENA_ARRAY(arena, int64_t, step->n_arg);
        b->rest.arg[i] = ARENA_ARRAY(arena, int64_t, step->n_arg);
        b->ptr_offset[i] = ARENA_ARRAY(arena, int64_t, step->n_ptr);
        b->ptr_sample_stride[i] = ARENA_ARRAY(arena, int64_t, step->n_ptr);
    }
    return b;
}

/* ---- Sections ---- */

static void make_sections(struct arena *arena, struct binding *b, const struct step_list *list,
                          int64_t cache) {
    struct traffic *traffic = ARENA_ARRAY(arena, struct traffic, list->n);
    int64_t *micro_batch = ARENA_ARRAY(arena, int64_t, list->n);
    int64_t none[SIZE_SYMBOLS], one[SIZE_SYMBOLS];
    set_samples(b, 0, none);
    set_samples(b, 1, one);
    for (int i = 0; i < list->n; i++)
        traffic[i] = micro_batch_traffic(list->at[i].bytes, list->at[i].by_sample, none, one);
    for (int i = 0; i < list->n_slots; i++)
        micro_batch_note_life(traffic, list->slot[i].first, list->slot[i].last,
                              micro_batch_per_sample(list->slot[i].size, none, one));
    micro_batch_choose(cache, list->n, traffic, b->symbol[0], micro_batch);
    for (int i = 0; i < list->n; i++) {
        if (!i || micro_batch[i] != micro_batch[i - 1])
            b->section[b->n_sections++] = (struct section){i, i, micro_batch[i]};
        b->section[b->n_sections - 1].end = i + 1;
    }
}

static const struct section *section_of(const struct binding *b, int step) {
    const struct section *s = b->section;
    while (s->end <= step) s++;
    return s;
}

/* Is the slot used by steps of one section only? Then it holds one micro-batch and lives from step `first` to `last`. Any other
 * slot holds the whole batch and lives from the first step of its first section to the last step of its last section, as the
 * steps of a section run again for each micro-batch. */
static bool is_local(const struct binding *b, const struct slot *slot) {
    return section_of(b, slot->first) == section_of(b, slot->last);
}

void binding_slot(const struct binding *b, const struct slot *slot, int64_t *size, int *first,
                  int *last) {
    const struct section *from = section_of(b, slot->first);
    int64_t symbol[SIZE_SYMBOLS];
    set_samples(b, is_local(b, slot) ? from->micro_batch : b->symbol[0], symbol);
    *size = size_eval(&slot->size, symbol);
    *first = is_local(b, slot) ? slot->first : from->begin;
    *last = is_local(b, slot) ? slot->last : section_of(b, slot->last)->end - 1;
}

int64_t binding_live(const struct binding *b, const struct step_list *list, int step) {
    int64_t sum = 0, size;
    for (int i = 0, first, last; i < list->n_slots; i++) {
        binding_slot(b, &list->slot[i], &size, &first, &last);
        if (first <= step && step <= last) sum += size;
    }
    return sum;
}

/* Offsets of the list's arena slots for this binding's symbols. */
static enum sol_status place_slots(struct arena *arena, struct binding *b,
                                   const struct step_list *list, size_t *offset) {
    const int n = list->n_slots;
    int64_t *size = ARENA_ARRAY(arena, int64_t, n);
    int *first = ARENA_ARRAY(arena, int, n), *last = ARENA_ARRAY(arena, int, n);
    for (int i = 0; i < n; i++) {
        binding_slot(b, &list->slot[i], &size[i], &first[i], &last[i]);
        if (size[i] < 0 || size[i] > INT64_MAX / 4)
            return fail(SOL_EINVAL, "%s would take %lld bytes", list->slot[i].name,
                        (long long)size[i]);
    }
    b->arena_size = memory_place(n, size, first, last, offset);
    return SOL_OK;
}

/* ---- Steps ---- */

/* Evaluates the arguments and the number of tasks of step i for `samples` samples. The first evaluation adapts the step. */
static enum sol_status bind_samples(struct arena *arena, const struct binding *b, int i,
                                    const struct step *step, int64_t samples,
                                    const struct bound *to) {
    int64_t symbol[SIZE_SYMBOLS];
    set_samples(b, samples, symbol);
    for (int a = 0; a < step->n_arg; a++) to->arg[i][a] = size_eval(&step->arg[a], symbol);
    if (!b->step[i]) {
        b->step[i] = step;
        if (step->is_open) TRY(step->kind->adapt(step, to->arg[i], arena, &b->step[i]));
    }
    to->n_tasks[i] = max_i64(0, b->step[i]->kind->n_tasks(b->step[i], to->arg[i]));
    return SOL_OK;
}

/* Where the slots of ARENA and SAVED begin. */
struct places {
    size_t *arena;
    int64_t *saved;
};

static void bind_pointers(struct binding *b, const struct step_list *list, int i,
                          const struct places *places) {
    const struct step *step = &list->at[i];
    for (int p = 0; p < step->n_ptr; p++) {
        const struct buffer_ref *ref = &step->ptr[p];
        b->ptr_offset[i][p] = size_eval(&ref->offset, b->symbol);
        b->ptr_sample_stride[i][p] =
            ref->sample_stride ? size_eval(ref->sample_stride, b->symbol) : 0;
        if (ref->kind == BUFFER_SAVED) b->ptr_offset[i][p] += places->saved[ref->index];
        if (ref->kind != BUFFER_ARENA) continue;
        b->ptr_offset[i][p] += (int64_t)places->arena[ref->index];
        if (is_local(b, &list->slot[ref->index])) b->ptr_sample_stride[i][p] = 0;
    }
}

static enum sol_status bind_step(struct arena *arena, struct binding *b,
                                 const struct step_list *list, int i, const struct places *places) {
    const struct step *step = &list->at[i];
    const int64_t micro_batch = section_of(b, i)->micro_batch;
    TRY(bind_samples(arena, b, i, step, micro_batch, &b->full));
    if (micro_batch) TRY(bind_samples(arena, b, i, step, b->symbol[0] % micro_batch, &b->rest));
    bind_pointers(b, list, i, places);
    if (b->step[i]->scratch_size > b->scratch_size) b->scratch_size = b->step[i]->scratch_size;
    if (step->n_ptr > b->n_ptr) b->n_ptr = step->n_ptr;
    return SOL_OK;
}

/* What is packed is made before any call, so it does not depend on symbols. */
static enum sol_status bind_symbols(struct binding *b, const struct sol_program *program,
                                    const int64_t *symbols) {
    static const struct formulas none;
    b->formulas = phase_is_prepack(b->phase) ? &none : &program->formulas;
    const int n_symbols = phase_is_prepack(b->phase) ? 0 : program->n_symbols;
    formulas_derive(b->formulas, symbols, n_symbols, b->symbol);
    return formulas_check(b->formulas, b->symbol);
}

static enum sol_status make_binding(struct arena *arena, struct arena *temporary,
                                    const struct sol_program *program, enum phase phase,
                                    const int64_t *symbols, int64_t cache, struct binding **out) {
    ARENA_BOUNDARY(arena, return fail(SOL_ENOMEM, "no memory for a program's arguments"));
    temporary->boundary = arena->boundary;
    const struct step_list *list = &program->phase[phase];
    struct binding *b = alloc_tables(arena, list);
    int64_t saved_size;
    struct places places = {.arena = ARENA_ARRAY(temporary, size_t, list->n_slots),
                            .saved = ARENA_ARRAY(temporary, int64_t, program->n_saved)};
    b->phase = phase;
    TRY(bind_symbols(b, program, symbols));
    make_sections(temporary, b, list, cache);
    TRY(place_slots(temporary, b, list, places.arena));
    if (!phase_is_prepack(phase))
        TRY(program_place_saved(program, b->symbol, places.saved, &saved_size));
    for (int i = 0; i < list->n; i++) TRY(bind_step(arena, b, list, i, &places));
    *out = b;
    return SOL_OK;
}

enum sol_status binding_new(const struct sol_program *program, enum phase phase,
                            const int64_t *symbols, struct binding **out) {
    return binding_new_for(program, phase, symbols, program->portion_cache, out);
}

enum sol_status binding_new_for(const struct sol_program *program, enum phase phase,
                                const int64_t *symbols, int64_t cache, struct binding **out) {
    struct arena arena, temporary;
    arena_init(&arena);
    arena_init(&temporary);
    enum sol_status status = make_binding(&arena, &temporary, program, phase, symbols, cache, out);
    arena_fini(&temporary);
    if (status) arena_fini(&arena);
    else (*out)->arena = arena;
    return status;
}

static bool same_symbols(const struct sol_program *program, const struct binding *b,
                         const int64_t *symbols) {
    return !program->n_symbols ||
           !memcmp(b->symbol, symbols, sizeof *symbols * (size_t)program->n_symbols);
}

/* Frees the least recently used binding without users, if there are too many. The caller holds the lock. */
static void drop_oldest(struct sol_program *program) {
    int n = 0;
    struct binding **victim = NULL;
    for (struct binding **b = &program->bindings; *b; b = &(*b)->next, n++)
        if (b != &program->bindings && !(*b)->n_users) victim = b;
    if (n <= PROGRAM_BINDINGS || !victim) return;
    struct binding *old = *victim;
    *victim = old->next;
    binding_free(old);
}

/* Finds the binding and moves it to the front. The caller holds the lock. */
static struct binding *find_binding(struct sol_program *program, enum phase phase,
                                    const int64_t *symbols) {
    for (struct binding **at = &program->bindings; *at; at = &(*at)->next) {
        struct binding *b = *at;
        if (b->phase != phase || !same_symbols(program, b, symbols)) continue;
        *at = b->next;
        b->next = program->bindings;
        program->bindings = b;
        return b;
    }
    return NULL;
}

/* Finds or makes the binding for these symbols, and adds a user. The caller holds the lock. */
static enum sol_status acquire_binding(struct sol_program *program, enum phase phase,
                                       const int64_t *symbols, struct binding **out) {
    struct binding *b = find_binding(program, phase, symbols);
    if (!b) {
        TRY(binding_new(program, phase, symbols, &b));
        b->next = program->bindings;
        program->bindings = b;
        drop_oldest(program);
    }
    b->n_users++;
    *out = b;
    return SOL_OK;
}

/* ---- Order of execution ---- */

static enum sol_status walk_section(const struct binding *b, const struct section *section,
                                    int first, binding_visit *visit, void *user) {
    const int64_t batch = b->symbol[0], size = section->micro_batch;
    struct micro_batch micro_batch = {0, &b->full};
    do {
        if (micro_batch.first + size > batch) micro_batch.bound = &b->rest;
        for (int i = first; i < section->end; i++) TRY(visit(user, i, &micro_batch));
        micro_batch.first += size;
    } while (micro_batch.first < batch);
    return SOL_OK;
}

enum sol_status binding_walk(const struct binding *b, int done, binding_visit *visit, void *user) {
    for (int i = 0; i < b->n_sections; i++) {
        const struct section *section = &b->section[i];
        if (section->end <= done) continue;
        TRY(walk_section(b, section, section->begin > done ? section->begin : done, visit, user));
    }
    return SOL_OK;
}

/* ---- Workspaces ---- */

struct workspace *workspace_new(const struct binding *b, int n_threads) {
    size_t header = 4096,
           arena = (size_t)round_up((int64_t)b->arena_size, 4096); /* the arena begins a page */
    size_t scratch = (size_t)round_up((int64_t)b->scratch_size, 4096);
    size_t size = header + arena + scratch * (size_t)n_threads + sizeof(void *) * (size_t)b->n_ptr;
    struct workspace *w = mem_alloc(size, 4096);
    if (!w) return NULL;
    w->arena = (char *)w + header;
    w->scratch = w->arena + arena;
    w->scratch_stride = scratch;
    w->pointers = (void **)(void *)(w->scratch + scratch * (size_t)n_threads);
    w->n_threads = n_threads;
    return w;
}

/* `idle` (may be NULL) if it has scratch for so many threads; else a new workspace. Called without the lock, as it
 * allocates. */
static struct workspace *fit_workspace(struct workspace *idle, const struct binding *b,
                                       int n_threads) {
    if (idle && idle->n_threads >= n_threads) return idle;
    mem_free(idle);
    return workspace_new(b, n_threads);
}

enum sol_status program_acquire(struct sol_program *program, enum phase phase,
                                const int64_t *symbols, int n_threads, struct binding **out,
                                struct workspace **workspace) {
    struct workspace *idle = NULL;
    lock_acquire(&program->lock);
    enum sol_status status = acquire_binding(program, phase, symbols, out);
    if (!status && workspace && (idle = (*out)->idle)) (*out)->idle = idle->next;
    lock_release(&program->lock);
    if (status || !workspace) return status;
    *workspace = fit_workspace(idle, *out, n_threads);
    if (*workspace) return SOL_OK;
    size_t arena_size = (*out)->arena_size;
    program_give_back(program, *out, NULL);
    return fail(SOL_ENOMEM, "no memory for %zu bytes of intermediate results", arena_size);
}

void program_give_back(struct sol_program *program, struct binding *binding,
                       struct workspace *workspace) {
    lock_acquire(&program->lock);
    if (workspace) {
        workspace->next = binding->idle;
        binding->idle = workspace;
    }
    binding->n_users--;
    lock_release(&program->lock);
}

/*
 * Scopes: the names and values of a graph that is being interpreted.
 *
 * A subgraph can read names of the graphs around it, so a scope points to the outer scope.
 */
#include "eval.h"

#include <string.h>

/* A slot of the hash table. The value is NULL while the name has none; the name is NULL in an empty slot. */
struct binding {
    const char *name;
    struct array *value;
};
/* Names are compared as strings, since the file has a copy of a name for each use. */
struct scope {
    struct scope *outer;
    struct binding *slots; /* a hash table; cap is a power of two and more than the names */
    int cap;
    bool is_constant; /* values that never change while the session exists */
};

/* The table has at least twice as many slots as names, so every search ends. */
struct scope *scope_new(struct space *space, struct scope *outer, int max_names) {
    struct scope *scope = SPACE_ARRAY(space, struct scope, 1);
    for (scope->cap = 8; scope->cap < 2 * (int64_t)max_names;) scope->cap *= 2;
    scope->slots = SPACE_ARRAY(space, struct binding, scope->cap);
    scope->outer = outer;
    return scope;
}

struct scope *scope_inside(struct space *space, const struct scope *constants,
                           struct scope *outer) {
    struct scope *scope = SPACE_ARRAY(space, struct scope, 1);
    *scope = *constants;
    scope->outer = outer;
    scope->is_constant = true;
    return scope;
}

static unsigned hash_of(const char *name) { return (unsigned)hash_bytes(0, name, strlen(name)); }

/* The slot of a name, or the empty slot where it would be stored. */
static struct binding *find_slot(const struct scope *scope, const char *name, unsigned hash) {
    unsigned mask = (unsigned)scope->cap - 1, at = hash & mask;
    while (scope->slots[at].name && strcmp(scope->slots[at].name, name) != 0) at = (at + 1) & mask;
    return &scope->slots[at];
}

struct array *scope_find(const struct scope *scope, const char *name) {
    for (unsigned hash = hash_of(name); scope; scope = scope->outer) {
        const struct binding *slot = find_slot(scope, name, hash);
        if (slot->value) return slot->value;
    }
    return NULL;
}

/* A name hides the same name of outer graphs, so the nearest value decides. */
bool scope_is_constant(const struct scope *scope, const char *name) {
    for (unsigned hash = hash_of(name); scope; scope = scope->outer)
        if (find_slot(scope, name, hash)->value) return scope->is_constant;
    return false;
}

struct array **scope_slot(struct scope *scope, const char *name) {
    struct binding *slot = find_slot(scope, name, hash_of(name));
    slot->name = name;
    return &slot->value;
}

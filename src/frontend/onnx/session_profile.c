/*
 * Profiles of a session's calls: the time of each step of a partition, and of each interpreted node.
 *
 *   session_interpret, run_program of a profiled call -> rows in struct session_profile -> sol_session_profile visits them
 *
 * A step or node that runs several times, in a loop, has one row, with the sum of its times. The time of a node with subgraphs does
 * not include what runs in these. Texts are copied, since a partition may be freed before the call ends.
 */
#include "session.h"

#include <string.h>

/* `owner` and `at` identify what the row is about: step `at` of a partition, or node `at` of a graph. */
struct profile_row {
    struct sol_step_time time;
    const void *owner;
    int at;
    struct profile_row *next; /* in a ring */
};

/* Rows are often found in the order in which they were made, so a search begins after the row that was found last. */
static struct profile_row *find_row(struct session_profile *profile, const void *owner, int at) {
    struct profile_row *row = profile->found;
    do {
        row = row ? row->next : NULL;
        if (row && row->owner == owner && row->at == at) return profile->found = row;
    } while (row != profile->found);
    return NULL;
}

/* The last row's `next` is the first row. */
static struct profile_row *add_row(struct session_profile *profile, const void *owner, int at) {
    struct profile_row *row = ARENA_NEW(&profile->arena, struct profile_row);
    *row = (struct profile_row){.owner = owner, .at = at, .next = row};
    if (profile->last) {
        row->next = profile->last->next;
        profile->last->next = row;
    }
    return profile->last = profile->found = row;
}

static void copy_candidates(struct arena *arena, struct sol_step_time *time) {
    struct sol_candidate *copy =
        arena_copy(arena, time->candidate, (size_t)time->n_candidates * sizeof *copy);
    for (int i = 0; i < time->n_candidates; i++) {
        copy[i].name = arena_strdup(arena, copy[i].name);
        if (copy[i].refusal) copy[i].refusal = arena_strdup(arena, copy[i].refusal);
    }
    time->candidate = copy;
}

void session_profile_step(struct session_profile *profile, const void *owner, int at,
                          const struct sol_step_time *time) {
    struct profile_row *row = find_row(profile, owner, at);
    struct arena *arena = &profile->arena;
    profile->seconds += time->seconds;
    if (row) {
        row->time.seconds += time->seconds;
        row->time.flops += time->flops;
        row->time.bytes += time->bytes;
        return;
    }
    row = add_row(profile, owner, at);
    row->time = *time;
    row->time.cluster = -1; /* partitions number their clusters, too */
    row->time.name = arena_strdup(arena, time->name);
    row->time.module = arena_strdup(arena, time->module);
    row->time.layers = arena_strdup(arena, time->layers);
    row->time.implementation = arena_strdup(arena, time->implementation);
    row->time.choice = arena_strdup(arena, time->choice);
    copy_candidates(arena, &row->time);
}

/* The nodes around the run, the outermost first: "node 3, Loop "x": node 1, If "y": ". */
static void add_path(struct text *text, const struct session_call *call) {
    if (!call) return;
    add_path(text, call->outer);
    session_add_node(text, call);
    text_add(text, ": ");
}

static const char *describe(struct session_profile *profile, const struct session_call *call) {
    struct text text;
    text_init(&text, &profile->arena);
    add_path(&text, call->outer);
    session_add_node(&text, call);
    return text.at;
}

/* Rows that were added while the node ran, of its subgraphs, are not counted again. */
enum sol_status session_profile_node(struct session_call *call, const struct onnx_node *node) {
    struct session_profile *profile = call->run->profile;
    const double start = os_now(), before = profile->seconds;
    TRY(eval_node(call->run, call->scope, node, &call->graph->kinds[call->node]));
    const double seconds = os_now() - start - (profile->seconds - before);
    struct profile_row *row = find_row(profile, call->graph, call->node);
    if (!row) {
        row = add_row(profile, call->graph, call->node);
        row->time = (struct sol_step_time){.name = node->op_type,
                                           .module = "node",
                                           .layers = describe(profile, call),
                                           .cluster = -1,
                                           .implementation = "interpreter",
                                           .choice = ""};
    }
    row->time.seconds += seconds;
    profile->seconds += seconds;
    return SOL_OK;
}

void session_profile_visit(const struct session_profile *profile,
                           void (*visit)(void *user, const struct sol_step_time *step),
                           void *user) {
    struct profile_row *row = profile->last;
    if (!row) return;
    do {
        row = row->next;
        visit(user, &row->time);
    } while (row != profile->last);
}

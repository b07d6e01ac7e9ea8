/*
 * The choice of an implementation: each one of the device refuses the problem or makes a plan with a cost; the cheapest plan is taken, or
 * the fastest of the cheapest few, by timing.
 *
 * The answer of each implementation (reason to refuse, or cost) becomes data of the step, for the program's report.
 */
#include "dnn/choice.h"

#include "dnn/problem.h"

/* Deterministic mode: the same bits at every run and compile on one kind of processor, for any number of threads. So only own
 * kernels, whose sums have one order; and no choice by timing, nor by cost, which depends on threads and batch_hint. */
static bool is_deterministic(const struct build *b) { return b->options->deterministic; }

static const char *refuse(const struct build *b, const struct dnn_impl *impl,
                          const struct dnn_problem *p) {
    if (env_has(ENV_SOL_DISABLE, impl->name)) return "disabled by SOL_DISABLE";
    if ((b->options->keep_source || b->options->no_libraries) && impl->probe)
        return "a library needs own kernels";
    if (is_deterministic(b) && (impl->approximate || impl->probe)) return "deterministic numerics";
    return dnn_refuse(impl, p);
}

/* The implementations that the device has. */
int dnn_count_impls(const struct build *b) {
    int n = 0;
    while (b->plan->caps.impls && b->plan->caps.impls[n]) n++;
    return n;
}

static void report_choice(struct build *b, const struct sol_candidate *candidate,
                          const struct dnn_plan *best) {
    const struct dnn_problem *p = &best->problem;
    for (const struct sol_candidate *c = candidate; c < candidate + dnn_count_impls(b); c++)
        if (c->refusal) text_add(&b->report, "    %s refuses: %s\n", c->name, c->refusal);
        else text_add(&b->report, "    %s: estimated %.1f us\n", c->name, c->seconds * 1e6);
    if (p->kind == DNN_LINEAR || p->kind == DNN_MATMUL)
        text_add(&b->report, "    -> %s %d->%d\n", best->impl->name, p->c, p->k);
    else
        text_add(&b->report, "    -> %s %dx%d/%d %d->%d @%dx%d groups %d\n", best->impl->name,
                 p->kh, p->kw, p->sh, p->c, p->k, p->h, p->w, p->groups);
}

/* All cores, from memory to memory. A program that trains packs the weights again at each call. */
static const double pack_bytes_per_s = 8e9;

/* Fills candidate[] with each implementation's answer, and plans[] with the plans of those that accept: cheapest first, at
 * equal cost in the list's order; in deterministic mode in the list's order. Returns the number of plans. */
static int find_plans(const struct build *b, const struct dnn_problem *p, const struct dnn_isa *isa,
                      struct sol_candidate *candidate, struct dnn_plan *plans) {
    int n = 0;
    for (int i = 0; i < dnn_count_impls(b); i++) {
        const struct dnn_impl *impl = b->plan->caps.impls[i];
        candidate[i] = (struct sol_candidate){.name = impl->name, .refusal = refuse(b, impl, p)};
        if (candidate[i].refusal) continue;
        struct dnn_plan plan = {.impl = impl, .kernels = isa->kernels, .problem = *p};
        impl->plan(&plan);
        if (p->trained) plan.cost += (double)plan.packed_size / pack_bytes_per_s;
        candidate[i].seconds = plan.cost;
        int at = n++;
        for (; !is_deterministic(b) && at > 0 && plans[at - 1].cost > plan.cost; at--)
            plans[at] = plans[at - 1];
        plans[at] = plan;
    }
    return n;
}

/* Index of the cheapest own kernel, or of a library whose cost is trusted; 0 if all plans are libraries'. Without timing it is unknown
 * whether another library is faster; with own kernels, results do not depend on installed libraries. */
static int find_own(const struct dnn_plan *plans, int n) {
    int own = 0;
    while (own < n && plans[own].impl->probe && !plans[own].impl->by_cost) own++;
    return own < n ? own : 0;
}

enum sol_status dnn_choose(struct build *b, const struct dnn_problem *p, const struct dnn_isa *isa,
                           dnn_tune *tune, struct sol_candidate *candidate, struct dnn_plan *best) {
    struct dnn_plan *plans = ARENA_ARRAY(b->arena, struct dnn_plan, dnn_count_impls(b) + 1);
    int n = find_plans(b, p, isa, candidate, plans), near = 0;
    if (!n) return fail(SOL_EUNSUPPORTED, "no kernel takes this %s", dnn_problem_name(p));
    while (near < n && plans[near].cost <= DNN_NEAR_TIE * plans[0].cost) near++;
    if (is_deterministic(b)) near = 1;
    *best = plans[tune && near > 1 ? tune(b->arena, plans, near) : find_own(plans, n)];
    report_choice(b, candidate, best);
    return SOL_OK;
}

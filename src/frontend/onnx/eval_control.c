/*
 * Control flow, sequences, optionals.
 *
 * An optional with a value is the value itself; one without has TYPE_NONE. A loop that runs until the call's deadline ends with an
 * error, so that no file can block a process.
 */
#include "eval.h"

#include <string.h>

#define SWEEP_BYTES ((int64_t)16 << 20) /* far more than a mark may waste, see arena_mark */

/* A condition; some files give it the shape [1]. */
static bool truth(struct eval *e, const struct array *x) {
    eval_check(e, x && is_tensor(x) && x->n == 1 && x->type == TYPE_BOOL,
               "a condition that is no single truth value");
    return array_int(x, 0) != 0;
}

/* Runs a subgraph of the node and returns its outputs. */
static struct array **run_graph(struct eval *e, const struct onnx_graph *graph, int n_in,
                                struct array **in) {
    struct array **out = SPACE_ARRAY(e->space, struct array *, graph->outputs.n + 1);
    eval_subgraph(e, graph, n_in, in, out);
    return out;
}

/* Runs only the branch that is taken. Branches have no inputs; they read names of the outer graphs. */
void run_if(struct eval *e) {
    bool holds = truth(e, e->in[0]);
    const struct onnx_graph *graph = eval_graph(e, holds ? "then_branch" : "else_branch");
    eval_check(e, graph->outputs.n == e->n_out, "a branch with another number of outputs");
    struct array **out = run_graph(e, graph, 0, NULL);
    for (int i = 0; i < e->n_out; i++) eval_set_output(e, i, out[i]);
}

/* ---- Loop ---- */

/* The values of one output of all iterations. The first `n_kept` values, and the list if is_kept, are before the mark of the
 * loop, so sweep does not free them. */
struct history {
    struct array **items;
    int64_t n, cap, n_kept;
    bool is_kept;
};

/* Appends a value; a full list doubles. */
static void remember(struct eval *e, struct history *history, struct array *item) {
    eval_check(e, item && is_tensor(item), "an output of the loop that is no tensor");
    if (history->n == history->cap) {
        history->cap = 2 * history->cap + 8;
        struct array **more = SPACE_ARRAY(e->space, struct array *, history->cap);
        if (history->n) memcpy(more, history->items, (size_t)history->n * sizeof *more);
        history->items = more;
        history->is_kept = false;
    }
    history->items[history->n++] = item;
}

/* The state that a loop carries from one iteration to the next, and the results that it collects. Memory that was allocated after
 * the mark can be freed. sweep sets the mark when iterations have allocated much memory. */
struct loop {
    int n_state, n_results;
    struct array **state;
    struct history *results;
    struct space_mark mark;
};

static struct loop new_loop(struct eval *e, int n_state, int n_results, struct array **state) {
    struct history *results = SPACE_ARRAY(e->space, struct history, n_results);
    return (struct loop){n_state, n_results, state, results, {NULL, e->space->left}};
}

/* Moves results since the last sweep, and the list if it has grown, before the next mark. `copies`: false at the first sweep, which
 * frees nothing, so that all of them are before its mark anyway. */
static void keep(struct eval *e, struct history *history, bool copies) {
    for (int64_t i = history->n_kept; i < history->n && copies; i++)
        history->items[i] = array_copy(e->space, history->items[i]);
    history->n_kept = history->n;
    if (copies && !history->is_kept && history->n) {
        struct array **items = SPACE_ARRAY(e->space, struct array *, history->cap);
        history->items = memcpy(items, history->items, (size_t)history->n * sizeof *items);
    }
    history->is_kept = true;
}

/* Called after an iteration. When iterations have allocated more than SWEEP_BYTES since the mark, it copies results and states,
 * then frees the memory since the mark. Results stay, so they are copied before the new mark; states are needed only until the
 * next sweep, so they are copied after it. */
static void sweep(struct eval *e, struct loop *loop) {
    bool is_first = !loop->mark.block;
    if (loop->mark.left - e->space->left < SWEEP_BYTES) return;
    struct space_mark end = space_mark(e->space), next = end;
    for (int i = 0; i < loop->n_results; i++) keep(e, &loop->results[i], !is_first);
    if (!is_first) {
        next = space_mark(e->space);
        for (int i = 0; i < loop->n_state; i++)
            loop->state[i] = array_copy(e->space, loop->state[i]);
        space_release(e->space, &loop->mark, &end);
        next.left += loop->mark.left - end.left;
    }
    loop->mark = next;
}

/* After no iterations, type and shape of a result come from the declaration of the body's output; open sizes are 0. */
static const struct array *declared(struct eval *e, const struct onnx_value *output) {
    const struct onnx_tensor_type *type = output->type ? output->type->tensor : NULL;
    struct array *none = SPACE_ARRAY(e->space, struct array, 1);
    none->type = type && type_is_known(type->elem_type) ? (enum type)type->elem_type : TYPE_F32;
    none->rank = type && type->shape ? type->shape->dims.n : 0;
    eval_check(e, none->rank < SOL_MAX_RANK, "an output of too many dims");
    for (int d = 0; d < none->rank; d++) {
        const int64_t *size = ITEM(type->shape->dims, struct onnx_dim, d)->value;
        none->dim[d] = size ? *size : 0;
    }
    return none;
}

/* All values of the history as one tensor with a new axis; `is_back`: in reverse order. */
static struct array *stack(struct eval *e, const struct history *history,
                           const struct onnx_value *output, int axis, bool is_back) {
    int64_t dim[SOL_MAX_RANK + 1], n = history->n;
    const struct array *first = n ? history->items[0] : declared(e, output);
    axis = eval_axis(e, axis, first->rank + 1);
    for (int d = 0; d <= first->rank; d++)
        dim[d] = d < axis ? first->dim[d] : d == axis ? n : first->dim[d - 1];
    struct array *y = eval_new(e, first->type, first->rank + 1, dim);
    int64_t inner = n ? product(first->rank - axis, first->dim + axis) : 0;
    for (int64_t i = 0; i < n; i++) {
        const struct array *x = history->items[is_back ? n - 1 - i : i];
        eval_check(e, x->n == first->n && x->type == first->type, "iterations that differ");
        for (int64_t o = 0; inner && o < x->n / inner; o++)
            memcpy(array_at(y, (o * n + i) * inner), array_at(x, o * inner),
                   (size_t)inner * types[x->type].size);
    }
    return y;
}

/* Called once per iteration; the duration of one iteration is limited by the memory of the call. */
static void check_time(struct eval *e, int64_t done) {
    if (os_now() > e->run->deadline)
        eval_stop(e, fail(SOL_EINVAL,
                          "the loop does not end in time: %lld iterations until the limit of "
                          "SOL_LOOP_SECONDS",
                          (long long)done));
}

/*
 * Inputs of the body: (iteration, condition, states..); outputs: (condition, states.., results..). Trip count and condition may
 * both be left out; then the body's condition ends the loop, or the call's deadline. ONNX's specification ignores the body's
 * condition if the node has none, but its reference implementation and other runtimes stop, and so does SOL.
 */
void run_loop(struct eval *e) {
    const struct onnx_graph *body = eval_graph(e, "body");
    int64_t max = eval_in_int(e, 0, INT64_MAX);
    int n_state = e->node->inputs.n > 2 ? e->node->inputs.n - 2 : 0;
    int n_results = body->outputs.n - 1 - n_state;
    bool goes_on = !eval_has(e, 1) || truth(e, e->in[1]);
    eval_check(e, n_results >= 0 && e->n_out <= n_state + n_results, "the body's outputs");
    struct array **state = SPACE_ARRAY(e->space, struct array *, n_state + 2), **out;
    struct loop loop = new_loop(e, n_state, n_results, state + 2);
    for (int i = 0; i < n_state; i++) state[2 + i] = i + 2 < e->n_in ? e->in[2 + i] : NULL;
    for (int64_t t = 0; t < max && goes_on; t++) {
        /* Without a deadline, a fast endless loop would stop only when memory is out. */
        check_time(e, t);
        state[0] = eval_number(e, TYPE_I64, t);
        state[1] = eval_number(e, TYPE_BOOL, goes_on);
        out = run_graph(e, body, n_state + 2, state);
        goes_on = truth(e, out[0]);
        for (int i = 0; i < n_state; i++) state[2 + i] = out[1 + i];
        for (int i = 0; i < n_results; i++) remember(e, &loop.results[i], out[1 + n_state + i]);
        sweep(e, &loop);
    }
    /* After no iterations, states are the initial ones, and results are empty. */
    for (int i = 0; i < n_state; i++) eval_set_output(e, i, state[2 + i]);
    for (int i = 0; i < n_results; i++) {
        const struct onnx_value *output = ITEM(body->outputs, struct onnx_value, 1 + n_state + i);
        eval_set_output(e, n_state + i, stack(e, &loop.results[i], output, 0, false));
    }
}

/* ---- Scan ---- */

/* The slice at position `t` of an axis, without that axis. */
static struct array *take_place(struct eval *e, const struct array *x, int axis, int64_t t) {
    int64_t own[SOL_MAX_RANK], dim[SOL_MAX_RANK], stride[SOL_MAX_RANK];
    array_strides(x, own);
    for (int d = 0; d + 1 < x->rank; d++) {
        dim[d] = x->dim[d + (d >= axis)];
        stride[d] = own[d + (d >= axis)];
    }
    return move_strided(e, x, x->rank - 1, dim, t * own[axis], stride);
}

static int64_t item_of(const int64_t *list, int n, int i) { return i < n ? list[i] : 0; }

/* The attributes of a Scan. Missing items of a list are 0. */
struct scan {
    const struct onnx_graph *body;
    int n_state, n_scan, n_results;
    int64_t steps;
    const int64_t *axes, *directions, *out_axes, *out_directions;
    int n_axes, n_directions, n_out_axes, n_out_directions;
};

/* Inputs: states, then sequences. Outputs of the body: new states, then results of the step. */
static struct scan read_scan(struct eval *e, int n_in) {
    struct scan s = {.body = eval_graph(e, "body"), .steps = -1};
    int64_t n = eval_int(e, "num_scan_inputs", 0);
    eval_check(e, n > 0 && n <= n_in && n_in == s.body->inputs.n, "num_scan_inputs");
    s.n_scan = (int)n;
    s.n_state = n_in - s.n_scan;
    s.n_results = s.body->outputs.n - s.n_state;
    eval_check(e, s.n_results >= 0, "the body's outputs");
    s.n_axes = eval_ints(e, "scan_input_axes", &s.axes);
    s.n_directions =
        eval_ints(e, e->opset < 9 ? "directions" : "scan_input_directions", &s.directions);
    s.n_out_axes = eval_ints(e, "scan_output_axes", &s.out_axes);
    s.n_out_directions = eval_ints(e, "scan_output_directions", &s.out_directions);
    return s;
}

/* Runs all steps over the inputs `in`; stores final states and stacked results in `out`. */
static void scan(struct eval *e, struct scan s, struct array **in, struct array **out) {
    struct array **now = SPACE_ARRAY(e->space, struct array *, s.n_state + s.n_scan), **got;
    struct loop loop = new_loop(e, s.n_state, s.n_results, now);
    for (int i = 0; i < s.n_state; i++) now[i] = in[i];
    for (int i = 0; i < s.n_scan; i++) {
        const struct array *x = in[s.n_state + i];
        int axis = eval_axis(e, item_of(s.axes, s.n_axes, i), x->rank);
        eval_check(e, s.steps < 0 || s.steps == x->dim[axis], "inputs of different lengths");
        s.steps = x->dim[axis];
    }
    for (int64_t t = 0; t < s.steps; t++) {
        check_time(e, t);
        for (int i = 0; i < s.n_scan; i++) {
            const struct array *x = in[s.n_state + i];
            int axis = eval_axis(e, item_of(s.axes, s.n_axes, i), x->rank);
            bool is_back = item_of(s.directions, s.n_directions, i);
            now[s.n_state + i] = take_place(e, x, axis, is_back ? s.steps - 1 - t : t);
        }
        got = run_graph(e, s.body, s.n_state + s.n_scan, now);
        for (int i = 0; i < s.n_state; i++) now[i] = got[i];
        for (int i = 0; i < s.n_results; i++) remember(e, &loop.results[i], got[s.n_state + i]);
        sweep(e, &loop);
    }
    for (int i = 0; i < s.n_state; i++) out[i] = now[i];
    for (int i = 0; i < s.n_results; i++)
        out[s.n_state + i] =
            stack(e, &loop.results[i], ITEM(s.body->outputs, struct onnx_value, s.n_state + i),
                  (int)item_of(s.out_axes, s.n_out_axes, i),
                  item_of(s.out_directions, s.n_out_directions, i));
}

/* Opset 8: the first input is an optional list of lengths, and all other inputs and outputs have a leading batch dim. */
static void scan_batch(struct eval *e) {
    struct scan s = read_scan(e, e->n_in - 1);
    int n_in = s.n_state + s.n_scan, n_out = s.n_state + s.n_results;
    int64_t batch = eval_in(e, 1)->dim[0];
    if (eval_has(e, 0)) eval_stop(e, fail(SOL_EUNSUPPORTED, "sequences of different lengths"));
    struct history *all = SPACE_ARRAY(e->space, struct history, n_out);
    struct array **in = SPACE_ARRAY(e->space, struct array *, n_in), **out;
    for (int64_t b = 0; b < batch; b++) {
        for (int i = 0; i < n_in; i++) {
            eval_check(e, eval_in(e, 1 + i)->rank && e->in[1 + i]->dim[0] == batch, "the batch");
            in[i] = take_place(e, e->in[1 + i], 0, b);
        }
        out = SPACE_ARRAY(e->space, struct array *, n_out);
        scan(e, s, in, out);
        for (int i = 0; i < n_out; i++) remember(e, &all[i], out[i]);
    }
    for (int i = 0; i < n_out; i++)
        eval_set_output(e, i,
                        stack(e, &all[i], ITEM(s.body->outputs, struct onnx_value, i), 0, false));
}

/* Since opset 9 there is no batch dim, and each sequence may have its own axis and direction. */
void run_scan(struct eval *e) {
    if (e->opset < 9) {
        e->n_in = e->node->inputs.n;
        scan_batch(e);
        return;
    }
    struct scan s = read_scan(e, e->n_in);
    for (int i = 0; i < s.n_scan; i++) eval_in(e, s.n_state + i);
    struct array **out = SPACE_ARRAY(e->space, struct array *, s.n_state + s.n_results);
    scan(e, s, e->in, out);
    for (int i = 0; i < s.n_state + s.n_results; i++) eval_set_output(e, i, out[i]);
}

/* Runs the body for each item. Further inputs that are sequences are passed item by item, tensors as a whole. */
void run_sequence_map(struct eval *e) {
    const struct onnx_graph *body = eval_graph(e, "body");
    int64_t n = eval_sequence_in(e, 0)->n;
    eval_check(e, body->outputs.n == e->n_out, "the body's outputs");
    for (int i = 0; i < e->n_out; i++) eval_set_output(e, i, eval_sequence(e, n));
    struct array **in = SPACE_ARRAY(e->space, struct array *, e->n_in);
    for (int64_t t = 0; t < n; t++) {
        for (int i = 0; i < e->n_in; i++) {
            bool is_list = e->in[i] && e->in[i]->type == TYPE_SEQUENCE;
            eval_check(e, !is_list || e->in[i]->n == n, "sequences of different lengths");
            in[i] = is_list ? eval_items(e->in[i])[t] : e->in[i];
        }
        struct array **out = run_graph(e, body, e->n_in, in);
        for (int i = 0; i < e->n_out; i++) eval_items(e->out[i])[t] = out[i];
    }
}

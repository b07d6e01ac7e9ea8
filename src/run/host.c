/*
 * Host nodes at run time: the reference count of a function, and the step that calls it.
 *
 *   plan/build_host.c makes the step -> host_run: addresses and dims of this call -> host_call -> the function
 *
 * Deployed libraries contain this file.
 */
#include "run/host.h"

#include <stdio.h>
#include <string.h>

struct host_function *host_new(const struct sol_host *host) {
    const bool is_custom = host->run == host_run_custom, has_layer = !is_custom || host->user;
    struct host_function *function = has_layer ? mem_alloc(sizeof *function, 16) : NULL;
    if (!function) {
        if (host->release) host->release(host->user);
        return NULL;
    }
    atomic_init(&function->n_refs, 1);
    function->run = host->run;
    function->user = host->user;
    function->release = host->release;
    function->custom = is_custom ? host->user : NULL;
    return function;
}

void host_retain(struct host_function *function) { atomic_fetch_add(&function->n_refs, 1); }

void host_release(struct host_function *function) {
    if (!function || atomic_fetch_sub(&function->n_refs, 1) > 1) return;
    if (function->release) function->release(function->user);
    mem_free(function);
}

/* ---- Calls ---- */

static struct sol_host_call with_attributes(const struct host_custom *custom,
                                            const struct sol_host_call *call) {
    struct sol_host_call own = *call;
    own.n_attributes = custom->n_attributes, own.attribute = custom->attribute;
    return own;
}

enum sol_status host_run_custom(void *user, const struct sol_host_call *call) {
    const struct host_custom *custom = user;
    const struct sol_host_call own = with_attributes(custom, call);
    return custom->run(&own);
}

/* What NAME_tasks returns; 1 without it. */
static int64_t ask_tasks(const struct host_function *function, const struct sol_host_call *call) {
    const struct host_custom *custom = function->custom;
    if (!custom || !custom->tasks) return 1;
    const struct sol_host_call own = with_attributes(custom, call);
    return custom->tasks(&own);
}

static bool has_results(const struct sol_host_call *call) {
    for (int i = 0; i < call->n_out; i++)
        if (sol_host_count(&call->out[i])) return true;
    return false;
}

/* A call without tasks would leave its outputs as they are, so it has one task, which fails: check_tasks. */
int64_t host_count_tasks(const struct host_function *function, const struct sol_host_call *call) {
    const int64_t n = function ? ask_tasks(function, call) : 1;
    return n >= 1 ? n : has_results(call);
}

/* Appends "f32[2,3], i64[4]" to a text of `size` bytes. */
static void print_tensors(char *text, size_t size, int n, const struct sol_host_tensor *tensor) {
    for (int i = 0; i < n; i++) {
        size_t at = strlen(text);
        at += (size_t)snprintf(text + at, size - at, "%s%s[", i ? ", " : "",
                               size_dtype_name(tensor[i].dtype));
        for (int d = 0; d < tensor[i].rank && at < size; d++)
            at += (size_t)snprintf(text + at, size - at, d ? ",%lld" : "%lld",
                                   (long long)tensor[i].dim[d]);
        if (at + 1 >= size) return; /* the text is cut */
        (void)snprintf(text + at, size - at, "]");
    }
}

/* The frontend's functions explain their errors themselves. Those of users get the shapes behind their message. */
static enum sol_status fail_call(enum sol_status status, const struct host_function *function,
                                 const char *what, const struct sol_host_call *call) {
    const char *message = call->message[0] ? call->message : "the function failed";
    char in[200] = "", out[200] = "";
    if ((unsigned)status > SOL_EINDEX) status = SOL_EDEVICE; /* no code of enum sol_status */
    if (!function->custom) return fail(status, "%s: %s", what, message);
    print_tensors(in, sizeof in, call->n_in, call->in);
    print_tensors(out, sizeof out, call->n_out, call->out);
    return fail(status, "%s: %s; it was called for %s -> %s", what, message, in, out);
}

static enum sol_status check_tasks(const struct host_function *function, const char *what,
                                   const struct sol_host_call *call) {
    if (!function->custom || call->begin) return SOL_OK;
    const int64_t n = ask_tasks(function, call);
    if (n >= 1 || !has_results(call)) return SOL_OK;
    (void)snprintf(call->message, SOL_HOST_MESSAGE, "its number of tasks is %lld", (long long)n);
    return fail_call(SOL_EINVAL, function, what, call);
}

enum sol_status host_call(const struct host_function *function, const char *what,
                          const struct sol_host_call *from) {
    char message[SOL_HOST_MESSAGE] = "";
    struct sol_host_call call = *from;
    if (!function)
        return fail(SOL_EUNSUPPORTED, "%s: a model that was read from text has no such function",
                    what);
    call.message = message;
    TRY(check_tasks(function, what, &call));
    enum sol_status status = function->run(function->user, &call);
    if (!status && !message[0]) return SOL_OK;
    if (!status) status = SOL_EINVAL; /* an attribute that was not found */
    message[sizeof message - 1] = 0;
    return fail_call(status, function, what, &call);
}

/* ---- The step ---- */

size_t host_scratch_size(const struct host_step *host) {
    return sizeof(struct sol_host_tensor) * (size_t)(host->n_in + host->n_out);
}

/* Fills in the tensors of a call, without addresses if `ptr` is NULL. */
static struct sol_host_call describe(const struct host_step *host, void *const *ptr,
                                     const int64_t *arg, struct sol_host_tensor *tensor) {
    const int64_t *dim = arg + host->n_symbols;
    memcpy(tensor, host->tensor, host_scratch_size(host));
    for (int i = 0; i < host->n_in + host->n_out; i++) {
        tensor[i].data = ptr ? ptr[i] : NULL;
        for (int d = 0; d < tensor[i].rank; d++) tensor[i].dim[d] = *dim++;
    }
    return (struct sol_host_call){.n_in = host->n_in,
                                  .n_out = host->n_out,
                                  .in = tensor,
                                  .out = tensor + host->n_in,
                                  .n_symbols = host->n_symbols,
                                  .symbol = arg,
                                  .end = 1};
}

/* Custom layers have few tensors, so they fit the stack. */
static int64_t host_n_tasks(const struct step *step, const int64_t *arg) {
    const struct host_step *host = step->data;
    struct sol_host_tensor tensor[SOL_CUSTOM_TENSORS];
    if (!host->function || !host->function->custom) return 1;
    const struct sol_host_call call = describe(host, NULL, arg, tensor);
    return host_count_tasks(host->function, &call);
}

/* Also runs if tensors are empty: only the function knows whether it then has nothing to do. */
static void host_run(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                     int64_t begin, int64_t end) {
    const struct host_step *host = step->data;
    struct sol_host_call call = describe(host, ptr, arg, scratch);
    call.begin = begin, call.end = end;
    enum sol_status status = host_call(host->function, host->what, &call);
    if (status) exec_fail(status);
}

const struct step_kind step_host = {.name = "host",
                                    .run = host_run,
                                    .n_tasks = host_n_tasks,
                                    .on_caller = true,
                                    .after_guard = true};
const struct step_kind step_custom = {
    .name = "custom", .run = host_run, .n_tasks = host_n_tasks, .after_guard = true};

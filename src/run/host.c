/*
 * Host nodes at run time: the reference count of a frontend's function, and the step that calls it.
 *
 *   plan/build_host.c makes the step -> host_run: addresses and dims of this call -> host_call -> the frontend's function
 */
#include "run/host.h"

#include <string.h>

struct host_function *host_new(const struct sol_host *host) {
    struct host_function *function = mem_alloc(sizeof *function, 16);
    if (!function) {
        if (host->release) host->release(host->user);
        return NULL;
    }
    atomic_init(&function->n_refs, 1);
    function->run = host->run;
    function->user = host->user;
    function->release = host->release;
    return function;
}

void host_retain(struct host_function *function) { atomic_fetch_add(&function->n_refs, 1); }

void host_release(struct host_function *function) {
    if (!function || atomic_fetch_sub(&function->n_refs, 1) > 1) return;
    if (function->release) function->release(function->user);
    mem_free(function);
}

enum sol_status host_call(const struct host_function *function, const char *what,
                          struct sol_host_call *call) {
    char message[SOL_HOST_MESSAGE] = "";
    if (!function)
        return fail(SOL_EUNSUPPORTED, "%s: a model that was read from text has no such function",
                    what);
    call->message = message;
    enum sol_status status = function->run(function->user, call);
    if (!status) return SOL_OK;
    message[sizeof message - 1] = 0;
    if ((unsigned)status > SOL_EBUG) status = SOL_EDEVICE; /* no code of enum sol_status */
    return fail(status, "%s: %s", what, message[0] ? message : "the function failed");
}

size_t host_scratch_size(const struct host_step *host) {
    return sizeof(struct sol_host_tensor) * (size_t)(host->n_in + host->n_out);
}

int64_t host_n_tasks(const struct step *step, const int64_t *arg) {
    (void)step, (void)arg;
    return 1;
}

/* Also runs if tensors are empty: only the function knows whether it then has nothing to do. */
void host_run(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
              int64_t begin, int64_t end) {
    (void)begin, (void)end;
    const struct host_step *host = step->data;
    struct sol_host_tensor *tensor = scratch;
    const int64_t *dim = arg + host->n_symbols;
    memcpy(tensor, host->tensor, host_scratch_size(host));
    for (int i = 0; i < host->n_in + host->n_out; i++) {
        tensor[i].data = ptr[i];
        for (int d = 0; d < tensor[i].rank; d++) tensor[i].dim[d] = *dim++;
    }
    struct sol_host_call call = {.n_in = host->n_in,
                                 .n_out = host->n_out,
                                 .in = tensor,
                                 .out = tensor + host->n_in,
                                 .n_symbols = host->n_symbols,
                                 .symbol = arg};
    enum sol_status status = host_call(host->function, host->what, &call);
    if (status) exec_fail(status);
}

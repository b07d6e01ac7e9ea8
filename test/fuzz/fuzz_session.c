/* libFuzzer: running any bytes as an ONNX session gives results or a message. Inputs are small and not all zero. */
#include "no_compiler.h"

#include <stdlib.h>

#define MOST 4096 /* bytes of an input */

static char memory[2 * MOST];

/* A value of input i's declared type and shape. Without a declaration it is a float32; open dims are 2. */
static struct sol_value make_input(const struct sol_session *session, int i) {
    struct sol_value value = {.n = 1, .data = memory};
    sol_session_input(session, i, &value.type, &value.rank, value.dim);
    if (value.type == 0 || value.type == 8) value.type = 1; /* not a tensor, or strings */
    if (value.rank < 0) value.rank = 0;
    for (int d = 0; d < value.rank; d++) {
        if (value.dim[d] < 0) value.dim[d] = 2;
        if (value.dim[d] > MOST / 16 / value.n) value.dim[d] = 0;
        value.n *= value.dim[d];
        if (!value.n) value.n = 1;
    }
    value.n = 1;
    for (int d = 0; d < value.rank; d++) value.n *= value.dim[d];
    return value;
}

static void run(struct sol_session *session) {
    struct sol_value values[16];
    const struct sol_value *inputs[16];
    struct sol_results *results = NULL;
    int n = sol_session_n_inputs(session);
    if (n > 16) return;
    for (int i = 0; i < n; i++) {
        values[i] = make_input(session, i);
        inputs[i] = &values[i];
    }
    if (!sol_session_run(session, inputs, &results)) sol_results_free(results);
    else if (!*sol_error()) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sol_session *session = NULL;
    for (size_t i = 0; i < sizeof memory; i++) memory[i] = (char)(i % 8 ? 0 : i / 8 % 5);
    enum sol_status status = sol_session_parse(data, size, NULL, NULL, &session);
    if (status ? session != NULL || !*sol_error() : !session) abort();
    if (!status) run(session);
    sol_session_free(session);
    return 0;
}

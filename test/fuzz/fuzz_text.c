/* libFuzzer: reading any bytes as SOL's text form gives a message, or a model whose printed text can be read again. */
#include "no_compiler.h"

#include <stdlib.h>
#include <string.h>

static void check_round_trip(const struct sol_model *model) {
    struct sol_model *again = NULL;
    char *text = sol_model_print(model);
    if (text && sol_model_parse(text, &again)) abort();
    char *second = again ? sol_model_print(again) : NULL;
    if (text && second && strcmp(text, second) != 0) abort();
    free(text);
    free(second);
    sol_model_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sol_model *model = NULL;
    char *text = malloc(size + 1);
    if (!text) return 0;
    if (size) memcpy(text, data, size);
    text[size] = 0;
    if (!sol_model_parse(text, &model)) check_round_trip(model);
    sol_model_free(model);
    free(text);
    return 0;
}

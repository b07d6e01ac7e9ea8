/* A model of one layer, as text, from a row of a test's table. */
#ifndef ONE_LAYER_H
#define ONE_LAYER_H

#include "base/base.h"

#include <string.h>

/* `inputs` are types separated by blanks: they become %0, %1, .., and `layer` reads all of them.
 * `layer` is a kind and its attributes as in the text form. The model has symbol $0. */
static inline const char *write_one_layer(struct arena *arena, const char *inputs,
                                          const char *layer) {
    struct text text;
    int n = 0;
    text_init(&text, arena);
    text_add(&text, "model \"m\" {\nsymbol $0 \"n\"\n");
    for (const char *at = inputs; *at; at += *at == ' ') {
        size_t size = strcspn(at, " ");
        text_add(&text, "%%%d = input %.*s \"x\"\n", n++, (int)size, at);
        at += size;
    }
    size_t kind = strcspn(layer, " ");
    text_add(&text, "%%%d = %.*s", n, (int)kind, layer);
    for (int i = 0; i < n; i++) text_add(&text, " %%%d", i);
    text_add(&text, "%s\n}\n", layer + kind);
    return text.at;
}

#endif

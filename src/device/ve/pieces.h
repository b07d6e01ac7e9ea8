/*
 * Text for the device: a kernel that moves pieces between one block, where they lie one behind the other, and their places.
 *
 *   defines: SOL_KERNEL, its name, and GATHER: 1 into the block, 0 out of it | [this file] | entry.h -> compile.c
 *
 * A task is a piece: ptr[0] is the block, ptr[1 + i] the place of piece i, arg[i] its bytes.
 */
#include <stdint.h>
#include <string.h>

void SOL_KERNEL(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end) {
    char *at = (char *)ptr[0];
    (void)scratch;
    for (int64_t i = 0; i < begin; i++) at += arg[i];
    for (int64_t i = begin; i < end; at += arg[i++]) {
        if (GATHER) memcpy(at, ptr[1 + i], (size_t)arg[i]);
        else memcpy(ptr[1 + i], at, (size_t)arg[i]);
    }
}

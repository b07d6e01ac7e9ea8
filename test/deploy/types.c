/* Calls a library with inputs of all element types. Reads them from the file argv[1], and writes the outputs to argv[2], in the
 * order of the header. */
#include "Net.h"

#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 2, LENGTH = 5, WIDTH = 8, N = BATCH * LENGTH };

static int64_t ids[N];
static uint8_t mask[N];
static float scale[N];
static int32_t count[N];
static uint8_t pixels[N];
static uint16_t half[N * WIDTH];
static uint16_t small[N];
static double wide[BATCH];

#define READ(x) (fread(x, 1, sizeof x, file) == sizeof x)
#define WRITE(x, n) (fwrite(x, sizeof *x, n, file) == (n))

int main(int argc, char **argv) {
    FILE *file = argc == 3 ? fopen(argv[1], "rb") : NULL;
    if (!file) return 1;
    if (!READ(ids) || !READ(mask) || !READ(scale) || !READ(count)) return 2;
    if (!READ(pixels) || !READ(half) || !READ(small) || !READ(wide)) return 2;
    fclose(file);
    float *logits = NULL;
    int64_t best_of_caller[BATCH], *best = best_of_caller;
    uint8_t *any = NULL;
    double *doubled = NULL;
    uint16_t *twice = NULL, *sum = NULL;
    int32_t *next = NULL;
    uint8_t *bright = NULL;
    predict(NULL, ids, mask, scale, count, pixels, half, small, wide, &logits, &best, &any,
            &doubled, &twice, &sum, &next, &bright);
    if (!logits) return fprintf(stderr, "%s\n", predict_error()), 3;
    file = fopen(argv[2], "wb");
    if (!file) return 4;
    const int ok = WRITE(logits, (size_t)N) && WRITE(best, (size_t)BATCH) &&
                   WRITE(any, (size_t)N) && WRITE(doubled, (size_t)BATCH) &&
                   WRITE(twice, (size_t)N * WIDTH) && WRITE(sum, (size_t)N) &&
                   WRITE(next, (size_t)N) && WRITE(bright, (size_t)N);
    free(logits), free(any), free(doubled), free(twice), free(sum), free(next), free(bright);
    return fclose(file) || !ok ? 5 : 0;
}

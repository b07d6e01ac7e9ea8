/* Threads that all start with the library's first call: PROGRAM inputs.raw outputs.raw. One input and one output per thread. The exit
 * code is 1 if a call gives other values than the first call of its thread. IN_CONTEXT: all threads use one context. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "Net.h"

#define THREADS 4
#define ROUNDS 50

static float input[THREADS][N_IN], output[THREADS][N_OUT];
static pthread_barrier_t start;
static struct Net_context *context; /* NULL: predict uses its own context */

/* Returns 0 or an error code. Repeats a call that is refused because of another one. */
static int call(int i, float *own) {
    float *result = NULL;
#ifdef OWN_MEMORY
    result = own;
#endif
    predict(context, input[i], &result);
    while (strstr(predict_error(), "under way")) predict(context, input[i], &result);
    if (!result || *predict_error()) return fprintf(stderr, "%s\n", predict_error()), 1;
    if (result != own) memcpy(own, result, sizeof output[i]);
#ifndef OWN_MEMORY
    free(result);
#endif
    return 0;
}

static void *work(void *user) {
    const int i = (int)((float (*)[N_IN])user - input);
    static const char bad[] = "bad";
    float again[N_OUT];
    pthread_barrier_wait(&start);
    if (call(i, output[i])) return (void *)(size_t)bad;
    for (int n = 0; n < ROUNDS; n++)
        if (call(i, again) || memcmp(again, output[i], sizeof again)) return (void *)(size_t)bad;
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread[THREADS];
    void *bad = NULL;
    int n_bad = 0;
    FILE *in = argc == 3 ? fopen(argv[1], "rb") : NULL, *out = in ? fopen(argv[2], "wb") : NULL;
    if (!out || fread(input, sizeof *input, THREADS, in) != THREADS) return 2;
#ifdef IN_CONTEXT
    if (Net_open(NULL, &context)) return fputs(Net_error(), stderr), 3;
#endif
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, work, input[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], &bad), n_bad += bad != NULL;
    fwrite(output, sizeof *output, THREADS, out);
    return fclose(out) || n_bad;
}

/* Calls a library: reads the values of one input, writes those of the first output. PROGRAM input.raw output.raw */
#include <stdio.h>
#include <stdlib.h>

#include "Net.h"

int main(int argc, char **argv) {
    static float input[N_IN];
    float *output = NULL;
    FILE *in = argc == 3 ? fopen(argv[1], "rb") : NULL, *out = in ? fopen(argv[2], "wb") : NULL;
    if (!out || fread(input, sizeof *input, N_IN, in) != N_IN) return 2;
#ifdef OWN_MEMORY
    static float memory[N_OUT];
    output = memory;
#endif
    predict_init(0);
    predict(NULL, input, &output);
    if (!output || *predict_error()) return fputs(predict_error(), stderr), 1;
    fwrite(output, sizeof *output, N_OUT, out);
#ifndef OWN_MEMORY
    free(output);
#endif
    return fclose(in) || fclose(out);
}

/*
 * The program `sol`: what libsol can do, without Python.
 *
 *   sol.c      commands and options      -> struct options
 *   network.c  file -> compiled network with weights and memory for a call
 *   npy.c      arrays in NumPy's files
 *   command_*  one file per group of commands
 *
 * It sees only include/sol. Every command returns the process's exit code: 0, 1 for a failure that was told, 2 for bad usage.
 */
#ifndef SOL_CLI_H
#define SOL_CLI_H

#include <sol/onnx.h>
#include <sol/sol.h>
#include <stdio.h>

#define MOST_FILES 64

struct options {
    const char *command, *model; /* model: a file name */
    const char *after;           /* dump: a pass */
    const char *json, *output;   /* files to write */
    const char *input[MOST_FILES];
    int n_inputs;
    int64_t batch; /* of every open size */
    int runs;      /* calls at least */
    double seconds;
    uint64_t seed;
    const char *target, *weights, *lib_name, *func_name, *compiler; /* deploy */
    bool static_memory;
    struct sol_options compile;
};

/* Says what went wrong (printf), on stderr, and returns 1. */
int complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- network.c ---- */

/* A line on the terminal that is overwritten; for compiles. */
void show_progress(void *user, int done, int total, const char *what);

struct network {
    struct sol_onnx *onnx;  /* NULL for the text form */
    struct sol_model *text; /* NULL for ONNX */
    const struct sol_model *model;
    struct sol_program *program;
    struct sol_weights *weights;
    void **params; /* random ones, of a text; NULL entries for none */
    void **inputs, **outputs;
    int64_t symbols[4];
    double read_s, compile_s, weights_s;
};

/* Each returns 0, or 1 after it has complained. `close_network` undoes whatever was done. */
int open_model(const struct options *options, struct network *out);
int compile_network(const struct options *options, struct network *network);
/* Weights, inputs (random, or from --input) and memory for outputs. */
int fill_network(const struct options *options, struct network *network);
void close_network(struct network *network);
/* The shape of a port for the chosen batch; its number of elements, -1 when that overflows. */
int64_t port_shape(const struct network *network, const struct sol_port *port,
                   int64_t dim[SOL_MAX_RANK]);
/* As open_model, but an .onnx file that cannot be compiled as a whole gives NEEDS_INTERPRETER without a complaint. */
enum { NEEDS_INTERPRETER = -1 };
int read_model(const struct options *options, struct network *out);
/* Values in [-scale, scale) for f32; other types stay as they are. */
void fill_random(uint64_t *state, enum sol_dtype dtype, int64_t n, double scale, void *data);
size_t dtype_size(enum sol_dtype dtype);
const char *dtype_name(enum sol_dtype dtype);

/* ---- npy.c ---- */

/* Reads an array of this type and shape into `data`. A file whose name does not end in .npy is raw: just the values. */
int read_array(const char *path, enum sol_dtype dtype, int rank, const int64_t *dim, void *data);
int write_array(const char *path, enum sol_dtype dtype, int rank, const int64_t *dim,
                const void *data);

/* ---- command_run.c, command_mixed.c ---- */

/* Prints output `i`, or writes it where --output says. */
int show_array(const struct options *options, const char *name, enum sol_dtype dtype, int rank,
               const int64_t *dim, const void *data, int i);
int run_mixed(const struct options *options);

/* ---- Commands ---- */

int command_compile(const struct options *options);
int command_run(const struct options *options);
int command_bench(const struct options *options);
int command_profile(const struct options *options);
int command_report(const struct options *options);
int command_deploy(const struct options *options);
int command_dump(const struct options *options);
int command_devices(const struct options *options);
int command_cache(const struct options *options);

#endif

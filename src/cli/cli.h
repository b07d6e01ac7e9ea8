/*
 * The program `sol`: what libsol can do, without Python.
 *
 *   sol.c      the commands, and their help
 *   option.c   options, what each command takes of them -> struct options
 *   source.c   a file, pipe or standard input -> a model, known by its content
 *   input.c    what a call is given: --input, --shape, --batch -> a shape for each input, and values
 *   network.c  model -> compiled network with weights and memory for a call
 *   npy.c      arrays in NumPy's files
 *   say.c      what is printed
 *   command_*  one file per group of commands
 *
 * It sees only include/sol. Every command returns the process's exit code: 0, 1 for a failure that was told, 2 for bad usage.
 */
#ifndef SOL_CLI_H
#define SOL_CLI_H

#include <sol/onnx.h>
#include <sol/sol.h>
#include <stdio.h>

#define MAX_FILES 64

struct options {
    const char *command, *model; /* model: a path */
    const char *after;           /* dump: a pass */
    const char *json, *output;   /* files to write */
    const char *input[MAX_FILES], *shape[MAX_FILES];
    int n_inputs, n_shapes;
    int64_t batch; /* -1: not told */
    int runs;      /* calls at least */
    double seconds;
    uint64_t seed;
    const char *target, *weights, *lib_name, *func_name, *compiler; /* deploy */
    bool static_memory;
    struct sol_options compile;
};

/* ---- say.c: names, paths and texts of files come out clean, see sol_clean ---- */

/* Prints to stdout (printf). */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A remark on stderr: "sol: ...". */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says what went wrong, as `note`, and returns 1. */
int complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A name in one line. Valid until the eighth call from now; long ones lose their end. */
const char *clean(const char *name);
/* A line on the terminal that is overwritten; for compiles. */
void show_progress(void *user, int done, int total, const char *what);
void clear_progress(void);
double now(void); /* seconds */

/* ---- option.c ---- */

/* Fills `out`. -1: the command may run; else the exit code. */
int read_options(int argc, char **argv, struct options *out);

struct command {
    const char *name;
    int (*run)(const struct options *options);
    const char *word; /* what stands behind it: "MODEL", or one that may be left out, "[clear]" */
    const char *text; /* in one line */
    uint64_t takes;   /* bits of options */
    const char *more; /* further lines of its own help, or NULL */
};
extern const struct command commands[];               /* ended by a name of NULL */
const struct command *find_command(const char *name); /* NULL after a complaint */
void print_options(FILE *to, uint64_t takes);
/* Of the program, and of a command. */
void print_help(FILE *to);
void print_command_help(const struct command *command);

/* ---- npy.c ---- */

/* An open array file. Without a header (raw values) there is no type, and the rank is -1. */
struct npy_file {
    FILE *file;
    const char *path;
    bool is_raw;
    char type[16]; /* NumPy's description, such as <f4 */
    int rank;
    int64_t dim[SOL_MAX_RANK];
};

/* 0, or 1 after a complaint; `close_array` in either case. A file whose name does not end in .npy is raw. */
int open_array(const char *path, struct npy_file *out);
/* Does it hold such elements? A raw file does. */
bool array_is(const struct npy_file *array, enum sol_dtype dtype);
/* Reads all `n` elements; more or fewer are a complaint. */
int read_array(struct npy_file *array, enum sol_dtype dtype, int64_t n, void *data);
void close_array(struct npy_file *array);
int write_array(const char *path, enum sol_dtype dtype, int rank, const int64_t *dim,
                const void *data);
/* "(2, 3)" and "(2,)", as Python prints tuples; a dim below 0 by its name, or as ?. */
typedef const char *name_size(const void *user, int64_t dim);
const char *print_shape(char out[512], int rank, const int64_t *dim, name_size *name,
                        const void *user);

/* ---- source.c ---- */

/* A file as it was named. */
struct source {
    const char *path;
    char *bytes; /* all of it, NUL behind it; of an ONNX file in a folder only the beginning */
    size_t size;
    bool is_onnx, is_stream; /* a stream is gone once it was read */
};
int open_source(const char *path, struct source *out);
void close_source(struct source *source);

/* ---- input.c ---- */

/* One input of a call. */
struct input {
    /* as the network tells; rank -1: any; dtype SOL_N_DTYPES: none that files have */
    struct sol_port port;
    struct npy_file array; /* of --input; no file: random */
    int rank;
    int64_t dim[SOL_MAX_RANK]; /* of this call */
    void *data;
};

/* Open sizes: those of equal number are equal, but for LOOSE ones, each of which is for itself. */
#define LOOSE INT64_C(-1000000)
struct size_value {
    int64_t number, value;
    char from[160]; /* who said so */
};
struct inputs {
    int n, n_sizes;
    struct input *at;
    struct size_value size[MAX_FILES];
    name_size *name;
    const void *user; /* for name */
    int64_t batch;    /* the first size of the first input, else 1 */
};

/* Decides the shape of every input by --shape, --batch and the files of --input. What nobody says is 1, which a note tells.
 * `inputs` holds ports, the rest zero. */
int plan_inputs(const struct options *options, struct inputs *inputs);
bool has_open_sizes(const struct inputs *inputs);
/* The value of an open size, -1 when none of the inputs has it. */
int64_t size_of(const struct inputs *inputs, int64_t number);
/* Allocates and fills all values: from files, or random. */
int fill_inputs(const struct options *options, struct inputs *inputs);
void free_inputs(struct inputs *inputs);
/* Elements of a shape; -1 when they do not fit. */
int64_t count_elements(int rank, const int64_t *dim);

/* ---- network.c, source.c ---- */

struct network {
    struct source source;
    struct sol_onnx *onnx;  /* NULL for the text form */
    struct sol_model *text; /* NULL for ONNX */
    const struct sol_model *model;
    struct inputs inputs;
    int64_t symbols[4];
    struct sol_program *program;
    struct sol_weights *weights;
    void **params; /* random ones, of a text; NULL entries for none */
    void **outputs;
    const void **input_data;
    double read_s, compile_s, weights_s;
};

/* Each returns 0, or 1 after it has complained. `close_network` undoes whatever was done. */
int open_model(const struct options *options, struct network *out);
/* Its inputs' shapes and its symbols, for --batch, --shape and --input; compile_network does it first. */
int choose_sizes(const struct options *options, struct network *network);
int compile_network(const struct options *options, struct network *network);
/* Weights, inputs (random, or from --input) and memory for outputs. */
int fill_network(const struct options *options, struct network *network);
void close_network(struct network *network);
/* As open_model, but an ONNX model that cannot be compiled as a whole gives NEEDS_INTERPRETER without a complaint. */
enum { NEEDS_INTERPRETER = -1 };
int read_model(const struct options *options, struct network *out);
/* Values in [-scale, scale) for f32; other types stay as they are. */
void fill_random(uint64_t *state, enum sol_dtype dtype, int64_t n, double scale, void *data);
/* Zeroed; NULL when there is no memory, or no such array. */
void *make_array(int64_t n, enum sol_dtype dtype);
size_t dtype_size(enum sol_dtype dtype);
const char *dtype_name(enum sol_dtype dtype);

/* ---- command_run.c, command_session.c ---- */

/* Opens, compiles and fills a network, then does `job` with it. */
typedef int network_job(const struct options *, struct network *);
int with_network(const struct options *options, network_job *job);
int call_network(struct network *network);
/* Prints output `i`, or writes it where --output says. */
int show_array(const struct options *options, const char *name, enum sol_dtype dtype, int rank,
               const int64_t *dim, const void *data, int i);
int run_session(const struct options *options, const struct source *source);
enum sol_status open_session(const struct options *options, const struct source *source,
                             struct sol_session **out);
/* Fills `out` with the network's ports; names live as long as the network. */
int list_session_ports(const struct sol_session *net, struct inputs *out);

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
int command_help(const struct options *options);

#endif

/*
 * The command line program `sol`: offers the functions of libsol without Python.
 *
 *   sol.c      the commands, and their help
 *   option.c   arguments of the process -> struct options; which options each command has
 *   source.c   a file, pipe or standard input -> a model; its content decides which kind it is
 *   input.c    --input, --shape, --batch -> a shape and values for each input of a call
 *   network.c  model -> compiled network with weights and memory for a call
 *   npy.c      reads and writes NumPy's array files
 *   say.c      prints text and messages
 *   command_*  one file per group of commands
 *
 * The program includes only headers of include/sol. Every command returns the exit code of the process: 0, 1 after a failure with a
 * message, 2 for wrong usage.
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
    int64_t batch; /* -1: not given */
    int runs;      /* least number of calls */
    double seconds;
    uint64_t seed;
    const char *target, *weights, *lib_name, *func_name, *compiler; /* deploy */
    bool static_memory;
    char device[64]; /* the name in `compile` */
    struct sol_options compile;
};

/* ---- say.c: names, paths and texts of files are cleaned before they are printed, see sol_clean ---- */

/* Prints to stdout (printf). */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints "sol: ..." to stderr. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints an error message, as `note`, and returns 1. */
int complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A name as clean text in one line. Long names are cut. The result is valid until the eighth call from now. */
const char *clean(const char *name);
/* Progress of a compile, as a line on the terminal that each call overwrites and clear_progress clears. */
void show_progress(void *user, int done, int total, const char *what);
void clear_progress(void);
double now(void); /* seconds */

/* ---- option.c ---- */

/* Fills `out`. Returns -1 when the command may run, else the exit code. */
int read_options(int argc, char **argv, struct options *out);

struct command {
    const char *name;
    int (*run)(const struct options *options);
    const char *word; /* its argument: "MODEL", or an optional one, "[clear]" */
    const char *text; /* a description in one line */
    uint64_t takes;   /* the options that it has, as BITs of enum option_row */
    const char *more; /* further lines of the help of this command, or NULL */
};
extern const struct command commands[];               /* the last row has the name NULL */
const struct command *find_command(const char *name); /* NULL after a message */
void print_options(FILE *to, uint64_t takes);
/* Print the help of the program, and of a command. */
void print_help(FILE *to);
void print_command_help(const struct command *command);

/* ---- npy.c ---- */

/* An open array file. A raw file has values without a header: its type is unknown and its rank is -1. */
struct npy_file {
    FILE *file;
    const char *path;
    bool is_raw;
    char type[16]; /* NumPy's description, such as <f4 */
    int rank;
    int64_t dim[SOL_MAX_RANK];
};

/* Returns 0, or 1 after a message; call `close_array` in both cases. A file whose name does not end in .npy is raw. */
int open_array(const char *path, struct npy_file *out);
/* Does the file hold elements of this type? True for every raw file. */
bool array_is(const struct npy_file *array, enum sol_dtype dtype);
/* Reads all `n` elements. Returns 0, or 1 after a message, also when the file has more or fewer. */
int read_array(struct npy_file *array, enum sol_dtype dtype, int64_t n, void *data);
void close_array(struct npy_file *array);
int write_array(const char *path, enum sol_dtype dtype, int rank, const int64_t *dim,
                const void *data);
/* Prints "(2, 3)" or "(2,)", as Python prints tuples; a dim below 0 as the name that `name` returns for it, or as ?. */
typedef const char *name_size(const void *user, int64_t dim);
const char *print_shape(char out[512], int rank, const int64_t *dim, name_size *name,
                        const void *user);

/* ---- source.c ---- */

/* A model file. */
struct source {
    const char *path;
    char *bytes; /* all, with a NUL at the end; of an ONNX file on disk only the beginning */
    size_t size;
    bool is_onnx, is_stream; /* a stream can be read only once */
};
int open_source(const char *path, struct source *out);
void close_source(struct source *source);

/* ---- input.c ---- */

/* One input of a call. */
struct input {
    struct sol_port port;  /* of the network; rank -1: any; SOL_N_DTYPES: no type of files */
    struct npy_file array; /* the file of --input; without one, values are random */
    int rank;
    int64_t dim[SOL_MAX_RANK]; /* of this call */
    void *data;
};

/* Open sizes are numbers below 0. Dims with the same number have the same size, except LOOSE dims, whose sizes are independent. */
#define LOOSE INT64_C(-1000000)
struct size_value {
    int64_t number, value;
    char from[160]; /* the option that has set it, for messages */
};
struct inputs {
    int n, n_sizes;
    struct input *at;
    struct size_value size[MAX_FILES];
    name_size *name;
    const void *user; /* for name */
    int64_t batch;    /* the first size of the first input, else 1 */
};

/* Sets the shape of every input from --shape, --batch and the files of --input. A size that none of them gives becomes 1, and a
 * note says so. The caller has set the ports of `inputs`, and the rest to zero. */
int plan_inputs(const struct options *options, struct inputs *inputs);
bool has_open_sizes(const struct inputs *inputs);
/* The value of an open size, -1 when no input has it. */
int64_t size_of(const struct inputs *inputs, int64_t number);
/* Allocates the values of all inputs; reads them from files, or fills them with random values. */
int fill_inputs(const struct options *options, struct inputs *inputs);
void free_inputs(struct inputs *inputs);
/* Elements of a shape; -1 when they do not fit. */
int64_t count_elements(int rank, const int64_t *dim);

/* ---- network.c, source.c ---- */

/* A network that is compiled as a whole, or has a session. */
struct network {
    struct source source;
    struct sol_onnx *onnx;  /* NULL for the text form */
    struct sol_model *text; /* NULL for ONNX */
    const struct sol_model *model;
    struct inputs inputs;
    int64_t symbols[SOL_MAX_SYMBOLS];
    struct sol_program *program;
    struct sol_weights *weights;
    void **params; /* random values, for the text form; entries may be NULL */
    void **outputs;
    const void **input_data;
    struct sol_session *session; /* NULL: compiled as a whole */
    struct sol_value *values;    /* of the session's inputs */
    double read_s, compile_s, weights_s;
};

/* Each function returns 0, or 1 after a message. `close_network` frees everything, also after a failure. */
int open_model(const struct options *options, struct network *out);
/* Sets the shapes of its inputs and its symbols from --batch, --shape and --input. compile_network calls it first. */
int choose_sizes(const struct options *options, struct network *network);
int compile_network(const struct options *options, struct network *network);
/* Weights, inputs (random, or from --input) and memory for outputs. */
int fill_network(const struct options *options, struct network *network);
void close_network(struct network *network);
/* As open_model, but an ONNX model that cannot be compiled as a whole gets a session. */
int open_model_or_session(const struct options *options, struct network *out);
/* Fills f32 with values in [-scale, scale); memory of other types does not change. */
void fill_random(uint64_t *state, enum sol_dtype dtype, int64_t n, double scale, void *data);
/* Zeroed memory for `n` elements; NULL when memory is out or `n` is invalid. */
void *make_array(int64_t n, enum sol_dtype dtype);
size_t dtype_size(enum sol_dtype dtype);
const char *dtype_name(enum sol_dtype dtype);

/* ---- command_run.c, command_session.c ---- */

/* Opens, compiles and fills a network, then calls `job` with it. `in_session`: instead of `job` for a network that has a session;
 * NULL: such a network is an error. */
typedef int network_job(const struct options *, struct network *);
int with_network(const struct options *options, network_job *job, network_job *in_session);
/* Makes a call, without its results if the network has a session. */
int call_network(struct network *network);
/* Prints output `i`, or writes it to the file of --output. */
int show_array(const struct options *options, const char *name, enum sol_dtype dtype, int rank,
               const int64_t *dim, const void *data, int i);
network_job run_session;
/* Reads or makes the values of the inputs, whose shapes are chosen. */
int fill_session(const struct options *options, struct network *network);
enum sol_status call_session(const struct network *network, struct sol_results **out);
enum sol_status open_session(const struct options *options, const struct source *source,
                             struct sol_session **out);
/* Fills `out` with the session's input ports; their names are valid as long as the session. */
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

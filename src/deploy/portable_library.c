/* ---- The interface ---- */

/*
 * The interface of a portable library, and the end of its C file. NAME and FUNC are replaced by the library's and the function's
 * name. The text before it defines tables, and sol_steps, which computes the network.
 *
 * Calls share no memory that they write to, except in a library with static memory, which allows one call at a time.
 */

/* The message is per thread on systems that usually have threads. On others: -DSOL_THREAD_LOCAL=_Thread_local. */
#ifndef SOL_THREAD_LOCAL
#if !defined(__unix__) && !defined(__APPLE__) && !defined(_WIN32)
#define SOL_THREAD_LOCAL
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L && !defined(__STDC_NO_THREADS__)
#define SOL_THREAD_LOCAL _Thread_local
#elif defined(__GNUC__)
#define SOL_THREAD_LOCAL __thread
#elif defined(_MSC_VER)
#define SOL_THREAD_LOCAL __declspec(thread)
#else
#define SOL_THREAD_LOCAL
#endif
#endif

static SOL_THREAD_LOCAL const char *sol_message = "";

/* Every function of the interface ends with this one, which sets the message. */
static int sol_end(int code, const char *text) {
    sol_message = text;
    return code;
}

static int sol_done(void) { return sol_end(0, ""); }

const char *NAME_error(void) { return sol_message; }
const char *FUNC_error(void) { return sol_message; }
int FUNC_seed(const int seed) { return (void)seed, sol_done(); }
void NAME_set_threads(int n) { (void)n, sol_done(); }

/* ---- Shared by threads ---- */

/* A pointer that the first of several threads sets. sol_claim returns whether it was the calling thread. Without atomic
 * instructions, it is a plain variable, since a library for atomic operations may not exist. */
#if SOL_FILE || SOL_STATIC
#ifdef __GCC_ATOMIC_POINTER_LOCK_FREE
#define SOL_BUILTIN (__GCC_ATOMIC_POINTER_LOCK_FREE == 2)
#define SOL_STANDARD 0
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L && !defined(__STDC_NO_ATOMICS__)
#define SOL_BUILTIN 0
#define SOL_STANDARD 1
#else
#define SOL_BUILTIN 0
#define SOL_STANDARD 0
#endif

#if SOL_BUILTIN
typedef char *sol_pointer;
#define SOL_READ(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
#define SOL_CLEAR(at) __atomic_store_n(at, (char *)0, __ATOMIC_RELEASE)
#define SOL_SWAP(at, old, value) \
    __atomic_compare_exchange_n(at, old, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)
#elif SOL_STANDARD
#include <stdatomic.h>
typedef _Atomic(char *) sol_pointer;
#define SOL_READ(at) atomic_load(at)
#define SOL_CLEAR(at) atomic_store(at, (char *)0)
#define SOL_SWAP(at, old, value) atomic_compare_exchange_strong(at, old, value)
#else
typedef char *volatile sol_pointer;
#define SOL_READ(at) (*(at))
#define SOL_CLEAR(at) (*(at) = (char *)0)
#define SOL_SWAP(at, old, value) (*(at) == *(old) ? (*(at) = (value), 1) : 0)
#endif

static int sol_claim(sol_pointer *at, char *value) {
    char *none = (char *)0;
    return SOL_SWAP(at, &none, value);
}
#endif

/* ---- Weights ---- */

#if SOL_FILE
static sol_pointer sol_read;
#define SOL_WEIGHTS SOL_READ(&sol_read)

/* fopen of a pipe would wait for a writer. */
#if defined(__unix__) || defined(__APPLE__)
#include <sys/stat.h>
static int sol_is_file(const char *path) {
    struct stat at;
    return !stat(path, &at) && S_ISREG(at.st_mode);
}
#else
static int sol_is_file(const char *path) { return (void)path, 1; }
#endif

/* Reads the weights and checks the head, the size and the hash of the file. */
static int sol_check_weights(FILE *file, char *values) {
    char head[4096];
    size_t zeros = sizeof sol_expected;
    struct weights_hash hash = {0, 0, 0, 0};
    uint64_t expected, found;
    if (fread(head, 1, sizeof head, file) != sizeof head ||
        memcmp(head, sol_expected, sizeof sol_expected) != 0)
        return sol_end(1, "the file holds no weights of this network");
    if (fread(values, 1, SOL_WEIGHTS_SIZE, file) != SOL_WEIGHTS_SIZE || fgetc(file) != EOF)
        return sol_end(1, "the file of weights is damaged: its size is another one");
    weights_hash_add(&hash, values, SOL_WEIGHTS_SIZE);
    found = weights_hash_end(&hash);
    memcpy(&expected, sol_expected + 8, sizeof expected);
    while (zeros < sizeof head && !head[zeros]) zeros++;
    if (found != expected || zeros < sizeof head)
        return sol_end(
            1, "the file of weights is damaged, or for processors with another order of bytes");
    return 0;
}

/* Several threads may read the file at the same time; the weights of the first one are kept. */
static int sol_read_weights(FILE *file) {
    char *values = (char *)malloc(SOL_WEIGHTS_SIZE + 1);
    int code;
    if (!values) return sol_end(3, "no memory for the weights");
    code = sol_check_weights(file, values);
    if (code || !sol_claim(&sol_read, values)) free(values);
    return code;
}

static int sol_open_weights(const char *path) {
    FILE *file;
    int code;
    if (SOL_WEIGHTS) return 0;
    if (!path) path = SOL_FILE_NAME;
    file = sol_is_file(path) ? fopen(path, "rb") : (FILE *)0;
    if (!file)
        return sol_end(1, "cannot open the file of weights, " SOL_FILE_NAME " or another one");
    code = sol_read_weights(file);
    fclose(file);
    return code;
}
#else
#define SOL_WEIGHTS sol_weights
static int sol_open_weights(const char *path) { return (void)path, 0; }
#endif

/* ---- Memory ---- */

/* sol_take: memory for all intermediate values of a call. sol_new: memory for an output. */
#if SOL_STATIC
static union {
    double align;
    char at[SOL_ARENA_SIZE];
} sol_memory;
static sol_pointer sol_user;

static char *sol_take(void) {
    if (sol_claim(&sol_user, sol_memory.at)) return sol_memory.at;
    sol_end(1, "another call is under way: static memory is for one at a time");
    return (char *)0;
}
static void sol_give_back(char *memory) { (void)memory, SOL_CLEAR(&sol_user); }

static void *sol_new(size_t size) {
    (void)size, sol_end(1, "an output is NULL: with static memory they are the caller's");
    return (void *)0;
}
static void sol_free(void *at) { (void)at; }
#else
static char *sol_take(void) {
    char *memory = (char *)malloc(SOL_ARENA_SIZE + 64);
    if (!memory) sol_end(3, "no memory for intermediate results");
    return memory;
}
static void sol_give_back(char *memory) { free(memory); }

static void *sol_new(size_t size) {
    void *memory = malloc(size + 1);
    if (!memory) sol_end(3, "no memory for an output");
    return memory;
}
static void sol_free(void *at) { free(at); }
#endif

static char *sol_align(char *memory) {
    return SOL_STATIC ? memory : memory + (64 - (uintptr_t)memory % 64);
}

/* ---- Contexts ---- */

/* There is one context for all callers, since calls keep no state. */
struct NAME_context {
    char none;
};
static struct NAME_context sol_context;

int NAME_open(const char *weights_file, struct NAME_context **out) {
    int code;
    if (!out) return sol_end(1, "the pointer to the new context is NULL");
    code = sol_open_weights(weights_file);
    *out = code ? (struct NAME_context *)0 : &sol_context;
    return code ? code : sol_done();
}

void NAME_close(struct NAME_context *context) { (void)context, sol_done(); }

void FUNC_init(const int deviceIdx) {
    if (deviceIdx) sol_end(1, "there is no such device: the only one is 0");
    else if (!sol_open_weights((const char *)0)) sol_done();
}

/* ---- Calls ---- */

static int sol_check_sizes(const int64_t *sizes) {
    int i;
    for (i = 0; sizes && i < SOL_N_SIZES; i++)
        if (sizes[i] != sol_size[i]) return sol_end(1, "this library is for other sizes");
    return 0;
}

static int sol_check_pointers(const void *const *inputs, void *const *outputs) {
    int i;
    if (!inputs || !outputs) return sol_end(1, "the list of inputs or outputs is NULL");
    for (i = 0; i < SOL_N_INPUTS; i++)
        if (!inputs[i]) return sol_end(1, "an input is NULL");
    for (i = 0; i < SOL_N_OUTPUTS; i++)
        if (!outputs[i]) return sol_end(1, "an output is NULL");
    return 0;
}

static int sol_compute(const void *const *inputs, void *const *outputs) {
    char *memory = sol_take();
    int is_bad;
    if (!memory) return SOL_STATIC ? 1 : 3;
    is_bad = sol_steps((const char *)SOL_WEIGHTS, (const char *const *)inputs, outputs,
                       sol_align(memory));
    sol_give_back(memory);
    return is_bad ? sol_end(1, "a number in an input is outside of its table") : sol_done();
}

int NAME_run(struct NAME_context *context, const int64_t *sizes, const void *const *inputs,
             void *const *outputs) {
    int code;
    if (!context) return sol_end(1, "no context");
    code = sol_check_sizes(sizes);
    if (!code) code = sol_check_pointers(inputs, outputs);
    return code ? code : sol_compute(inputs, outputs);
}

/* Outputs that are allocated here are freed when the call fails. */
static void sol_predict(struct NAME_context *context, const void *const *inputs,
                        void **const *outputs) {
    void *result[SOL_N_OUTPUTS + 1];
    int i, code = 0, made = 0;
    for (; made < SOL_N_OUTPUTS && !code; made++) {
        result[made] = *outputs[made] ? *outputs[made] : sol_new(sol_output_size[made]);
        code = !result[made];
    }
    if (!code) code = NAME_run(context, (const int64_t *)0, inputs, result);
    for (i = 0; i < made; i++) {
        if (code && !*outputs[i]) sol_free(result[i]);
        if (!code) *outputs[i] = result[i];
    }
}

static void sol_simple(struct NAME_context *context, const void *const *inputs,
                       void **const *outputs) {
    int i;
    for (i = 0; i < SOL_N_OUTPUTS; i++)
        if (!outputs[i]) {
            sol_end(1, "the pointer to an output is NULL");
            return;
        }
    if (!context && sol_open_weights((const char *)0)) return;
    sol_predict(context ? context : &sol_context, inputs, outputs);
}

/* ---- Shapes ---- */

static int sol_copy_shape(const int64_t *shape, const int64_t *sizes, int64_t dim[8]) {
    int r;
    if (sol_check_sizes(sizes)) return -1;
    for (r = 0; r < (int)shape[0]; r++) dim[r] = shape[1 + r];
    sol_done();
    return (int)shape[0];
}

int NAME_input_shape(int i, const int64_t *sizes, int64_t dim[8]) {
    if (i >= 0 && i < SOL_N_INPUTS) return sol_copy_shape(sol_input_shape[i], sizes, dim);
    sol_end(1, "there is no such input");
    return -1;
}

int NAME_output_shape(int i, const int64_t *sizes, int64_t dim[8]) {
    if (i >= 0 && i < SOL_N_OUTPUTS) return sol_copy_shape(sol_output_shape[i], sizes, dim);
    sol_end(1, "there is no such output");
    return -1;
}

/*
 * The base of all other folders: status and message, arena, text, log, environment, hash, files, processes.
 *
 * Memory has three lifetimes. Tables are static const. Data of a compile lives in one arena, which is
 * freed at its end. Run-time objects (programs, weights) are malloc'ed and reference counted.
 */
#ifndef SOL_BASE_H
#define SOL_BASE_H

#include <setjmp.h>
#include <sol/run.h>
#include <stdarg.h>
#include <stdatomic.h>

/* ---- base/status.c ---- */

/* Formats the thread's message (at most 1 KiB, never allocates) and returns `code`. */
enum sol_status fail(enum sol_status code, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));
/* Prepends text to the current message: "layer conv1 (net.py:3): " + message. */
void fail_prefix(const char *format, ...) __attribute__((format(printf, 1, 2), cold));

#define TRY(call)                                \
    do {                                         \
        enum sol_status try_status_ = (call);    \
        if (try_status_) return try_status_;     \
    } while (0)

/* Defines the text `name`: what the assembler finds in the files, whose paths begin in the project's folder. `files`: EMBED_FILE for each
 * of them, or lines of the assembler. */
#define EMBED_FILE(path) ".incbin \"" path "\"\n"
#define EMBED_TEXT(name, files)                                                \
    extern const char name[];                                                  \
    __asm__(".section .rodata." #name ",\"a\"\n" #name ":\n" files ".byte 0\n.previous\n")

/* For SOL's own invariants only, never for what a model, an argument or the machine can cause. */
#ifdef NDEBUG
#define ASSERT(condition) ((void)sizeof(condition))
#else
void status_assert_failed(const char *condition, const char *file, int line)
    __attribute__((noreturn));
#define ASSERT(condition) ((condition) ? (void)0 : status_assert_failed(#condition, __FILE__, __LINE__))
#endif

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
/* Rounds towards minus infinity; b > 0. */
static inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
static inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

/* ---- base/arena.c ---- */

/*
 * Bump allocator. Memory is zeroed and aligned to 16 bytes; single allocations are not freed.
 * If memory is out, an allocation longjmps to the boundary. So callers need no checks, but must not
 * hold a lock, FILE or handle during a call that can allocate.
 */
struct arena {
    struct arena_block *block; /* newest first */
    jmp_buf *boundary;         /* target of the jump; set it before the first allocation */
};

void arena_init(struct arena *arena);
void arena_fini(struct arena *arena);
size_t arena_size(const struct arena *arena); /* bytes taken from the system */
void *arena_alloc(struct arena *arena, size_t size);
void *arena_alloc_array(struct arena *arena, size_t item_size,
                        size_t n); /* an overflow of item_size * n counts as out of memory */
void *arena_copy(struct arena *arena, const void *data, size_t size);
/* arena_release frees what was allocated between two marks; what was allocated before the first or after the
 * second stays. For temporary data of loops. */
struct arena_block *arena_mark(struct arena *arena);
void arena_release(struct arena_block *first, struct arena_block *second);
char *arena_strdup(struct arena *arena, const char *string);
char *arena_printf(struct arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#define ARENA_NEW(arena, type) ((type *)arena_alloc(arena, sizeof(type)))
#define ARENA_ARRAY(arena, type, n) ((type *)arena_alloc_array(arena, sizeof(type), (size_t)(n)))

/*
 * Sets the boundary of `arena_`: if memory is out, control comes back here and runs `on_out_of_memory`, normally a
 * return. Each public function that allocates has one. `on_out_of_memory` must not use locals that change after
 * this line (setjmp).
 */
#define ARENA_BOUNDARY(arena_, on_out_of_memory) \
    jmp_buf arena_boundary_;                     \
    (arena_)->boundary = &arena_boundary_;       \
    if (setjmp(arena_boundary_)) on_out_of_memory

/* All memory of SOL's core comes from these, except text that the caller frees (strdup). NULL: out of memory. Fault tests
 * set mem_fail_at to n, and the n-th call from then on fails (0: none). */
void *mem_alloc(size_t size, size_t alignment); /* zeroed; alignment a power of two >= 16 */
void *mem_realloc(void *memory, size_t size);   /* for memory of mem_realloc only; not zeroed */
void mem_free(void *memory);                    /* for both; NULL is fine */
/* Asks for huge pages in the whole pages of any memory: a hint, which must come before their first access. */
void mem_advise_huge(void *memory, size_t size);
extern _Thread_local long mem_fail_at;

/* A growing array in an arena: struct { int n, cap; T *at; } */
#define VEC(type) struct { int n, cap; type *at; }
#define VEC_PUSH(arena, vec, item)                                                                            \
    do {                                                                                                      \
        if ((vec)->n == (vec)->cap)                                                                           \
            (vec)->at = vec_grow(arena, (vec)->at, (vec)->n, &(vec)->cap, sizeof *(vec)->at);                 \
        (vec)->at[(vec)->n++] = (item);                                                                       \
    } while (0)
void *vec_grow(struct arena *arena, void *at, int n, int *cap, size_t item_size);

/* ---- base/text.c ---- */

/* Text that grows in an arena; always NUL terminated. */
struct text {
    struct arena *arena;
    char *at;
    size_t size, cap;
};
void text_init(struct text *text, struct arena *arena);
void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_add_args(struct text *text, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));
void text_add_raw(struct text *text, const char *string, size_t size);
/* Is the word of `size` bytes in `list`? Its words are separated by commas and blanks. */
bool text_lists(const char *list, const char *word, size_t size);
/* Writes a double so that it reads back as the same double, in any locale: "1.5", "3.0", "-inf", "nan". */
void text_add_double(struct text *text, double value);
/* Writes the value, rounded to float, as a C expression: "1.5f", "(-2.0f)", "(-1.0f/0.0f)". */
void text_add_c_float(struct text *text, double value);
void text_add_c_double(struct text *text, double value);
/* Reads what text_add_double writes, and other decimal numbers, and advances *at. False, with *at unchanged: no number. */
bool text_parse_double(const char **at, double *out);

/* ---- base/clean.c ---- */

/* Makes `n` bytes of untrusted text safe to show: printable UTF-8 stays, other bytes become \xNN; with `keep_lines` newlines and
 * tabs stay, too. Writes whole characters and a NUL, at most `size` bytes; returns the length of the whole result. Clean text does
 * not change. */
size_t text_clean(const char *text, size_t n, bool keep_lines, char *out, size_t size);
/* Appends a string, cleaned, without newlines and tabs. */
void text_add_clean(struct text *text, const char *string);
/* Appends a string to text of another language, such as HTML: cleaned, and each byte for which `escape` returns text replaced
 * by that text. */
void text_add_escaped(struct text *text, const char *string, const char *(*escape)(char byte));

/* ---- base/hash.c ---- */

uint64_t hash_bytes(uint64_t seed, const void *data, size_t size); /* not cryptographic */

/* ---- base/log.c ---- */

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_TRACE };
bool log_on(enum log_level level);
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
void log_check(void); /* warns about an invalid level in $SOL_LOG */
/* Like log_write, but only the first time in this process for this place in the source. */
#define LOG_ONCE(level, ...)                                                    \
    do {                                                                        \
        static atomic_flag log_once_ = ATOMIC_FLAG_INIT;                        \
        if (!atomic_flag_test_and_set(&log_once_)) log_write(level, __VA_ARGS__); \
    } while (0)

/* ---- base/env.c ---- */

/* All environment variables of SOL: name, what it does. README.md has the same list. */
#define ENV_LIST(X)                                                                              \
    X(SOL_LOG, "log level: ERROR, WARN, INFO, DEBUG, TRACE")                                     \
    X(SOL_DEBUG, "comma list of plan, pass, kernels, time, or all: what is printed to stderr")           \
    X(SOL_DISABLE, "comma list of kernel libraries, implementations or devices not to be used")  \
    X(SOL_CPU, "avx512, avx2, neon or generic: the instruction set to use instead of the best one")    \
    X(SOL_CC, "C compiler for generated kernels; none = interpret them")                         \
    X(SOL_CC_TIMEOUT, "seconds of processor time after which a run of the C compiler is ended; 4, ncc: 40")       \
    X(SOL_CACHE_DIR, "folder of the kernel cache")                                               \
    X(SOL_ONEDNN, "absolute path of oneDNN's library, libdnnl.so")                               \
    X(SOL_OPENBLAS, "absolute path of OpenBLAS's library, libopenblas.so")                       \
    X(SOL_CALL_MEMORY, "MiB that a call of an interpreted ONNX network may take; half of the machine's")  \
    X(SOL_LOOP_SECONDS, "seconds after which loops of an interpreted ONNX network end with an error; 60")  \
    X(SOL_FAR, "comma list of settings of the devices far, as latency=20,memory=4096; device/far/far.h has all")  \
    X(SOL_VEDA, "absolute path of the library of NEC's vector engines, libveda.so.0")           \
    X(SOL_NCC, "C compiler for the device ve; else ncc")                                         \
    X(SOL_VISIBLE_DEVICES, "comma list of the numbers of the far devices that are used; all")    \
    X(SOL_NUM_THREADS, "threads that take part in a call")
enum env {
#define ENV_ENUM(name, text) ENV_##name,
    ENV_LIST(ENV_ENUM)
#undef ENV_ENUM
};
const char *env_name(enum env variable);
const char *env_get(enum env variable); /* NULL when unset or empty */
bool env_has(enum env variable,
             const char *word); /* is `word` in the comma list (or the list "all")? */
/* Logs a warning that the variable's value is invalid, and which values are valid (`valid`); once per process and
 * variable. */
void env_refuse(enum env variable, const char *valid);
/* The variable's number. `default_value` if it is unset; also, with a warning, if it is no number from
 * `min` to `max`. */
double env_number(enum env variable, double min, double max, const char *valid,
                  double default_value);
/* Warns if the variable is a comma list with a word that is not in `words`. */
void env_check_words(enum env variable, const char *words);

/* ---- base/stack.c ---- */

/* Free bytes of this thread's stack; SIZE_MAX if unknown. */
size_t os_stack_left(void);
/* ENOMEM, with `what` in the message, if fewer than `min` bytes are free. */
enum sol_status os_stack_check(size_t min, const char *what);

/* ---- base/os.c ---- */

double os_now(void);      /* seconds, monotonic */
int os_cores(void);       /* cores that this process may use (affinity) */
int os_max_threads(void); /* the largest useful number of threads */
int os_threads(void);     /* $SOL_NUM_THREADS, else one per core */
/* Reads a whole regular file into memory that the caller frees by mem_free; a NUL follows the `*size` bytes. */
enum sol_status os_read(const char *path, char **out, size_t *size);
/* The same for a path from the user, which may also be a pipe, a FIFO or a terminal: reads to its end, at most 2 GiB. */
enum sol_status os_read_any(const char *path, char **out, size_t *size);
/* Starts a program with argv, without a shell; its name is searched in PATH if it has no slash. The child has default signal handling,
 * and a process group of its own, or a session. Its descriptors are fds[0], fds[1], ..: ones of this process, or these; it has no
 * others. Its stdin is never closed, as its first file would become stdin. Returns 0 or an error number. */
enum { OS_NULL = -1, OS_SAME = -2 }; /* /dev/null; what this process has there */
int os_start(const char *program, const char *const *argv, const int *fds, int n_fds,
             bool new_session, int *pid);
/* Limits of a child process, and its result. */
struct os_run {
    double max_processor_s; /* limit of processor time, with its children; 0: none */
    double max_s;           /* limit of wall time */
    int code;               /* exit code 0-255, 128+signal, or -1: killed at a limit */
    double processor_s;     /* processor time that they used */
};
/* Runs argv without a shell, with an empty stdin, in a process group of its own, which is killed at a limit. Its stdout and
 * stderr go to `output` (may be NULL), NUL terminated: the first 64 KiB at most, the rest is read and dropped. EDEVICE: it could
 * not be started. */
enum sol_status os_spawn(const char *const *argv, struct os_run *run, char *output,
                         size_t output_size);

#endif

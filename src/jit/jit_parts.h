/*
 * Internal interface of src/jit, for jit*.c only.
 *
 *   jit.c           one build: keys, lookup in the cache, parallel compiles, modules
 *   jit_cache.c     the cache folder, and files with a checksum and their key
 *   jit_compiler.c  finds the C compiler and runs it
 *   jit_objects.c   the loader of shared objects
 */
#ifndef JIT_JIT_PARTS_H
#define JIT_JIT_PARTS_H

#include "jit/jit.h"

#define JIT_FOLDER_SIZE 960 /* longer names of cache folders are refused */
#define JIT_PATH_SIZE 1024  /* for a path of any file in the folder */
#define JIT_NAME_SIZE 33    /* 128 bits in hexadecimal, and the NUL */

/* ---- jit_compiler.c ---- */

/* A compiler: one per choice and value of its variable that this process has seen. Never freed. */
struct jit_tool {
    struct jit_tool *next;
    const struct jit_choice *choice;
    const char *asked;      /* the value of the variable, "" for none */
    enum sol_status status; /* SOL_OK, or why it cannot be used; then `version` is the message */
    char *version;          /* first line of its --version */
    char *command;          /* words separated by spaces; the first is a path */
};

/* choice: NULL: the compiler for this machine. */
enum sol_status jit_find_tool(const struct jit_choice *choice, const struct jit_tool **out);

/* The limit of one run, in seconds of processor time: $SOL_CC_TIMEOUT. */
double jit_limit_s(const struct jit_tool *tool);

/* One run of the compiler: makes the object `object` of the file `source`. */
struct jit_run {
    const char *flags[2]; /* words separated by spaces */
    const char *source, *object;
    const char *libraries; /* of struct jit_loader */
    const char *shown;     /* the name of the source in messages */
    double processor_s;    /* result: processor time of the run */
    bool timed_out;        /* result: it was killed at the limit */
};
enum sol_status jit_run_tool(const struct jit_tool *tool, struct jit_run *run);

/* ---- jit_cache.c ---- */

struct jit_folder {
    char path[JIT_FOLDER_SIZE];
    bool is_private; /* made for one build, and removed after it */
};

/* Creates and checks the cache folder; EINVAL with the reason if it cannot be trusted. */
enum sol_status jit_open_folder(struct jit_folder *out);
/* Creates a folder in /tmp for one build. */
enum sol_status jit_make_private(struct jit_folder *out);
/* Removes a private folder, but keeps it if it contains sources, which messages may name. */
void jit_close_folder(const struct jit_folder *folder);
/* Can a file of the size of a kernel be written? */
bool jit_has_room(const struct jit_folder *folder);

/* Creates a file with a unique name, folder/tmp-*.c, writes `text` to it, and returns its path. `shown` is the name
 * of the file in the compiler's messages. */
enum sol_status jit_write_source(const struct jit_folder *folder, const char *shown,
                                 const char *text, char path[JIT_PATH_SIZE]);
/* Appends the key and a checksum, and waits until all is on the disk. */
enum sol_status jit_seal(const char *path, const char *key, size_t key_size);
/* Is the file complete, and sealed with exactly this key? */
bool jit_is_sealed(const char *path, const char *key, size_t key_size);
/* Writes, in place of an object, that the compiler did not end within `limit_s`. The caller seals the file. */
enum sol_status jit_write_timeout(const char *path, double limit_s);
/* The limit in a file of jit_write_timeout; 0 for other files. */
double jit_read_timeout(const char *path);

#endif

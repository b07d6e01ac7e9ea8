/*
 * The parts of the kernel compiler, for jit*.c only.
 *
 *   jit.c           one build: keys, what is missing, parallel compiles, loaded modules
 *   jit_cache.c     folders, and files that prove what they are
 *   jit_compiler.c  finds the C compiler and runs it
 */
#ifndef JIT_JIT_PARTS_H
#define JIT_JIT_PARTS_H

#include "jit/jit.h"

#define JIT_FOLDER_SIZE 960 /* longer names of cache folders are refused */
#define JIT_PATH_SIZE 1024  /* of a folder, and any name that we make in it */
#define JIT_NAME_SIZE 33    /* 128 bits in hexadecimal, and the NUL */

/* ---- jit_compiler.c ---- */

/* Never freed: there is one per value of $SOL_CC that this process has seen. */
struct jit_tool {
    struct jit_tool *next;
    const char *asked;      /* the value of $SOL_CC, "" for none */
    enum sol_status status; /* whether it can be used; if not, `version` is the reason */
    char *version;          /* first line of its --version */
    char *command;          /* its first words, separated by spaces; the first is a path */
};

enum sol_status jit_find_tool(const struct jit_tool **out);

/* The limit of one run, in seconds of processor time: $SOL_CC_TIMEOUT. */
double jit_limit_s(void);

/* One run of the compiler: makes the object `object` of the file `source`. */
struct jit_run {
    const char *flags[2]; /* words separated by spaces */
    const char *source, *object;
    const char *shown;  /* the name of the source in messages */
    double processor_s; /* that it took */
    bool timed_out;     /* it failed because it took too long */
};
enum sol_status jit_run_tool(const struct jit_tool *tool, struct jit_run *run);

/* ---- jit_cache.c ---- */

struct jit_folder {
    char path[JIT_FOLDER_SIZE];
    bool is_private; /* made for one build and removed after it */
};

/* The cache folder, checked; EINVAL with the reason when it cannot be trusted. */
enum sol_status jit_open_folder(struct jit_folder *out);
enum sol_status jit_make_private(struct jit_folder *out);
/* Removes a private folder, if nothing has been left in it on purpose. */
void jit_close_folder(const struct jit_folder *folder);
/* Can files of the size of a kernel be written? */
bool jit_has_room(const struct jit_folder *folder);

/* Makes a new file `path` = folder/tmp-*.c, with a name that nobody else has, and writes `text` to
 * it. */
enum sol_status jit_write_source(const struct jit_folder *folder, const char *shown,
                                 const char *text, char path[JIT_PATH_SIZE]);
/* Appends the key and a checksum, and waits until all is on the disk. */
enum sol_status jit_seal(const char *path, const char *key, size_t key_size);
/* Is `path` whole, and sealed with exactly this key? */
bool jit_is_sealed(const char *path, const char *key, size_t key_size);
/* In place of an object: the compiler did not end within `limit_s`. To be sealed. */
enum sol_status jit_write_timeout(const char *path, double limit_s);
/* That limit; 0 when the file is something else. */
double jit_read_timeout(const char *path);

#endif

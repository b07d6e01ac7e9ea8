/*
 * Libraries of vendors: found and opened at run time, never linked, told to keep to the calling thread.
 *
 *   onednn.c, openblas.c: vendor_open once per process -> vendor_symbol -> calls between vendor_enter and vendor_leave
 *
 * SOL's pool divides the work; a library with threads of its own inside that would have both wait for each other.
 */
#ifndef SOL_DNN_VENDOR_H
#define SOL_DNN_VENDOR_H

#include "base/base.h"

struct vendor {
    enum env path; /* the variable that names the library's file; then nothing else is tried */
    const char *const *sonames; /* else these, in the system's usual places; ended by NULL */
    void *handle;               /* NULL: not there. Never closed: programs may be running in it */
    bool was_there;             /* somebody else in this process had opened it before */
    int (*omp_get_max_threads)(void); /* of the OpenMP that the library runs on; NULL: none */
    void (*omp_set_num_threads)(int);
    char detail[400]; /* the library's version, or the reason why it cannot be used */
};

/* Not for two threads at once. False: `detail` says why. */
bool vendor_open(struct vendor *vendor);
/* Gives it up, with the reason; returns false. The file stays open, since it may have begun to live (OpenMP, atexit). */
bool vendor_refuse(struct vendor *vendor, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* dlsym; NULL when the library lacks it. */
void *vendor_symbol(const struct vendor *vendor, const char *name);

/* OpenMP keeps its number of threads per calling thread: one between these two. PyTorch may live on the same OpenMP, so
 * the number goes back to what it was. */
int vendor_enter(const struct vendor *vendor);
void vendor_leave(const struct vendor *vendor, int before);

/* Testing: countdown to the call of a library on this thread that fails instead of being made; 0 = never. */
extern _Thread_local long vendor_fail_at;
bool vendor_call_fails(void);

#endif

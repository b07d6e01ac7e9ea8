/*
 * Vendors' libraries: opened with dlopen at run time, never linked, and limited to the calling thread.
 *
 *   onednn_api.c, openblas.c: vendor_open once per process -> vendor_symbol -> calls between vendor_enter and vendor_leave
 *
 * Invariant: a library computes on the thread that calls it. SOL's pool divides the work; threads of the library inside a
 * task would compete with SOL's threads for the cores.
 */
#ifndef SOL_DNN_VENDOR_H
#define SOL_DNN_VENDOR_H

#include "base/base.h"

struct vendor {
    enum env path; /* environment variable with the library's file; if set, nothing else is tried */
    const char *const *sonames; /* else these names, searched by dlopen in order; ended by NULL */
    void *handle;               /* NULL: not usable. Never closed, as programs may run in it */
    bool was_there;             /* other code in this process had opened it before */
    int (*omp_get_max_threads)(void); /* of the OpenMP runtime that the library uses; NULL: none */
    void (*omp_set_num_threads)(int);
    char detail[400]; /* the library's version, or the reason why it cannot be used */
};

/* Not thread safe: call it under pthread_once. Returns false with the reason in `detail`. */
bool vendor_open(struct vendor *vendor);
/* Marks the library as not usable, with the reason in `detail`; returns false. The file stays open, as it may have started
 * threads or registered exit handlers. */
bool vendor_refuse(struct vendor *vendor, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* dlsym; NULL when the library lacks it. */
void *vendor_symbol(const struct vendor *vendor, const char *name);

/* Between these two calls, OpenMP uses one thread for calls from this thread (OpenMP's setting is per calling thread).
 * vendor_enter returns the number before; vendor_leave restores it, as PyTorch may use the same OpenMP. Without OpenMP they do
 * nothing. */
int vendor_enter(const struct vendor *vendor);
void vendor_leave(const struct vendor *vendor, int before);

/* Testing: n > 0 makes the n-th library call of this thread from now on fail instead of being made; 0: none fails. */
extern _Thread_local long vendor_fail_at;
/* Counts a call down; true if it has to fail. */
bool vendor_call_fails(void);

#endif

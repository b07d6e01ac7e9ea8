/* The list of implementations, and what follows from it: their number, and the kernels of one instruction set. */
#ifndef SOL_DNN_LIST_H
#define SOL_DNN_LIST_H

#include "dnn/dnn.h"

/*
 * Implementations in order, as dnn_impls: at equal cost, and in deterministic mode always, the first that accepts wins.
 *
 *   OWN(file, name)   own kernels: src/dnn/FILE.c with `dnn_NAME`, FILE_kernel.c with ISA_NAME(dnn_FILE_kernels), and FILE.h
 *   MORE(file, name)  another implementation in the files of an OWN row
 *   VENDOR(name)      a vendor's library: `dnn_NAME`
 *
 * `name` is also the name in struct dnn_impl. Libraries are made of the same rows (deploy/sources.c, deploy/native.c).
 */
#define DNN_LIST(OWN, MORE, VENDOR) \
    OWN(winograd, winograd4)        \
    MORE(winograd, winograd2)       \
    OWN(grouped, grouped)           \
    OWN(direct, direct)             \
    OWN(linear, linear)             \
    VENDOR(onednn)                  \
    VENDOR(openblas)

#define DNN_DECLARE(file, name) extern const struct dnn_impl dnn_##name;
#define DNN_DECLARE_VENDOR(name) extern const struct dnn_impl dnn_##name;
DNN_LIST(DNN_DECLARE, DNN_DECLARE, DNN_DECLARE_VENDOR)

/* Families of kernels: those of OWN rows, and two that are no implementations. */
#define DNN_KERNELS(X) \
    DNN_LIST(X, DNN_NOTHING, DNN_NOTHING) X(finish, finish) X(probe, probe)
#define DNN_NOTHING(...)

#define DNN_COUNT(...) +1
enum { DNN_N_IMPLS = DNN_LIST(DNN_COUNT, DNN_COUNT, DNN_COUNT) };

/* The kernels of one instruction set: a table for each *_kernel.c file, whose struct is in the header of the same name. */
struct dnn_kernels {
#define DNN_MEMBER(file, name) const struct dnn_##file##_kernels *file;
    DNN_KERNELS(DNN_MEMBER)
#undef DNN_MEMBER
};

/* Which files it is in, "winograd" for winograd4; NULL: a vendor's library. */
const char *dnn_find_file(const struct dnn_impl *impl);

#endif

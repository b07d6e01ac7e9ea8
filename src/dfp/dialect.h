/*
 * Dialects: in which C the text of generated kernels is written.
 *
 *   caps.dialect -> dfp_generate: emit.c calls its functions | device/link.c: its prelude in front of the text
 *
 * What differs between dialects is what becomes of a loop over lanes, the part of a nest that is computed side by side: in dfp_gnu
 * it takes a vector per iteration, in the others one value, and the C compiler is told that iterations are independent. All else
 * is common text, which calls functions of the prelude by the same names: load, store, MAX, EXP. So a dialect has few members.
 *
 * A dialect for a grid of threads would have caps.vector 1, and the text of one value: its `print_lanes` prints a loop that begins at the
 * thread's number and steps by their number; `end_reduce` combines the sums of all threads; scratch is memory that they share. It
 * would need two more members, for the only places that print the function and its tasks: print_head and print_tasks in emit.c.
 */
#ifndef DFP_DIALECT_H
#define DFP_DIALECT_H

#include "dfp/dfp.h"

struct block;
struct node;
struct printer;

struct dfp_dialect {
    const char *name;
    bool has_vectors; /* caps.vector is 4, 8 or 16; else 1 */
    const char
        *prelude[3]; /* texts in front of the kernels, NULL at the end; dfp_types may follow */
    /* Printed in front of a loop whose iterations are independent, as none reads or writes what another one writes: the innermost loops
     * but for reductions and scans. "" : nothing. */
    const char *independent;
    /* Prints the loop over lanes `b`. Its variable is declared, with its first value. `n_known`: print_versions. */
    void (*print_lanes)(struct printer *p, const struct block *b, int n_known);
    /* In front of and behind the loops of a reduction, one of which runs over lanes: declares what each lane has, and combines it into
     * the value v<id>. NULL: all lanes combine into v<id> itself. */
    void (*begin_reduce)(struct printer *p, const struct node *n);
    void (*end_reduce)(struct printer *p, const struct node *n);
};

/* GNU vectors, which gcc and clang have for every processor. */
extern const struct dfp_dialect dfp_gnu;
/* C99, for compilers that vectorize loops themselves: ncc and clang for NEC's vector engine, gcc. */
extern const struct dfp_dialect dfp_plain;
/* The same without hints, for compilers of which nothing is known: portable libraries (deploy/portable.c). */
extern const struct dfp_dialect dfp_portable;

/* The text of dfp/scalar.h. */
extern const char dfp_scalar[];

#endif

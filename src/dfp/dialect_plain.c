/*
 * The dialects of single values: C99 without vectors, a loop over lanes is an ordinary loop.
 *
 *   emit.c -> print_lanes: for (; i2 + LANES <= row_end; i2 += LANES) { .. }, where LANES is 1
 *
 * A row's sum is added up in its order, so compilers may not vectorize it unless they are told that the order does not matter. Other
 * innermost loops are marked INDEPENDENT. Pointers alone do not say so: the kernel of an epilogue reads and writes one tensor in place,
 * and a sum of loop variables and arguments, which is what an address is, says little to a compiler.
 */
#include "dfp/dialect.h"
#include "dfp/print.h"

/* clang knows neither of these pragmas, and its own warns where a target has no vectors. It tests addresses at run time. */
static const char hints[] = "\n#if defined __ve__ && !defined __clang__\n"
                            "#define INDEPENDENT _Pragma(\"_NEC ivdep\")\n"
                            "#elif defined __GNUC__ && !defined __clang__\n"
                            "#define INDEPENDENT _Pragma(\"GCC ivdep\")\n"
                            "#else\n"
                            "#define INDEPENDENT\n"
                            "#endif\n";

const struct dfp_dialect dfp_plain = {.name = "plain",
                                      .prelude = {dfp_scalar, hints},
                                      .independent = "INDEPENDENT ",
                                      .print_lanes = print_lane_steps};

const struct dfp_dialect dfp_portable = {.name = "portable",
                                         .prelude = {dfp_scalar},
                                         .independent = "",
                                         .print_lanes = print_lane_steps};

/*
 * The text that stands in front of generated kernels: vector.h, turned into a string.
 */
#include "dfp/dfp.h"

/* ISO C promises 4095 characters of a string; every compiler that can build SOL takes more. */
#pragma GCC diagnostic ignored "-Woverlength-strings"

#define TEXT(...) #__VA_ARGS__ "\n"

const char dfp_prelude[] =
    "#include <stdint.h>\n"
#include "dfp/vector.h"
    ;

/*
 * The text that stands in front of generated kernels: vector.h, turned into a string.
 */
#include "dfp/dfp.h"

#define TEXT(...) #__VA_ARGS__ "\n"

const char dfp_prelude[] =
    "#include <stdint.h>\n"
#include "dfp/vector.h"
    ;

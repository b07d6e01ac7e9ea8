/*
 * The text that stands in front of generated kernels: vector.h, turned into a string.
 *
 * A kernel with SOL_LONG gets its exponentials as calls: they are most of what a long kernel's text becomes, and the compiler's time
 * grows faster than the text.
 */
#include "dfp/dfp.h"

#define TEXT(...) #__VA_ARGS__ "\n"

const char dfp_prelude[] =
    "#include <stdint.h>\n"
    "#define LANE(v, l) (v)[l]\n"
    "#define APART static __attribute__((noinline, unused))\n"
    "#ifdef SOL_LONG\n"
    "#define FUNCTION APART\n"
    "#else\n"
    "#define FUNCTION static inline\n"
    "#endif\n"
#include "dfp/vector.h"
    /* Every second value, from two vectors that overlap so that nothing behind the last value is
     * touched. This is what poolings and convolutions with a stride of 2 read in plain images. */
    "#ifdef __clang__\n"
    "static inline vec gather2(const float *at) { return gather(at, 2); }\n"
    "#else\n"
    "static inline vec gather2(const float *at) {\n"
    "    ivec from = {0};\n"
    "    for (int l = 0; l < LANES; l++) from[l] = l < LANES / 2 ? 2 * l : 2 * l + 1;\n"
    "    return __builtin_shuffle(load(at), load(at + LANES - 1), from);\n"
    "}\n"
    "#endif\n";

/*
 * The text in front of generated kernels: vector.h as a string, and the macros that it uses.
 *
 * SOL_LONG is defined for long kernels (jit/jit.c). Then exp, log, tanh and erf are calls: inlined, they would be most of the
 * machine code, and the C compiler's time grows faster than the code.
 */
#include "dfp/dfp.h"

__asm__(".section .rodata.dfp_types,\"a\"\n.global dfp_types\ndfp_types:\n"
        ".incbin \"src/dfp/kernel_types.h\"\n.byte 0\n.previous\n");

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
    "#if LANES == 16\n"
    "#define NUMBERS (ivec){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}\n"
    "#elif LANES == 8\n"
    "#define NUMBERS (ivec){0, 1, 2, 3, 4, 5, 6, 7}\n"
    "#else\n"
    "#define NUMBERS (ivec){0, 1, 2, 3}\n"
    "#endif\n"
    "#if LANES == 16 && defined __AVX512F__\n"
    "#define load_part(at, n) (vec)__builtin_ia32_loadups512_mask(at, (vec){0}, (1u << (n)) - 1)\n"
    "#define load_range(at, from, to) \\\n"
    "    (vec)__builtin_ia32_loadups512_mask(at, (vec){0}, (1u << (to)) - (1u << (from)))\n"
    "#define store_part(at, v, n) __builtin_ia32_storeups512_mask(at, v, (1u << (n)) - 1)\n"
    "#elif LANES == 8 && defined __AVX2__\n"
    "#define load_part(at, n) (vec)__builtin_ia32_maskloadps256((void *)(at), NUMBERS < (n))\n"
    "#define store_part(at, v, n) __builtin_ia32_maskstoreps256((void *)(at), NUMBERS < (n), v)\n"
    "#define load_range(at, from, to) \\\n"
    "    (vec)__builtin_ia32_maskloadps256((void *)(at), (NUMBERS >= (from)) & (NUMBERS < (to)))\n"
    "#else\n"
    "#define load_part load_part_any\n"
    "#define store_part store_part_any\n"
    "#endif\n"
    "#ifdef __clang__\n"
    "#define rotate rotate_any\n"
    "#else\n"
    "#define rotate(v, n) __builtin_shuffle(v, NUMBERS + (n))\n"
    "#endif\n"
#include "dfp/vector.h"
    /* Loads every second value with two vectors, which overlap so that nothing behind the last value is
     * read. Poolings and convolutions with a stride of 2 read plain images in this way. */
    "#ifdef __clang__\n"
    "static inline vec gather2(const float *at) { return gather(at, 2); }\n"
    "#else\n"
    "static inline vec gather2(const float *at) {\n"
    "    ivec from = {0};\n"
    "    for (int l = 0; l < LANES; l++) from[l] = l < LANES / 2 ? 2 * l : 2 * l + 1;\n"
    "    return __builtin_shuffle(load(at), load(at + LANES - 1), from);\n"
    "}\n"
    "#endif\n"
    /* Where loads can be masked: lanes [from, to), 0 <= from <= to <= LANES, without reading elements outside. The vectors of
     * a step of 2 are those of gather2. */
    "#if defined load_range && !defined __clang__\n"
    "static inline int in_lanes(int64_t x) { return (int)max_int(0, min_int(x, LANES)); }\n"
    "static inline vec load_clipped(const float *at, int64_t from, int64_t to) {\n"
    "    return load_range(at, in_lanes(from), in_lanes(to));\n"
    "}\n"
    "static inline vec load_lanes(const float *at, int64_t step, float other, int64_t from, int64_t to) {\n"
    "    if (to <= from) return splat(other);\n"
    "    vec v;\n"
    "    if (step == 1) v = load_clipped(at, from, to);\n"
    "    else if (step == 2) {\n"
    "        ivec half = {0};\n"
    "        for (int l = 0; l < LANES; l++) half[l] = l < LANES / 2 ? 2 * l : 2 * l + 1;\n"
    "        v = __builtin_shuffle(load_clipped(at, 2 * from, 2 * to - 1),\n"
    "                              load_clipped(at + LANES - 1, 2 * from - (LANES - 1), 2 * to - LANES), half);\n"
    "    } else return load_lanes_any(at, step, other, from, to);\n"
    "    return pick((NUMBERS >= in_lanes(from)) & (NUMBERS < in_lanes(to)), v, splat(other));\n"
    "}\n"
    "#else\n"
    "#define load_lanes load_lanes_any\n"
    "#endif\n";

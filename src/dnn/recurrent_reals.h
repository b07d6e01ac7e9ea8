/* Includes the file RECURRENT_LOOPS for float, as plain_f32, and for double, as plain_f64. This file is part of deployed libraries. */
#define REAL float
#define REAL_EXP expf
#define REAL_TANH tanhf
#define RECURRENT_PLAIN plain_f32
#include RECURRENT_LOOPS
#undef REAL
#undef REAL_EXP
#undef REAL_TANH
#undef RECURRENT_PLAIN
#define REAL double
#define REAL_EXP exp
#define REAL_TANH tanh
#define RECURRENT_PLAIN plain_f64
#include RECURRENT_LOOPS

/*
 * The gradient of a convolution's weight by Winograd's transforms: what winograd_weight.c (plan, cost) and winograd_weight_kernel.c
 * (computation) share. conv_weight.h explains bundles, units, tasks and shares, which are the same here; winograd.h points and tiles.
 *
 *   dw = G^T [sum over tiles of (A dy A^T) * (B^T x B)] G
 *
 *   task -> chunks -> V = B^T x B of the task's units, W = A dy A^T of its bundles -> per point: M += W V  -> sums = G^T M G
 *
 * The matrices are those of F(4x4,3x3), y = A^T [(G g G^T) * (B^T x B)] A: this is its derivative by g. A tile is 4x4 pixels of dy, and
 * 6x6 of x. Per pair of channels it takes 36 products, where plain sums take 144.
 *
 *   chunk      tiles of one or more images, in order; the last one may have fewer
 *   scratch V  [point][unit][tile][LANES]
 *   scratch W  [point][channel block of dy][tile][LANES]
 *   scratch M  [point][bundle][unit][channel of the unit][vectors * LANES]
 */
#ifndef SOL_DNN_WINOGRAD_WEIGHT_H
#define SOL_DNN_WINOGRAD_WEIGHT_H

#include "dnn/conv_weight.h"

enum { WINOGRAD_WEIGHT_OUT = 4, WINOGRAD_WEIGHT_POINTS = 36 };

/* Indices into dnn_plan.param, behind those of enum conv_weight_param: floats between two points. */
enum winograd_weight_param {
    WINOGRAD_WEIGHT_V = WEIGHT_N_PARAMS,
    WINOGRAD_WEIGHT_W,
    WINOGRAD_WEIGHT_M
};

#endif

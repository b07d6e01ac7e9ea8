/*
 * VEDNN's declarations, as far as kernels call it: text for the device, and for the stand-in of tests.
 *
 * They say the same as vednn.h of VEDNN 1.0.5 (https://github.com/sx-aurora-dev/vednn), in words of SOL: its enums are ints here. Nothing is
 * included, as a machine that has the library need not have its header where the compiler looks for it.
 *
 * All tensors are dense floats, [sample][channel][row][column]. The result is 0, or an error.
 */
struct vednn_tensor {
    int type, batch, channels, width, height; /* type 0: float */
};
/* Channels of one group. layout 0: [out][in][row][column]. */
struct vednn_filter {
    int type, layout, in, out, width, height;
};
/* A dilation of 1 is none. Padding is that of both sides. */
struct vednn_convolution {
    int groups, stride_x, stride_y, pad_x, pad_y, dilation_x, dilation_y;
};

int vednnConvolutionForward(const struct vednn_tensor *of_x, const void *x,
                            const struct vednn_filter *of_weight, const void *weight,
                            const struct vednn_tensor *of_y, void *y,
                            const struct vednn_convolution *convolution, int algorithm);
int vednnConvolutionBackwardFilter(const struct vednn_tensor *of_x, const void *x,
                                   const struct vednn_tensor *of_dy, const void *dy,
                                   const struct vednn_filter *of_dw, void *dw,
                                   const struct vednn_convolution *convolution, int algorithm);
/* dx[sample, i] = sum over o of dy[sample, o] * weight[i, o] */
int vednnLinearBackwardData(unsigned long n_in, unsigned long n_out, unsigned long batch,
                            const void *dy, const void *weight, void *dx);

/* The pipeline for a given device: also for one that sol_compile refuses, such as the skeleton. */
#ifndef SOL_COMPILE_H
#define SOL_COMPILE_H

#include "device/device.h"

/* The part of sol_compile after device_find. The caller has checked the model. */
enum sol_status compile_for(const struct device *device, const struct sol_model *model,
                            const struct sol_options *options, struct sol_program **out);

#endif

/*
 * SOL, queues: memory and calls on a far device, one whose memory the host cannot read.
 */
#ifndef SOL_QUEUE_H
#define SOL_QUEUE_H

#include <sol/run.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An address in a device's memory; 0 is none. It may be added to, but only its device can read what is there. */
typedef uint64_t sol_ptr;

#ifdef __cplusplus
}
#endif
#endif

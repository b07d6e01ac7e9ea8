/*
 * The devices far: stand-ins for accelerators, so that all code for far devices is tested on every machine.
 *
 *   struct target -> device/far: rings of commands in shared memory -> the worker, a process that is the device
 *
 * A device's memory is a file in memory that only its worker maps. Where the worker has it, the host reserves the addresses: a
 * device's pointer that is used on the host faults, and so does, in the worker, one of the host. Copies are the work of a thread of the
 * host, which reads and writes the file. Kernels are shared objects for the host's processor. What a far device does is simple,
 * slow by intention, and strict.
 *
 * Each opening of a device starts a worker of its own. A host function must not submit to stream 1, nor wait for it: it is a command
 * of this stream. After an error, and when the device is closed, commands that have not begun are dropped, host functions too.
 * An error is found by any wait, also for an event before it; but once a wait for stream 1 has returned, the copies up to that
 * event do not use the host's memory any more, even if it returned an error. When a ring is full, some thousand commands, the
 * submitting function waits for room.
 *
 * $SOL_FAR is a comma list; each word has a default:
 *   devices=2       how many there are
 *   memory=16384    MiB of each
 *   threads=N       of a worker; $SOL_NUM_THREADS, else one per core
 *   latency=20      us that each command takes at least
 *   bandwidth=10    GB/s of copies
 *   fail=alloc:N    the N-th allocation has no memory, counted from the opening of a device
 *   fail=copy:N     the N-th copy of stream 1 fails
 *   fail=kernel:N   the N-th kernel fails
 *   die=N           the worker kills itself at its N-th kernel
 *   trace=FILE      the last device that closes writes its commands there, for chrome://tracing
 */
#ifndef SOL_FAR_H
#define SOL_FAR_H

#include "run/target.h"

/* Copies and host functions are commands of stream 1, all others of stream 0; TRANSFER_ON_DEVICE is one of either. */
extern const struct target far_target;

/* Logs a warning if $SOL_FAR has a bad word. */
void far_check_environment(void);

/* For tests, of an open device: its process, and the bytes that are allocated. */
int far_worker(void *context);
size_t far_used(void *context);

#endif

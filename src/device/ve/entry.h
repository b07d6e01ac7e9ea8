/*
 * How a kernel of SOL becomes one that libveda can call: text that is compiled for the device behind each generated kernel.
 *
 *   host: command.c packs a launch into a block of numbers -> the stack of the device -> <kernel>_ve -> kernel, on all threads
 *
 * The result is one of libveda's: 0, or why the kernel could not run. Nothing is included, as a machine that has libveda need not
 * have its headers where the compiler looks for them; what is declared here is the same there.
 *
 * The host includes only the positions in the block.
 */
#ifndef SOL_VE_ENTRY_H
#define SOL_VE_ENTRY_H

/* Numbers of a launch; behind them its pointers, then its arguments. OFFSET: the offset's bits in a pointer. Scratch is memory for n_threads times
 * scratch_size bytes. */
enum { VE_N_PTR, VE_N_TASKS, VE_N_THREADS, VE_OFFSET, VE_SCRATCH, VE_SCRATCH_SIZE, VE_HEADER };

#ifdef SOL_KERNEL

#include <stdint.h>

#define VE_CHUNKS 8 /* of tasks for each thread: some tasks take longer */
#define VE_NO_MEMORY 24

int vedaMemPtr(void **address, uint64_t pointer);
#ifdef _OPENMP
int omp_get_thread_num(void);
int omp_get_max_threads(void);
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_max_threads(void) { return 1; }
#endif

/* The address of a virtual pointer; of none if that is 0. An allocation for which there was no memory has the address 0. */
static int ve_address(const int64_t *launch, int64_t pointer, void **out) {
    *out = 0;
    if (!pointer) return 0;
    const int result = vedaMemPtr(out, (uint64_t)pointer);
    if (result) return result;
    return (intptr_t)*out == (pointer & launch[VE_OFFSET]) ? VE_NO_MEMORY : 0;
}

/* The tasks of a chunk are one call. Threads take the next chunk when they are done with one. */
static void ve_run(void *const *ptr, const int64_t *arg, const int64_t *launch, char *scratch) {
    const int64_t n_tasks = launch[VE_N_TASKS];
    const int limit = (int)launch[VE_N_THREADS], most = omp_get_max_threads();
    const int n_threads = most < limit ? most : limit;
    const int64_t chunk = n_tasks / (VE_CHUNKS * n_threads) + 1;
#pragma omp parallel num_threads(n_threads) if (n_tasks > 1)
    {
        char *own = scratch + omp_get_thread_num() * launch[VE_SCRATCH_SIZE];
#pragma omp for schedule(dynamic)
        for (int64_t begin = 0; begin < n_tasks; begin += chunk)
            SOL_KERNEL(ptr, arg, own, begin, begin + chunk < n_tasks ? begin + chunk : n_tasks);
    }
}

#define VE_PASTE(kernel, ending) kernel##ending
#define VE_NAME(kernel) VE_PASTE(kernel, _ve)

uint64_t VE_NAME(SOL_KERNEL)(const int64_t *launch) {
    const int64_t n = launch[VE_N_PTR];
    void *ptr[n + 1], *scratch;
    int result = ve_address(launch, launch[VE_SCRATCH], &scratch);
    for (int64_t i = 0; i < n && !result; i++)
        result = ve_address(launch, launch[VE_HEADER + i], &ptr[i]);
    if (!result) ve_run(ptr, launch + VE_HEADER + n, launch, (char *)scratch);
    return (uint64_t)result;
}

#endif
#endif

/*
 * The library itself, and what it tells about devices.
 *
 * The environment is read by vedaInit, and not again before the next one. A device of VEDA is one of the visible far devices, by
 * the number of the hardware.
 */
#include "parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERSION "2.3.0"
#define CLOCK_MHZ 1600 /* VE20B */

/* Written by vedaInit alone, and read by others once `initialized` is set. */
static struct {
    _Atomic bool initialized;
    bool exact, traces_memory;
    int n, physical[VEDA_MAX_DEVICES], n_cores, offset_bits;
    size_t memory;
} library;

bool veda_is_initialized(void) { return atomic_load(&library.initialized); }
bool veda_is_exact(void) { return library.exact; }
bool veda_traces_memory(void) { return library.traces_memory; }
int veda_n_devices(void) { return library.n; }
int veda_physical_id(int device) { return library.physical[device]; }
int veda_n_cores(void) { return library.n_cores; }
int veda_offset_bits(void) { return library.offset_bits; }
size_t veda_device_memory(void) { return library.memory; }

/* ---- Visible devices ---- */

static bool is_set(const char *name) {
    const char *value = getenv(name);
    return value && atoi(value);
}

/* Does the list have this number, perhaps as "ID.0"? Words that are no numbers count as 0, as they do for the real library. */
static bool lists(const char *list, const char *separator, int id) {
    for (; *list; list += strcspn(list, separator), list += *list != 0)
        if (strcspn(list, separator) && (int)(strtod(list, NULL) * 10) == id * 10) return true;
    return false;
}

static bool is_empty(const char *list, const char *separator) {
    return !list || !list[strspn(list, separator)];
}

/* _VENODELIST, which a scheduler sets, restricts the hardware; if it is empty, there is none. The lists of the user name what is
 * visible; if they are empty, all is. */
static bool is_visible(int id) {
    const char *scheduler = getenv("_VENODELIST"), *list = getenv("VEDA_VISIBLE_DEVICES");
    if (!scheduler && !list) list = getenv("VE_NODE_NUMBER");
    if (scheduler && !lists(scheduler, " ", id)) return false;
    return is_empty(list, ",") || lists(list, ",", id);
}

static bool read_offset_bits(void) {
    const char *value = getenv("SOL_VEDA_OFFSET_BITS");
    library.offset_bits = value ? atoi(value) : 37;
    return library.offset_bits == 37 || library.offset_bits == 32;
}

/* No device is no error: the count is 0. */
VEDAresult vedaInit(uint32_t flags) {
    struct far_settings settings;
    if (flags) return VEDA_ERROR_INVALID_VALUE;
    if (veda_is_initialized()) return VEDA_ERROR_ALREADY_INITIALIZED;
    if (!read_offset_bits()) return VEDA_ERROR_INVALID_VALUE;
    int n = far_read_settings(&settings, NULL, 0);
    const char *threads = getenv("VE_OMP_NUM_THREADS");
    library.n = 0;
    for (int id = 0; id < n && library.n < VEDA_MAX_DEVICES; id++)
        if (is_visible(id)) library.physical[library.n++] = id;
    library.n_cores = settings.threads;
    if (threads && atoi(threads) > 0 && atoi(threads) < library.n_cores)
        library.n_cores = atoi(threads);
    library.memory = settings.memory;
    library.traces_memory = is_set("VEDA_MEM_TRACE");
    library.exact = is_set("SOL_VEDA_EXACT");
    contexts_init();
    atomic_store(&library.initialized, true);
    return VEDA_SUCCESS;
}

VEDAresult vedaExit(void) {
    if (!veda_is_initialized()) return VEDA_ERROR_NOT_INITIALIZED;
    atomic_store(&library.initialized, false);
    contexts_exit();
    return VEDA_SUCCESS;
}

/* ---- Names ---- */

VEDAresult vedaGetVersion(const char **out) {
    *out = VERSION;
    return VEDA_SUCCESS;
}

VEDAresult vedaDriverGetVersion(const char **out) {
    *out = "far";
    return VEDA_SUCCESS;
}

/* 1: VE1 and VE2, whose modules are *.vso; 3: VE3. */
VEDAresult vedaGetArchitecture(int *out) {
    const char *arch = getenv("VEDA_ARCH");
    if (arch && strcmp(arch, "1") && strcmp(arch, "3")) return VEDA_ERROR_UNKNOWN_VEDA_ARCHITECTURE;
    *out = arch ? atoi(arch) : 1;
    return VEDA_SUCCESS;
}

VEDAresult vedaGetErrorName(VEDAresult error, const char **out) {
#define NAME(name) "VEDA_ERROR_" #name,
    static const char *const names[] = {"VEDA_SUCCESS", VEDA_ERRORS(NAME)};
#undef NAME
    if ((unsigned)error >= VEDA_N_RESULTS) return VEDA_ERROR_UNKNOWN;
    *out = names[error];
    return VEDA_SUCCESS;
}

VEDAresult vedaGetErrorString(VEDAresult error, const char **out) {
    return vedaGetErrorName(error, out);
}

/* ---- Devices ---- */

static VEDAresult check_device(VEDAdevice device) {
    if (!veda_is_initialized()) return VEDA_ERROR_NOT_INITIALIZED;
    return device >= 0 && device < library.n ? VEDA_SUCCESS : VEDA_ERROR_INVALID_DEVICE;
}

VEDAresult vedaDeviceGetCount(int *out) {
    if (!veda_is_initialized()) return VEDA_ERROR_NOT_INITIALIZED;
    *out = library.n;
    return VEDA_SUCCESS;
}

VEDAresult vedaDeviceGet(VEDAdevice *out, int ordinal) {
    VEDA_TRY(check_device(ordinal));
    *out = ordinal;
    return VEDA_SUCCESS;
}

/* A name that is longer than the memory is cut. */
VEDAresult vedaDeviceGetName(char *out, int size, VEDAdevice device) {
    if (!out || size <= 0) return VEDA_ERROR_INVALID_ARGS;
    VEDA_TRY(check_device(device));
    (void)snprintf(out, (size_t)size, "NEC SX-Aurora Tsubasa VE20B (stand-in)");
    return VEDA_SUCCESS;
}

VEDAresult vedaDeviceTotalMem(size_t *out, VEDAdevice device) {
    VEDA_TRY(check_device(device));
    *out = library.memory;
    return VEDA_SUCCESS;
}

VEDAresult vedaDeviceGetPhysicalId(int *out, VEDAdevice device) {
    VEDA_TRY(check_device(device));
    *out = library.physical[device];
    return VEDA_SUCCESS;
}

/* Sizes of caches are in KiB, clocks in MHz: those of a VE20B, except the number of cores. */
VEDAresult vedaDeviceGetAttribute(int *out, VEDAdevice_attribute attribute, VEDAdevice device) {
    VEDA_TRY(check_device(device));
    switch (attribute) {
    case VEDA_DEVICE_ATTRIBUTE_CLOCK_RATE:
    case VEDA_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *out = CLOCK_MHZ; break;
    case VEDA_DEVICE_ATTRIBUTE_CLOCK_BASE: *out = CLOCK_MHZ / 2; break;
    case VEDA_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *out = library.n_cores; break;
    case VEDA_DEVICE_ATTRIBUTE_L1D_CACHE_SIZE:
    case VEDA_DEVICE_ATTRIBUTE_L1I_CACHE_SIZE: *out = 32; break;
    case VEDA_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *out = 256; break;
    case VEDA_DEVICE_ATTRIBUTE_LLC_CACHE_SIZE: *out = 16384; break;
    case VEDA_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO: *out = 2; break;
    case VEDA_DEVICE_ATTRIBUTE_MODEL: *out = 2; break;
    default: return VEDA_ERROR_UNKNOWN_ATTRIBUTE;
    }
    return VEDA_SUCCESS;
}

/*
 * Opens libveda: $SOL_VEDA, or the names under which it is installed.
 *
 *   ve_open_library: dlopen -> all symbols -> version -> vedaInit -> the number of devices
 *
 * It is done once per process, also if it fails. It is never undone, as other code of the process, such as a framework, may use the
 * same copy of libveda: vedaInit says then that it was initialised before.
 *
 * Fork: the child of a process that initialised libveda has its memory, but not its threads nor its connection to the device, so
 * nothing of it may be called there. A child of a process that had not done so opens it for itself.
 */
#include "base/lock.h"
#include "device/ve/ve.h"
#include "dnn/vendor.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define LEAST_MAJOR 2

struct veda veda;

/* In the order of NEC's packages: the name with the version of its interface, then that for developers. */
static const char *const sonames[] = {"libveda.so.0", "libveda.so", NULL};
static struct vendor library = {.path = ENV_SOL_VEDA, .sonames = sonames};

static const char *find_missing(void) {
#define VEDA_FIND(name, parameters)                             \
    *(void **)&veda.name = vendor_symbol(&library, "veda" #name); \
    if (!veda.name) return "veda" #name;
    VEDA_API(VEDA_FIND)
#undef VEDA_FIND
    return NULL;
}

/* The version comes first: an old library also lacks symbols, but that says less. */
static bool check_version(void) {
    const char *text = NULL;
    *(void **)&veda.GetVersion = vendor_symbol(&library, "vedaGetVersion");
    if (!veda.GetVersion || veda.GetVersion(&text) || !text)
        return vendor_refuse(&library, "cannot be used: it does not tell its version");
    if (atoi(text) >= LEAST_MAJOR) return true;
    return vendor_refuse(&library, "%s is too old: %d.0 is needed", text, LEAST_MAJOR);
}

static bool initialise(void) {
    const char *name = "an error";
    int result = veda.Init(0);
    if (result == VEDA_ERROR_ALREADY_INITIALIZED) result = VEDA_SUCCESS;
    if (!result) result = veda.DeviceGetCount(&veda.n_devices);
    if (!result) return true;
    (void)veda.GetErrorName(result, &name);
    return vendor_refuse(&library, "cannot be used: vedaInit: %s", name);
}

static bool open_library(void) {
    if (!vendor_open(&library) || !check_version()) return false;
    const char *missing = find_missing();
    if (missing) return vendor_refuse(&library, "cannot be used: it lacks %s", missing);
    if (!initialise()) return false;
    veda.process = lock_process();
    return true;
}

static void open_once(void) { (void)open_library(); }

const char *ve_open_library(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static _Thread_local char reason[sizeof library.detail + 32];
    pthread_once(&once, open_once);
    if (veda.process && veda.process != lock_process())
        return "a parent of this process has used vector engines, which a fork does not share";
    if (library.handle) return NULL;
    (void)snprintf(reason, sizeof reason, "libveda %s", library.detail);
    return reason;
}

/* Opens oneDNN: version 3, built for OpenMP or for one thread. */
#include "dnn/onednn.h"

#include <pthread.h>
#include <stdio.h>

static const char *const sonames[] = {"libdnnl.so.3", "libdnnl.so", NULL};

struct onednn onednn = {
    .vendor = {.path = ENV_SOL_ONEDNN, .sonames = sonames},
};

static const char *find_missing(void) {
#define ONEDNN_FIND(type, name, parameters)                                        \
    *(void **)&onednn.name = vendor_symbol(&onednn.vendor, "dnnl_" #name);         \
    if (!onednn.name) return "dnnl_" #name;
    ONEDNN_API(ONEDNN_FIND)
#undef ONEDNN_FIND
    return NULL;
}

/* OpenMP is the only runtime whose number of threads can be set per calling thread. */
static bool check_runtime(const struct onednn_version *version) {
    const struct vendor *vendor = &onednn.vendor;
    if (version->cpu_runtime == ONEDNN_RUNTIME_SEQUENTIAL) return true;
    return version->cpu_runtime == ONEDNN_RUNTIME_OPENMP && vendor->omp_get_max_threads &&
           vendor->omp_set_num_threads;
}

static bool open_library(void) {
    struct vendor *vendor = &onednn.vendor;
    if (!vendor_open(vendor)) return false;
    const char *missing = find_missing();
    if (missing) return vendor_refuse(vendor, "cannot be used: it lacks %s", missing);
    const struct onednn_version *version = onednn.version();
    if (version->major != 3)
        return vendor_refuse(vendor, "cannot be used: version %d.%d, needed is 3", version->major,
                             version->minor);
    if (!check_runtime(version))
        return vendor_refuse(vendor, "cannot be used: built for another runtime than OpenMP");
    int before = vendor_enter(vendor), status = onednn.engine_create(&onednn.engine, ONEDNN_CPU, 0);
    vendor_leave(vendor, before);
    if (status) return vendor_refuse(vendor, "cannot be used: no engine, status %d", status);
    snprintf(vendor->detail, sizeof vendor->detail, "oneDNN %d.%d.%d, %s", version->major,
             version->minor, version->patch,
             version->cpu_runtime == ONEDNN_RUNTIME_OPENMP ? "OpenMP" : "sequential");
    return true;
}

static void open_once(void) { (void)open_library(); }

bool onednn_open(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_once);
    return onednn.vendor.handle != NULL;
}

enum sol_status onednn_status(int status, const char *what) {
    if (status == ONEDNN_SUCCESS) return SOL_OK;
    if (status == ONEDNN_OUT_OF_MEMORY) return fail(SOL_ENOMEM, "oneDNN: no memory, %s", what);
    return fail(SOL_EDEVICE, "oneDNN: status %d, %s", status, what);
}

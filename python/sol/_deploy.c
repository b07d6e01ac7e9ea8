/* sol._core.Model.deploy: writes a model with the values of its parameters as a library (sol_deploy). */
#include "_core.h"

static const char *const targets[] = {
    [SOL_SHARED_LIB] = "shared_lib", [SOL_STATIC_LIB] = "static_lib", [SOL_C_SOURCE] = "c_source"};
static const char *const weights[] = {[SOL_WEIGHTS_EMBEDDED] = "embedded",
                                      [SOL_WEIGHTS_FILE] = "file",
                                      [SOL_WEIGHTS_PACKED] = "packed"};

/* Returns the index of `name` in an array of three names; -1 with ValueError set. */
static int find_name(const char *what, const char *const *names, const char *name) {
    for (int i = 0; i < 3; i++)
        if (!strcmp(names[i], name)) return i;
    PyErr_Format(PyExc_ValueError, "%s is '%s', not one of '%s', '%s', '%s'", what, name, names[0],
                 names[1], names[2]);
    return -1;
}

static PyObject *deploy(PyObject *self, PyObject *params, PyObject *symbols,
                        struct sol_library *library) {
    Py_ssize_t n_params = PySequence_Size(params), n_symbols;
    if (n_params < 0) return NULL;
    void **address = get_addresses(params, (int)n_params, "params");
    if (!address) return NULL;
    int64_t *values = get_ints(symbols, &n_symbols);
    enum sol_status status = SOL_OK;
    if (values) {
        if (n_symbols) library->symbols = values;
        const struct sol_model *model = ((struct model_object *)self)->model;
        Py_BEGIN_ALLOW_THREADS status = sol_deploy(model, (const void *const *)address, library);
        Py_END_ALLOW_THREADS
    }
    free(address);
    if (!values) return NULL;
    free(values);
    if (status) return raise_status(status);
    Py_RETURN_NONE;
}

PyObject *model_deploy(PyObject *self, PyObject *args, PyObject *kwargs) {
    struct sol_library library = {0};
    const char *target, *place;
    int static_memory = 0, winograd = 1, autotune = 1;
    PyObject *params, *symbols, *path, *progress = Py_None;
    static char *keywords[] = {"params",        "symbols",  "lib_name", "func_name", "path",
                               "target",        "weights",  "device",   "cpu",       "compiler",
                               "static_memory", "winograd", "autotune", "progress",  NULL};
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "OOssO&ss|zzzpppO:deploy", keywords, &params, &symbols, &library.lib_name,
            &library.func_name, PyUnicode_FSConverter, &path, &target, &place, &library.device,
            &library.cpu, &library.compiler, &static_memory, &winograd, &autotune, &progress))
        return NULL;
    const int kind = find_name("target", targets, target);
    const int where = kind < 0 ? -1 : find_name("weights", weights, place);
    library.target = (enum sol_target)kind;
    library.weights = (enum sol_library_weights)where;
    library.path = PyBytes_AsString(path);
    library.static_memory = static_memory;
    library.deterministic = !winograd;
    library.no_autotune = !autotune;
    if (progress != Py_None) library.progress = report_progress, library.user = progress;
    PyObject *result = where < 0 ? NULL : deploy(self, params, symbols, &library);
    Py_DECREF(path);
    return result;
}

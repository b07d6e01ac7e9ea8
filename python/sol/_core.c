/*
 * sol._core: libsol for Python, one abi3 extension over include/sol. It depends neither on torch nor on NumPy.
 *
 *   Model, Program, Weights   the objects of sol.h and run.h; memory is passed as addresses (int)
 *   Session                   an ONNX network of which parts are interpreted
 *   Guard                     detects in microseconds whether a framework's module has changed since the last call
 *   Shortcut                  runs a usual call of such a module without Python code
 *
 * A status becomes the exception of SOL_STATUS_LIST with libsol's message. Compiles, prepacks, runs, deployments, read_onnx
 * and measurements release the GIL; parse_onnx, read_info, open_session, Program.profile and Session.profile hold it. The types are static
 * variables, so only one interpreter per process can use the extension.
 */
#include "_core.h"

PyTypeObject *model_type, *program_type, *weights_type, *guard_type, *shortcut_type, *session_type,
    *custom_type;

/* ---- Errors and conversions ---- */

static PyObject *const *const exceptions[] = {
#define EXCEPTION(code, type, text) [SOL_##code] = &PyExc_##type,
    SOL_STATUS_LIST(EXCEPTION)
#undef EXCEPTION
};

PyObject *raise_status(enum sol_status status) {
    if (!PyErr_Occurred()) PyErr_SetString(*exceptions[status], sol_error());
    return NULL;
}

PyObject *take_text(char *text) {
    if (!text) return PyErr_NoMemory();
    PyObject *result = PyUnicode_FromString(text);
    free(text);
    return result;
}

PyObject *new_name(const char *name) {
    return PyUnicode_DecodeUTF8(name, (Py_ssize_t)strlen(name), "replace");
}

const char *const dtype_names[] = {
#define NAME(code, name, type, family) name,
    SOL_DTYPE_LIST(NAME)
#undef NAME
};

int find_dtype(const char *name) {
    for (int i = 0; i < SOL_N_DTYPES; i++) {
        if (!strcmp(name, dtype_names[i])) return i;
    }
    PyErr_Format(PyExc_ValueError, "unknown dtype '%s'", name);
    return -1;
}

int64_t *get_ints(PyObject *object, Py_ssize_t *n) {
    PyObject *tuple = PySequence_Tuple(object);
    if (!tuple) return NULL;
    *n = PyTuple_Size(tuple);
    int64_t *array = malloc(sizeof *array * (size_t)(*n + 1));
    if (!array) PyErr_NoMemory();
    for (Py_ssize_t i = 0; array && i < *n; i++) {
        array[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (array[i] == -1 && PyErr_Occurred()) {
            free(array);
            array = NULL;
        }
    }
    Py_DECREF(tuple);
    return array;
}

sol_tensor *get_tensors(PyObject *object, Py_ssize_t *n) {
    int64_t *ints = get_ints(object, n);
    sol_tensor *tensors = ints ? malloc(sizeof *tensors * (size_t)(*n + 1)) : NULL;
    if (ints && !tensors) PyErr_NoMemory();
    for (Py_ssize_t i = 0; tensors && i < *n; i++) tensors[i] = (sol_tensor)ints[i];
    free(ints);
    return tensors;
}

void **get_addresses(PyObject *object, int n, const char *what) {
    PyObject *tuple = PySequence_Tuple(object);
    if (!tuple) return NULL;
    void **array = NULL;
    if (PyTuple_Size(tuple) != n) {
        PyErr_Format(PyExc_ValueError, "%s: expected %d addresses, got %zd", what, n,
                     PyTuple_Size(tuple));
    } else if (!(array = calloc((size_t)n + 1, sizeof *array))) {
        PyErr_NoMemory();
    }
    for (int i = 0; array && i < n; i++) {
        array[i] = PyLong_AsVoidPtr(PyTuple_GetItem(tuple, i));
        if (!array[i] && PyErr_Occurred()) {
            free(array);
            array = NULL;
        }
    }
    Py_DECREF(tuple);
    return array;
}

PyObject *new_shape(int rank, const int64_t *dim) {
    PyObject *shape = PyTuple_New(rank);
    for (int i = 0; shape && i < rank; i++) {
        PyObject *item = dim[i] == INT64_MIN ? Py_NewRef(Py_None) : PyLong_FromLongLong(dim[i]);
        if (!item || PyTuple_SetItem(shape, i, item)) {
            Py_DECREF(shape);
            return NULL;
        }
    }
    return shape;
}

int append(PyObject *list, PyObject *item) {
    int result = item ? PyList_Append(list, item) : -1;
    Py_XDECREF(item);
    return result;
}

void free_object(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc free_self = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_self(self);
    Py_DECREF(type);
}

PyObject *new_object(PyTypeObject *type) {
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return alloc(type, 0);
}

/* ---- Tensors of any framework ---- */

/* The beginning of DLPackExchangeAPI, DLPack's table of functions. Its layout is the same in all versions 1.x. */
struct dl_exchange {
    uint32_t major, minor;
    void *previous;
    void (*allocate)(void), (*take)(void), (*give)(void);
    int (*view)(void *tensor, struct dl_tensor *out);
};

int (*view_tensor)(void *tensor, struct dl_tensor *out);

bool find_dl_type(const char *name, struct dl_tensor *out) {
    static const struct {
        const char *name;
        uint8_t code, bits;
    } types[] = {{"f32", 2, 32}, {"f64", 2, 64}, {"f16", 2, 16}, {"bf16", 4, 16}, {"i64", 0, 64},
                 {"i32", 0, 32}, {"i16", 0, 16}, {"i8", 0, 8},   {"u8", 1, 8},    {"bool", 6, 8}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(name, types[i].name) != 0) continue;
        out->dtype.code = types[i].code;
        out->dtype.bits = types[i].bits;
        out->dtype.lanes = 1;
        return true;
    }
    return false;
}

/* A framework that takes the tensor renames the capsule, and then releases the tensor itself. */
static void release_capsule(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor")) return;
    struct managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
    managed->release(managed);
}

PyObject *new_dl_capsule(struct managed *managed) {
    PyObject *capsule = PyCapsule_New(managed, "dltensor", release_capsule);
    if (!capsule) managed->release(managed);
    return capsule;
}

PyObject *core_use_tensors(PyObject *module, PyObject *capsule) {
    (void)module;
    const struct dl_exchange *exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (!exchange) return NULL;
    if (exchange->major == 1) view_tensor = exchange->view;
    return PyBool_FromLong(view_tensor != NULL);
}

/* ---- Module ---- */

static PyObject *core_parse(PyObject *module, PyObject *args) {
    const char *text;
    struct sol_model *model = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "s:parse", &text)) return NULL;
    enum sol_status status = sol_model_parse(text, &model);
    return status ? raise_status(status) : wrap_model(model_type, model);
}

/* Converts [(name, dims)], or None for no shapes, to a malloc'ed array. `list` owns the names. NULL with an exception set. */
static struct sol_onnx_shape *get_shapes(PyObject *list, int *n) {
    Py_ssize_t size = list == Py_None ? 0 : PyList_Size(list);
    struct sol_onnx_shape *shapes = size < 0 ? NULL : calloc((size_t)size + 1, sizeof *shapes);
    if (size >= 0 && !shapes) PyErr_NoMemory();
    for (Py_ssize_t i = 0; shapes && i < size; i++) {
        PyObject *dims;
        Py_ssize_t rank = 0;
        int64_t *dim = PyArg_ParseTuple(PyList_GetItem(list, i), "sO", &shapes[i].input, &dims)
                           ? get_ints(dims, &rank)
                           : NULL;
        if (dim && rank > SOL_MAX_RANK)
            PyErr_SetString(PyExc_ValueError, "a shape of too many dims");
        shapes[i].rank = (int)rank;
        for (int d = 0; dim && rank <= SOL_MAX_RANK && d < rank; d++) shapes[i].dim[d] = dim[d];
        free(dim);
        if (!PyErr_Occurred()) continue;
        free(shapes);
        return NULL;
    }
    *n = (int)size;
    return shapes;
}

static PyObject *core_read_onnx(PyObject *module, PyObject *args) {
    const char *path;
    PyObject *list = Py_None;
    struct sol_onnx *onnx = NULL;
    enum sol_status status;
    int n;
    (void)module;
    if (!PyArg_ParseTuple(args, "s|O:read_onnx", &path, &list)) return NULL;
    struct sol_onnx_shape *shapes = get_shapes(list, &n);
    if (!shapes) return NULL;
    Py_BEGIN_ALLOW_THREADS status = sol_onnx_read_shaped(path, shapes, n, &onnx);
    Py_END_ALLOW_THREADS free(shapes);
    return status ? raise_status(status) : wrap_onnx(onnx);
}

static PyObject *core_parse_onnx(PyObject *module, PyObject *args) {
    const char *data, *folder;
    Py_ssize_t size;
    PyObject *list = Py_None;
    struct sol_onnx *onnx = NULL;
    int n;
    (void)module;
    if (!PyArg_ParseTuple(args, "y#z|O:parse_onnx", &data, &size, &folder, &list)) return NULL;
    struct sol_onnx_shape *shapes = get_shapes(list, &n);
    if (!shapes) return NULL;
    enum sol_status status = sol_onnx_parse_shaped(data, (size_t)size, folder, shapes, n, &onnx);
    free(shapes);
    return status ? raise_status(status) : wrap_onnx(onnx);
}

/* ---- Kinds of files, queries, settings, measurements ---- */

static PyObject *core_is_onnx(PyObject *module, PyObject *args) {
    const char *data;
    Py_ssize_t size;
    (void)module;
    if (!PyArg_ParseTuple(args, "y#:is_onnx", &data, &size)) return NULL;
    return PyBool_FromLong(sol_onnx_is_model(data, (size_t)size));
}

static PyObject *core_file_kind(PyObject *module, PyObject *args) {
    const char *data;
    Py_ssize_t size;
    (void)module;
    if (!PyArg_ParseTuple(args, "y#:file_kind", &data, &size)) return NULL;
    return Py_BuildValue("z", sol_file_kind(data, (size_t)size));
}

/* Python first escapes characters that UTF-8 cannot encode, such as half of a surrogate pair. */
static PyObject *core_clean(PyObject *module, PyObject *args) {
    PyObject *text, *bytes, *result = NULL;
    int keep_lines = 0;
    char *data, *clean = NULL;
    Py_ssize_t n;
    (void)module;
    if (!PyArg_ParseTuple(args, "U|p:clean", &text, &keep_lines)) return NULL;
    bytes = PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace");
    if (!bytes || PyBytes_AsStringAndSize(bytes, &data, &n)) goto done;
    const size_t size = sol_clean(data, (size_t)n, keep_lines, NULL, 0);
    if ((clean = malloc(size + 1))) sol_clean(data, (size_t)n, keep_lines, clean, size + 1);
    result = clean ? PyUnicode_FromStringAndSize(clean, (Py_ssize_t)size) : PyErr_NoMemory();
done:
    free(clean);
    Py_XDECREF(bytes);
    return result;
}

static void visit_info(void *user, const struct sol_info *info) {
    PyObject *item =
        Py_BuildValue("(ssON)", info->kind, info->name, info->available ? Py_True : Py_False,
                      new_name(info->detail ? info->detail : ""));
    if (append(user, item)) PyErr_Clear();
}

static PyObject *core_query(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    PyObject *rows = PyList_New(0);
    if (rows) sol_query(visit_info, rows);
    return rows;
}

static PyObject *core_version(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return PyUnicode_FromString(sol_version());
}

static PyObject *tell_amount(enum sol_status status, const struct sol_cache *amount) {
    if (status) return raise_status(status);
    return Py_BuildValue("(LL)", (long long)amount->n_files, (long long)amount->bytes);
}

static PyObject *core_cache_clear(PyObject *module, PyObject *none) {
    struct sol_cache removed = {0};
    (void)module, (void)none;
    return tell_amount(sol_cache_clear(&removed), &removed);
}

static PyObject *core_cache_usage(PyObject *module, PyObject *none) {
    struct sol_cache usage = {0};
    (void)module, (void)none;
    return tell_amount(sol_cache_usage(&usage), &usage);
}

static PyObject *core_set_threads(PyObject *module, PyObject *args) {
    int n;
    (void)module;
    if (!PyArg_ParseTuple(args, "i:set_threads", &n)) return NULL;
    sol_set_threads(n);
    Py_RETURN_NONE;
}

static PyObject *core_threads(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return PyLong_FromLong(sol_threads());
}

static PyObject *core_set_log_level(PyObject *module, PyObject *args) {
    int level;
    (void)module;
    if (!PyArg_ParseTuple(args, "i:set_log_level", &level)) return NULL;
    sol_set_log_level(level);
    Py_RETURN_NONE;
}

static PyObject *core_measure_flops(PyObject *module, PyObject *none) {
    double rate;
    (void)module, (void)none;
    Py_BEGIN_ALLOW_THREADS rate = sol_measure_flops();
    Py_END_ALLOW_THREADS return PyFloat_FromDouble(rate);
}

static PyObject *core_measure_bandwidth(PyObject *module, PyObject *args) {
    Py_ssize_t size;
    double rate;
    (void)module;
    if (!PyArg_ParseTuple(args, "n:measure_bandwidth", &size)) return NULL;
    Py_BEGIN_ALLOW_THREADS rate = sol_measure_bandwidth(size > 0 ? (size_t)size : 0);
    Py_END_ALLOW_THREADS return rate > 0 ? PyFloat_FromDouble(rate) : PyErr_NoMemory();
}

static void free_queue(PyObject *capsule) {
    sol_queue_free(PyCapsule_GetPointer(capsule, "sol_queue"));
}

/* The queue keeps the device open, and does nothing else. */
static PyObject *core_open_device(PyObject *module, PyObject *args) {
    const char *name;
    int number;
    struct sol_queue *queue = NULL;
    enum sol_status status;
    (void)module;
    if (!PyArg_ParseTuple(args, "si:open_device", &name, &number)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = sol_queue_new(name, number, &queue);
    Py_END_ALLOW_THREADS if (status) return raise_status(status);
    PyObject *capsule = PyCapsule_New(queue, "sol_queue", free_queue);
    if (!capsule) sol_queue_free(queue);
    return capsule;
}

static PyMethodDef core_methods[] = {
    {"parse", core_parse, METH_VARARGS, "parse(text) -> Model."},
    {"read_onnx", core_read_onnx, METH_VARARGS,
     "read_onnx(path, shapes=None) -> Model, with the file's values. shapes: [(input, dims)] for open sizes."},
    {"parse_onnx", core_parse_onnx, METH_VARARGS,
     "parse_onnx(bytes, folder, shapes=None) -> Model; external data lies in `folder`, None: nowhere."},
    {"is_onnx", core_is_onnx, METH_VARARGS, "is_onnx(bytes): do they look like an ONNX model?"},
    {"file_kind", core_file_kind, METH_VARARGS,
     "file_kind(bytes) -> what a file is that is no model, or None."},
    {"clean", core_clean, METH_VARARGS,
     "clean(text, keep_lines=False) -> untrusted text, made safe for a terminal or a log."},
    {"read_info", core_read_info, METH_O,
     "read_info(path or bytes) -> dict: what an ONNX file declares, as struct sol_onnx_info."},
    {"open_session", core_open_session, METH_VARARGS,
     "open_session(path or bytes, folder, device, number, winograd, autotune) -> Session."},
    {"query", core_query, METH_NOARGS,
     "[(kind, name, available, detail)] of devices, libraries, compilers, caches."},
    {"open_device", core_open_device, METH_VARARGS,
     "open_device(name, number) -> an object that keeps the device open."},
    {"version", core_version, METH_NOARGS, "The version of libsol."},
    {"cache_clear", core_cache_clear, METH_NOARGS,
     "Deletes the compiled kernels of this user -> (files, bytes)."},
    {"cache_usage", core_cache_usage, METH_NOARGS, "What the cache holds -> (files, bytes)."},
    {"set_threads", core_set_threads, METH_VARARGS, "set_threads(n); 0: one per core."},
    {"threads", core_threads, METH_NOARGS, "Threads that take part in a call."},
    {"measure_flops", core_measure_flops, METH_NOARGS,
     "The machine's peak in floating point operations per second."},
    {"measure_bandwidth", core_measure_bandwidth, METH_VARARGS,
     "measure_bandwidth(size) -> bytes per second of reading `size` bytes."},
    {"use_tensors", core_use_tensors, METH_O,
     "use_tensors(capsule): how a framework shows its tensors' memory, DLPack's exchange API."},
    {"set_log_level", core_set_log_level, METH_VARARGS, "0 error ... 4 trace."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT, "_core", "libsol for Python.", -1, core_methods, NULL, NULL, NULL, NULL};

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
    *type = (PyTypeObject *)PyType_FromSpec(spec);
    return *type ? PyModule_AddType(module, *type) : -1;
}

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void) {
    PyObject *module = PyModule_Create(&core_module);
    if (!module) return NULL;
    sol_check_environment();
    if (guard_use_tags() || add_type(module, &model_spec, &model_type) ||
        add_type(module, &program_spec, &program_type) ||
        add_type(module, &weights_spec, &weights_type) ||
        add_type(module, &guard_spec, &guard_type) ||
        add_type(module, &shortcut_spec, &shortcut_type) ||
        add_type(module, &session_spec, &session_type) ||
        add_type(module, &custom_spec, &custom_type)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}

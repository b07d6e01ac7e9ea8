/*
 * sol._core.Session: an ONNX network of which parts are interpreted, for Python (session.py converts NumPy arrays).
 *
 * A tensor is a tuple (type, shape, data). `type` is ONNX's number of the element type. `data` is an address; for strings
 * (type 8) it is a list of bytes objects, and in results of other types a bytearray. A sequence is a list of values. A map
 * is a tuple of two tensors (keys, values). An optional without a value is None.
 */
#include "_core.h"

struct session_object {
    PyObject_HEAD struct sol_session *session;
    PyObject *device; /* the str that owns the text of the option `device` */
};

enum { STRING = 8 }; /* onnx.TensorProto.STRING */

static struct sol_session *session_of(PyObject *self) {
    return ((struct session_object *)self)->session;
}

/* ---- Values from Python ---- */

static void free_value(struct sol_value *value) {
    if (value && value->type < 0) {
        struct sol_value **items = (void *)(uintptr_t)value->data;
        for (int64_t i = 0; items && i < value->n; i++) free_value(items[i]);
    }
    if (value && (value->type < 0 || value->type == STRING)) free((void *)(uintptr_t)value->data);
    free(value);
}

static struct sol_value *get_value(PyObject *object);

/* The items of a list, or of a tuple. */
static int get_items(PyObject *list, int type, struct sol_value *out) {
    Py_ssize_t n = PySequence_Size(list);
    struct sol_value **items = calloc((size_t)n + 1, sizeof *items);
    if (!items) {
        PyErr_NoMemory();
        return -1;
    }
    *out = (struct sol_value){.type = type, .n = n, .data = items};
    for (Py_ssize_t i = 0; i < n; i++)
        if (!(items[i] = get_value(type == SOL_VALUE_MAP ? PyTuple_GetItem(list, i)
                                                         : PyList_GetItem(list, i))))
            return -1;
    return 0;
}

/* Fills *out with strings that point into the bytes objects of `list`, which the caller must keep. -1: an exception is set. */
static int get_strings(PyObject *list, struct sol_value *out) {
    if (!PyList_Check(list) || PyList_Size(list) != out->n) {
        PyErr_SetString(PyExc_ValueError, "strings are a list of as many bytes as the shape says");
        return -1;
    }
    struct sol_string *strings = calloc((size_t)out->n + 1, sizeof *strings);
    out->data = strings;
    if (!strings) PyErr_NoMemory();
    for (Py_ssize_t i = 0; strings && i < out->n; i++) {
        char *at;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyList_GetItem(list, i), &at, &size)) return -1;
        strings[i] = (struct sol_string){at, (size_t)size};
    }
    return strings ? 0 : -1;
}

static int get_shape(PyObject *shape, struct sol_value *out) {
    Py_ssize_t rank;
    int64_t *dim = get_ints(shape, &rank);
    if (!dim) return -1;
    out->n = 1;
    bool fits = rank <= SOL_MAX_RANK;
    for (Py_ssize_t d = 0; fits && d < rank; d++) {
        out->dim[d] = dim[d];
        fits = dim[d] >= 0 && !__builtin_mul_overflow(out->n, dim[d], &out->n);
    }
    out->rank = (int)rank;
    free(dim);
    if (!fits)
        PyErr_Format(PyExc_NotImplementedError, "a tensor of %zd dims; the most is %d", rank,
                     SOL_MAX_RANK);
    return fits ? 0 : -1;
}

static int get_tensor(PyObject *object, struct sol_value *out) {
    PyObject *shape, *where;
    if (!PyTuple_Check(object) || !PyArg_ParseTuple(object, "iOO", &out->type, &shape, &where)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a value is a tuple or list");
        return -1;
    }
    int type = out->type;
    out->type = 0; /* free_value must not free `data` before it is set */
    if (get_shape(shape, out)) return -1;
    out->type = type;
    if (type == STRING) return get_strings(where, out);
    out->data = PyLong_AsVoidPtr(where);
    return PyErr_Occurred() ? -1 : 0;
}

/* Converts a Python value to a malloc'ed one, for free_value; NULL with an exception set. */
static struct sol_value *get_value(PyObject *object) {
    struct sol_value *value = calloc(1, sizeof *value);
    if (!value) return (void *)PyErr_NoMemory();
    int failed = object == Py_None      ? 0
                 : PyList_Check(object) ? get_items(object, SOL_VALUE_SEQUENCE, value)
                 : PyTuple_Check(object) && PyTuple_Size(object) == 2
                     ? get_items(object, SOL_VALUE_MAP, value)
                     : get_tensor(object, value);
    if (!failed) return value;
    free_value(value);
    return NULL;
}

/* ---- Values for Python ---- */

/* Bytes of one element, by ONNX's number of the type. */
static const size_t sizes[] = {0, 4,  1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8,
                               8, 16, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

static PyObject *new_value(const struct sol_value *value);

static PyObject *new_sequence(const struct sol_value *value) {
    const struct sol_value *const *items = value->data;
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list && i < value->n; i++)
        if (append(list, new_value(items[i]))) Py_CLEAR(list);
    return list;
}

static PyObject *new_strings(const struct sol_value *value) {
    const struct sol_string *strings = value->data;
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list && i < value->n; i++)
        if (append(list, PyBytes_FromStringAndSize(strings[i].at, (Py_ssize_t)strings[i].size)))
            Py_CLEAR(list);
    return list;
}

static PyObject *new_value(const struct sol_value *value) {
    if (value->type == SOL_VALUE_NONE) Py_RETURN_NONE;
    if (value->type == SOL_VALUE_SEQUENCE) return new_sequence(value);
    if (value->type == SOL_VALUE_MAP) {
        const struct sol_value *const *items = value->data;
        return Py_BuildValue("(NN)", new_value(items[0]), new_value(items[1]));
    }
    PyObject *shape = new_shape(value->rank, value->dim), *data;
    if (value->type == STRING) data = new_strings(value);
    else
        data = PyByteArray_FromStringAndSize(value->data,
                                             (Py_ssize_t)((size_t)value->n * sizes[value->type]));
    if (!shape || !data) {
        Py_XDECREF(shape);
        Py_XDECREF(data);
        return NULL;
    }
    return Py_BuildValue("(iNN)", value->type, shape, data);
}

/* ---- The object ---- */

static PyObject *wrap(struct sol_session *session, PyObject *device) {
    PyObject *self = new_object(session_type);
    if (!self) {
        sol_session_free(session);
        return NULL;
    }
    ((struct session_object *)self)->session = session;
    ((struct session_object *)self)->device = Py_XNewRef(device);
    return self;
}

/* open_session(path or bytes, folder of a bytes object's external data, device, its number, winograd, autotune) -> Session. */
PyObject *core_open_session(PyObject *module, PyObject *args) {
    PyObject *source, *device;
    const char *folder;
    struct sol_options options = {0};
    int winograd, autotune;
    (void)module;
    if (!PyArg_ParseTuple(args, "OzOipp:open_session", &source, &folder, &device,
                          &options.device_number, &winograd, &autotune))
        return NULL;
    options.deterministic = !winograd;
    options.no_autotune = !autotune;
    if (device != Py_None && !(options.device = PyUnicode_AsUTF8AndSize(device, NULL))) return NULL;
    struct sol_session *session = NULL;
    enum sol_status status;
    if (PyBytes_Check(source)) {
        char *data;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(source, &data, &size)) return NULL;
        status = sol_session_parse(data, (size_t)size, folder, &options, &session);
    } else {
        const char *path = PyUnicode_AsUTF8AndSize(source, NULL);
        if (!path) return NULL;
        status = sol_session_read(path, &options, &session);
    }
    return status ? raise_status(status) : wrap(session, device);
}

static void session_dealloc(PyObject *self) {
    sol_session_free(session_of(self));
    Py_XDECREF(((struct session_object *)self)->device);
    free_object(self);
}

static PyObject *run_values(struct sol_session *session, const struct sol_value *const *inputs) {
    struct sol_results *results = NULL;
    enum sol_status status;
    Py_BEGIN_ALLOW_THREADS status = sol_session_run(session, inputs, &results);
    Py_END_ALLOW_THREADS if (status) return raise_status(status);
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < sol_session_n_outputs(session); i++)
        if (append(list, new_value(sol_results_get(results, i)))) Py_CLEAR(list);
    sol_results_free(results);
    return list;
}

/* The GIL stays held, since rows are made during the call. */
static PyObject *profile_values(struct sol_session *session,
                                const struct sol_value *const *inputs) {
    PyObject *rows = PyList_New(0);
    if (!rows) return NULL;
    enum sol_status status = sol_session_profile(session, inputs, append_step, rows);
    if (!status) return rows;
    Py_DECREF(rows);
    return raise_status(status);
}

/* Converts the values of the list and calls `job` with them. */
static PyObject *with_values(PyObject *self, PyObject *list,
                             PyObject *(*job)(struct sol_session *,
                                              const struct sol_value *const *)) {
    struct sol_session *session = session_of(self);
    int n = sol_session_n_inputs(session), done = 0;
    if (!PyList_Check(list) || PyList_Size(list) != n) {
        PyErr_Format(PyExc_ValueError, "expected a list of %d values", n);
        return NULL;
    }
    struct sol_value **inputs = calloc((size_t)n + 1, sizeof *inputs);
    if (!inputs) return PyErr_NoMemory();
    while (done < n && (inputs[done] = get_value(PyList_GetItem(list, done)))) done++;
    PyObject *result = done == n ? job(session, (const struct sol_value *const *)inputs) : NULL;
    for (int i = 0; i < done; i++) free_value(inputs[i]);
    free(inputs);
    return result;
}

static PyObject *session_run(PyObject *self, PyObject *list) {
    return with_values(self, list, run_values);
}

static PyObject *session_profile(PyObject *self, PyObject *list) {
    return with_values(self, list, profile_values);
}

typedef const char *tell_port(const struct sol_session *, int, int *, int *, int64_t *);

static PyObject *session_ports(PyObject *self, int n, tell_port *tell) {
    PyObject *ports = PyList_New(0);
    for (int i = 0; ports && i < n; i++) {
        int type, rank;
        int64_t dim[SOL_MAX_RANK];
        const char *name = tell(session_of(self), i, &type, &rank, dim);
        PyObject *shape = rank < 0 ? Py_NewRef(Py_None) : new_shape(rank, dim);
        if (!shape || append(ports, Py_BuildValue("(NiN)", new_name(name), type, shape)))
            Py_CLEAR(ports);
    }
    return ports;
}

static PyObject *session_inputs(PyObject *self, void *closure) {
    (void)closure;
    return session_ports(self, sol_session_n_inputs(session_of(self)), sol_session_input);
}

static PyObject *session_outputs(PyObject *self, void *closure) {
    (void)closure;
    return session_ports(self, sol_session_n_outputs(session_of(self)), sol_session_output);
}

static PyObject *session_counts(PyObject *self, void *closure) {
    int compiled, interpreted;
    (void)closure;
    sol_session_count(session_of(self), &compiled, &interpreted);
    return Py_BuildValue("(ii)", compiled, interpreted);
}

static PyObject *session_size_name(PyObject *self, PyObject *args) {
    long long dim;
    if (!PyArg_ParseTuple(args, "L:size_name", &dim)) return NULL;
    const char *name = sol_session_size_name(session_of(self), dim);
    if (!name) Py_RETURN_NONE;
    return new_name(name);
}

static PyMethodDef session_methods[] = {
    {"size_name", session_size_name, METH_VARARGS,
     "size_name(dim) of an open dim of inputs, or None."},
    {"run", session_run, METH_O, "run(values) -> values; the GIL is released."},
    {"profile", session_profile, METH_O, "profile(values) -> rows, as of Program.profile."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef session_getset[] = {
    {"inputs", session_inputs, NULL,
     "[(name, type, dims)]; type 0: no tensor; dims None: open, one below 0 is open", NULL},
    {"outputs", session_outputs, NULL, "as inputs", NULL},
    {"counts", session_counts, NULL, "(compiled, interpreted) nodes of the last call", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot session_slots[] = {
    {Py_tp_doc, "A network that is partly interpreted; made by open_session."},
    {Py_tp_dealloc, session_dealloc},
    {Py_tp_methods, session_methods},
    {Py_tp_getset, session_getset},
    {0, NULL},
};
PyType_Spec session_spec = {"sol._core.Session", sizeof(struct session_object), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, session_slots};

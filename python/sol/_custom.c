/*
 * sol._core.Custom: the code of a custom layer (sol/custom.h), for Python.
 *
 *   Custom(name, text, flags, path) -> Model.custom -> programs, which call the function without Python
 *                                   -> Custom.call, for PyTorch's eager mode: without the GIL
 */
#include "_core.h"

struct custom_object {
    PyObject_HEAD struct sol_custom *custom;
};

static struct sol_custom *custom_of(PyObject *self) {
    return ((struct custom_object *)self)->custom;
}

static PyObject *custom_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    const char *name, *text = NULL, *flags = NULL, *path = NULL;
    static char *keywords[] = {"name", "text", "flags", "path", NULL};
    struct sol_custom *custom = NULL;
    enum sol_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|zzz:Custom", keywords, &name, &text, &flags,
                                     &path))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status = text ? sol_custom_compile(name, text, flags, &custom)
                                         : sol_custom_open(name, path, &custom);
    Py_END_ALLOW_THREADS if (status) return raise_status(status);
    PyObject *self = new_object(type);
    if (!self) {
        sol_custom_release(custom);
        return NULL;
    }
    ((struct custom_object *)self)->custom = custom;
    return self;
}

static void custom_dealloc(PyObject *self) {
    sol_custom_release(custom_of(self));
    free_object(self);
}

/* ---- Attributes ---- */

/* The attributes of a call. `keep` owns what they point to. */
struct attributes {
    int n;
    struct sol_attribute *at;
    void **keep;
};

static void free_attributes(struct attributes *a) {
    for (int i = 0; i < a->n && a->keep; i++) free(a->keep[i]);
    free(a->keep);
    free(a->at);
}

/* Fills in a list of numbers, all of the type of the first one. Returns -1 with an exception set. */
static int get_numbers(PyObject *list, struct sol_attribute *to, void **keep) {
    const Py_ssize_t n = PyTuple_Size(list);
    const bool is_float = n && PyFloat_Check(PyTuple_GetItem(list, 0));
    int64_t *ints = calloc((size_t)n + 1, 8);
    if (!ints) return PyErr_NoMemory(), -1;
    double *floats = (double *)(void *)ints;
    *keep = ints;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyTuple_GetItem(list, i);
        if (is_float) floats[i] = PyFloat_AsDouble(item);
        else ints[i] = PyLong_AsLongLong(item);
        if (PyErr_Occurred()) return -1;
    }
    to->n = n;
    if (is_float) to->floats = floats;
    else to->ints = ints;
    return 0;
}

/* `value`: a str, or a tuple of numbers. */
static int get_attribute(PyObject *name, PyObject *value, struct sol_attribute *to, void **keep) {
    to->n = 1;
    to->name = PyUnicode_AsUTF8AndSize(name, NULL);
    if (!to->name) return -1;
    if (PyTuple_Check(value)) return get_numbers(value, to, keep);
    to->text = PyUnicode_AsUTF8AndSize(value, NULL);
    return to->text ? 0 : -1;
}

/* Converts a tuple of (name, value), which must live as long as *a. Returns -1 with an exception set. */
static int get_attributes(PyObject *tuple, struct attributes *a) {
    const Py_ssize_t n = PyTuple_Size(tuple);
    *a = (struct attributes){0};
    if (n < 0) return -1;
    a->at = calloc((size_t)n + 1, sizeof *a->at);
    a->keep = calloc((size_t)n + 1, sizeof *a->keep);
    if (!a->at || !a->keep) return PyErr_NoMemory(), -1;
    for (; a->n < n; a->n++) {
        PyObject *name, *value;
        if (!PyArg_ParseTuple(PyTuple_GetItem(tuple, a->n), "OO", &name, &value)) return -1;
        if (get_attribute(name, value, &a->at[a->n], &a->keep[a->n])) {
            free(a->keep[a->n]);
            return -1;
        }
    }
    return 0;
}

/* ---- Calls ---- */

/* A tensor is (address, dtype name, shape). */
static int get_tensor(PyObject *tuple, struct sol_host_tensor *to) {
    PyObject *address, *shape;
    const char *dtype_name;
    Py_ssize_t rank;
    if (!PyArg_ParseTuple(tuple, "OsO", &address, &dtype_name, &shape)) return -1;
    const int dtype = find_dtype(dtype_name);
    to->data = PyLong_AsVoidPtr(address);
    if (dtype < 0 || (!to->data && PyErr_Occurred())) return -1;
    int64_t *dim = get_ints(shape, &rank);
    if (!dim) return -1;
    to->dtype = (enum sol_dtype)dtype;
    to->rank = (int)rank;
    if (rank <= SOL_MAX_RANK) memcpy(to->dim, dim, sizeof *dim * (size_t)rank);
    else PyErr_Format(PyExc_NotImplementedError, "a tensor has %zd dims; the most is 8", rank);
    free(dim);
    return PyErr_Occurred() ? -1 : 0;
}

/* Returns the number of tensors, or -1 with an exception set. */
static int get_list(PyObject *list, struct sol_host_tensor *to, int room) {
    const Py_ssize_t n = PyList_Size(list);
    if (n < 0) return -1;
    if (n > room) {
        PyErr_Format(PyExc_NotImplementedError, "more than %d inputs and outputs",
                     SOL_CUSTOM_TENSORS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (get_tensor(PyList_GetItem(list, i), &to[i])) return -1;
    return (int)n;
}

static PyObject *custom_call(PyObject *self, PyObject *args) {
    PyObject *inputs, *outputs, *given;
    struct sol_host_tensor tensor[SOL_CUSTOM_TENSORS];
    struct attributes attributes = {0};
    enum sol_status status = SOL_OK;
    if (!PyArg_ParseTuple(args, "OOO:call", &inputs, &outputs, &given)) return NULL;
    const int n_in = get_list(inputs, tensor, SOL_CUSTOM_TENSORS);
    const int n_out = n_in < 0 ? -1 : get_list(outputs, tensor + n_in, SOL_CUSTOM_TENSORS - n_in);
    if (n_out < 0) return NULL;
    if (!get_attributes(given, &attributes)) {
        const struct sol_host_call call = {.n_in = n_in,
                                           .n_out = n_out,
                                           .in = tensor,
                                           .out = tensor + n_in,
                                           .n_attributes = attributes.n,
                                           .attribute = attributes.at,
                                           .end = 1};
        Py_BEGIN_ALLOW_THREADS status = sol_custom_call(custom_of(self), &call);
        Py_END_ALLOW_THREADS if (status) raise_status(status);
    }
    free_attributes(&attributes);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyObject *model_custom(PyObject *self, PyObject *args) {
    PyObject *custom, *given;
    struct attributes attributes;
    int host = -1;
    if (!PyArg_ParseTuple(args, "O!O!:custom", custom_type, &custom, &PyTuple_Type, &given))
        return NULL;
    if (!get_attributes(given, &attributes))
        host = sol_model_custom(((struct model_object *)self)->model, custom_of(custom),
                                attributes.n, attributes.at);
    free_attributes(&attributes);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(host);
}

static PyMethodDef custom_methods[] = {
    {"call", custom_call, METH_VARARGS,
     "call(inputs, outputs, attributes): lists of (address, dtype, shape); a tuple of (name, str or tuple of numbers)."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot custom_slots[] = {
    {Py_tp_doc,
     "Custom(name, text=None, flags=None, path=None): code of a custom layer, from C text or a shared library."},
    {Py_tp_new, custom_new},
    {Py_tp_dealloc, custom_dealloc},
    {Py_tp_methods, custom_methods},
    {0, NULL},
};
PyType_Spec custom_spec = {"sol._core.Custom", sizeof(struct custom_object), 0, Py_TPFLAGS_DEFAULT,
                           custom_slots};

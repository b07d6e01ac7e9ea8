/*
 * Host nodes for Python: functions that compute layers of a model by calls of a framework.
 *
 *   Model.host(name, function), Model.host_layer(...)  ->  sol_model_host  ->  at each call run_host -> function
 *
 * The function gets its tensors as DLPack capsules over the program's memory, so nothing is copied. It must not keep them.
 *
 * Invariant: an exception of the function stays set on the calling thread, also while the rest of libsol returns. So
 * raise_status finds it, and the caller gets the same exception object.
 */
#include "_core.h"

#include <stdio.h>

static void release_managed(struct managed *self) { free(self); }

static PyObject *new_capsule(const struct sol_host_tensor *t) {
    struct managed *m = calloc(1, sizeof *m);
    if (!m) return PyErr_NoMemory();
    m->tensor.data = t->data;
    m->tensor.device.type = DL_CPU;
    m->tensor.ndim = t->rank;
    m->tensor.shape = m->dim;
    memcpy(m->dim, t->dim, sizeof m->dim);
    m->release = release_managed;
    find_dl_type(dtype_names[t->dtype], &m->tensor);
    return new_dl_capsule(m);
}

static PyObject *new_capsules(const struct sol_host_tensor *t, int n) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < n; i++)
        if (append(list, new_capsule(&t[i]))) Py_CLEAR(list);
    return list;
}

static PyObject *call_function(PyObject *function, const struct sol_host_call *call) {
    PyObject *inputs = new_capsules(call->in, call->n_in);
    PyObject *outputs = inputs ? new_capsules(call->out, call->n_out) : NULL;
    PyObject *symbols = outputs ? new_shape(call->n_symbols, call->symbol) : NULL;
    PyObject *result =
        symbols ? PyObject_CallFunctionObjArgs(function, inputs, outputs, symbols, NULL) : NULL;
    Py_XDECREF(inputs);
    Py_XDECREF(outputs);
    Py_XDECREF(symbols);
    return result;
}

/* Writes the current exception as "IndexError: index 7 is out of bounds", for callers that are no Python code. */
static void explain(char *message) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *name = PyObject_GetAttrString(type, "__name__");
    PyObject *text = value ? PyObject_Str(value) : NULL;
    PyObject *both = name && text ? PyUnicode_FromFormat("%U: %U", name, text) : NULL;
    const char *utf8 = both ? PyUnicode_AsUTF8AndSize(both, NULL) : NULL;
    snprintf(message, SOL_HOST_MESSAGE, "%s", utf8 ? utf8 : "a Python exception");
    PyErr_Clear();
    Py_XDECREF(name);
    Py_XDECREF(text);
    Py_XDECREF(both);
    PyErr_Restore(type, value, trace);
}

static enum sol_status run_host(void *user, const struct sol_host_call *call) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result = call_function(user, call);
    if (!result) explain(call->message);
    enum sol_status status = result ? SOL_OK : SOL_EINVAL;
    Py_XDECREF(result);
    PyGILState_Release(state);
    return status;
}

/* A program may be released on any thread. At the end of the process there may be no interpreter any more. */
static void release_host(void *user) {
    if (!Py_IsInitialized()) return;
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF((PyObject *)user);
    PyGILState_Release(state);
}

PyObject *model_host(PyObject *self, PyObject *args) {
    struct sol_host host = {.run = run_host, .release = release_host};
    PyObject *function;
    if (!PyArg_ParseTuple(args, "sO:host", &host.name, &function)) return NULL;
    host.user = Py_NewRef(function);
    return PyLong_FromLong(sol_model_host(((struct model_object *)self)->model, &host));
}

PyObject *model_host_layer(PyObject *self, PyObject *args) {
    int host, n_out;
    PyObject *inputs;
    const char *types, *attributes, *origin;
    Py_ssize_t n_in;
    if (!PyArg_ParseTuple(args, "iOsszi:host_layer", &host, &inputs, &types, &attributes, &origin,
                          &n_out))
        return NULL;
    sol_tensor *in = get_tensors(inputs, &n_in);
    sol_tensor *out = in && n_out > 0 ? calloc((size_t)n_out, sizeof *out) : NULL;
    PyObject *list = out ? PyList_New(0) : PyErr_Occurred() ? NULL : PyErr_NoMemory();
    if (list)
        sol_model_host_layer(((struct model_object *)self)->model, host, (int)n_in, in, types,
                             attributes, origin, n_out, out);
    for (int i = 0; list && i < n_out; i++)
        if (append(list, PyLong_FromLong(out[i]))) Py_CLEAR(list);
    free(in);
    free(out);
    return list;
}

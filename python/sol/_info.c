/*
 * sol._core.read_info: what an ONNX file declares (struct sol_onnx_info), as a dict with the names of the struct's members.
 *
 * A port is a tuple (name, type, dims, is_initialized). A dim is a number; for an open size its name, or None. The dims are None
 * if the rank is unknown.
 */
#include "_core.h"

static PyObject *new_dims(const struct sol_onnx_port *port) {
    if (port->rank < 0) Py_RETURN_NONE;
    PyObject *dims = PyList_New(0);
    for (int d = 0; dims && d < port->rank; d++) {
        const struct sol_onnx_dim *dim = &port->dim[d];
        PyObject *item = dim->size >= 0 ? PyLong_FromLongLong(dim->size)
                         : *dim->name   ? new_name(dim->name)
                                        : Py_NewRef(Py_None);
        if (append(dims, item)) Py_CLEAR(dims);
    }
    return dims;
}

static PyObject *new_ports(const struct sol_onnx_port *ports, int n) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < n; i++) {
        PyObject *port =
            Py_BuildValue("(NsNN)", new_name(ports[i].name), ports[i].type, new_dims(&ports[i]),
                          PyBool_FromLong(ports[i].is_initialized));
        if (append(list, port)) Py_CLEAR(list);
    }
    return list;
}

/* If a key occurs twice, the last one counts. */
static PyObject *new_properties(const struct sol_onnx_info *info) {
    PyObject *dict = PyDict_New();
    for (int i = 0; dict && i < info->n_properties; i++) {
        PyObject *key = new_name(info->keys[i]), *value = new_name(info->values[i]);
        if (!key || !value || PyDict_SetItem(dict, key, value)) Py_CLEAR(dict);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return dict;
}

static PyObject *new_info(const struct sol_onnx_info *info) {
    return Py_BuildValue(
        "{sLsLsNsNsNsNsNsNsNsN}", "ir_version", (long long)info->ir_version, "version",
        (long long)info->version, "producer", new_name(info->producer), "domain",
        new_name(info->domain), "description", new_name(info->description), "graph_name",
        new_name(info->graph_name), "graph_description", new_name(info->graph_description),
        "inputs", new_ports(info->inputs, info->n_inputs), "outputs",
        new_ports(info->outputs, info->n_outputs), "properties", new_properties(info));
}

PyObject *core_read_info(PyObject *module, PyObject *source) {
    struct sol_onnx_info *info = NULL;
    enum sol_status status;
    char *data;
    Py_ssize_t size;
    (void)module;
    if (PyBytes_Check(source)) {
        if (PyBytes_AsStringAndSize(source, &data, &size)) return NULL;
        status = sol_onnx_info_parse(data, (size_t)size, &info);
    } else {
        const char *path = PyUnicode_AsUTF8AndSize(source, NULL);
        if (!path) return NULL;
        status = sol_onnx_info_read(path, &info);
    }
    if (status) return raise_status(status);
    PyObject *dict = new_info(info);
    sol_onnx_info_free(info);
    return dict;
}

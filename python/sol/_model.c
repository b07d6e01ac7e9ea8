/* sol._core.Model: the builder of a model (sol.h), for Python. It also wraps models that libsol has read from ONNX files. */
#include "_core.h"

static struct sol_model *model_of(PyObject *self) { return ((struct model_object *)self)->model; }

PyObject *wrap_model(PyTypeObject *type, struct sol_model *model) {
    PyObject *self = new_object(type);
    if (self) ((struct model_object *)self)->model = model;
    else sol_model_free(model);
    return self;
}

PyObject *wrap_onnx(struct sol_onnx *onnx) {
    PyObject *self = new_object(model_type);
    if (!self) {
        sol_onnx_free(onnx);
        return NULL;
    }
    ((struct model_object *)self)->model = sol_onnx_model(onnx);
    ((struct model_object *)self)->onnx = onnx;
    return self;
}

static PyObject *model_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    const char *name;
    static char *keywords[] = {"name", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s:Model", keywords, &name)) return NULL;
    struct sol_model *model = sol_model_new(name);
    return model ? wrap_model(type, model) : PyErr_NoMemory();
}

static void model_dealloc(PyObject *self) {
    struct sol_onnx *onnx = ((struct model_object *)self)->onnx;
    if (onnx) sol_onnx_free(onnx);
    else sol_model_free(model_of(self));
    free_object(self);
}

static PyObject *model_symbol(PyObject *self, PyObject *args) {
    const char *name;
    long long multiple = 1, least = 0;
    if (!PyArg_ParseTuple(args, "s|LL:symbol", &name, &multiple, &least)) return NULL;
    return PyLong_FromLongLong(sol_model_symbol_limited(model_of(self), name, least, multiple));
}

typedef sol_tensor add_port(struct sol_model *, const char *, enum sol_dtype, int, const int64_t *);

static PyObject *model_port(PyObject *self, PyObject *args, add_port *add) {
    const char *name, *dtype_name;
    PyObject *shape;
    Py_ssize_t rank;
    if (!PyArg_ParseTuple(args, "ssO", &name, &dtype_name, &shape)) return NULL;
    int dtype = find_dtype(dtype_name);
    if (dtype < 0) return NULL;
    int64_t *dim = get_ints(shape, &rank);
    if (!dim) return NULL;
    if (rank > SOL_MAX_RANK) {
        free(dim);
        PyErr_Format(PyExc_NotImplementedError, "'%s' has %zd dimensions; the most is %d", name,
                     rank, SOL_MAX_RANK);
        return NULL;
    }
    sol_tensor tensor = add(model_of(self), name, (enum sol_dtype)dtype, (int)rank, dim);
    free(dim);
    return PyLong_FromLong(tensor);
}

static PyObject *model_input(PyObject *self, PyObject *args) {
    return model_port(self, args, sol_model_input);
}
static PyObject *model_param(PyObject *self, PyObject *args) {
    return model_port(self, args, sol_model_param);
}

static PyObject *model_scalar(PyObject *self, PyObject *args) {
    double value;
    if (!PyArg_ParseTuple(args, "d:scalar", &value)) return NULL;
    return PyLong_FromLong(sol_model_scalar(model_of(self), value));
}

static PyObject *model_layer(PyObject *self, PyObject *args, PyObject *kwargs) {
    const char *kind, *attributes = "", *origin = NULL;
    PyObject *inputs;
    Py_ssize_t n;
    static char *keywords[] = {"kind", "inputs", "attributes", "origin", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO|sz:layer", keywords, &kind, &inputs,
                                     &attributes, &origin))
        return NULL;
    sol_tensor *in = get_tensors(inputs, &n);
    if (!in) return NULL;
    sol_tensor out = sol_model_layer(model_of(self), kind, (int)n, in, attributes, origin);
    free(in);
    return PyLong_FromLong(out);
}

static PyObject *model_output(PyObject *self, PyObject *args) {
    const char *name;
    int tensor;
    if (!PyArg_ParseTuple(args, "si:output", &name, &tensor)) return NULL;
    sol_model_output(model_of(self), name, tensor);
    Py_RETURN_NONE;
}

static PyObject *model_backward_input(PyObject *self, PyObject *args) {
    const char *name;
    int like;
    if (!PyArg_ParseTuple(args, "si:backward_input", &name, &like)) return NULL;
    return PyLong_FromLong(sol_model_backward_input(model_of(self), name, like));
}

static PyObject *model_backward_output(PyObject *self, PyObject *args) {
    const char *name;
    int tensor;
    if (!PyArg_ParseTuple(args, "si:backward_output", &name, &tensor)) return NULL;
    sol_model_backward_output(model_of(self), name, tensor);
    Py_RETURN_NONE;
}

/* Returns tensors as a list; None for SOL_NO_TENSOR. */
static PyObject *list_tensors(const sol_tensor *tensors, Py_ssize_t n) {
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list && i < n; i++) {
        PyObject *item =
            tensors[i] == SOL_NO_TENSOR ? Py_NewRef(Py_None) : PyLong_FromLong(tensors[i]);
        if (append(list, item)) Py_CLEAR(list);
    }
    return list;
}

static PyObject *model_gradients(PyObject *self, PyObject *args) {
    PyObject *given[3], *result = NULL;
    Py_ssize_t n[3] = {0};
    if (!PyArg_ParseTuple(args, "OOO:gradients", &given[0], &given[1], &given[2])) return NULL;
    sol_tensor *tensors[3] = {NULL}, *dx = NULL;
    for (int i = 0; i < 3; i++)
        if (!(tensors[i] = get_tensors(given[i], &n[i]))) goto done;
    if (n[0] != n[1]) {
        PyErr_Format(PyExc_ValueError, "%zd gradients for %zd tensors", n[1], n[0]);
        goto done;
    }
    if (!(dx = malloc(sizeof *dx * (size_t)(n[2] + 1)))) {
        PyErr_NoMemory();
        goto done;
    }
    sol_model_gradients(model_of(self), (int)n[0], tensors[0], tensors[1], (int)n[2], tensors[2],
                        dx);
    result = list_tensors(dx, n[2]);
done:
    for (int i = 0; i < 3; i++) free(tensors[i]);
    free(dx);
    return result;
}

static PyObject *model_update(PyObject *self, PyObject *args) {
    int param, tensor;
    if (!PyArg_ParseTuple(args, "ii:update", &param, &tensor)) return NULL;
    sol_model_update(model_of(self), param, tensor);
    Py_RETURN_NONE;
}

static PyObject *model_shape(PyObject *self, PyObject *args) {
    int tensor;
    int64_t dim[SOL_MAX_RANK];
    if (!PyArg_ParseTuple(args, "i:shape", &tensor)) return NULL;
    int rank = sol_model_shape(model_of(self), tensor, dim);
    if (rank < 0) Py_RETURN_NONE;
    return new_shape(rank, dim);
}

/* The texts of a tensor's dims. */
static PyObject *model_dims(PyObject *self, PyObject *args) {
    int tensor;
    int64_t dim[SOL_MAX_RANK];
    char text[SOL_SIZE_TEXT];
    if (!PyArg_ParseTuple(args, "i:dims", &tensor)) return NULL;
    int rank = sol_model_shape(model_of(self), tensor, dim);
    if (rank < 0) Py_RETURN_NONE;
    PyObject *dims = PyList_New(0);
    for (int d = 0; dims && d < rank; d++) {
        sol_model_dim(model_of(self), tensor, d, text, sizeof text);
        if (append(dims, PyUnicode_FromString(text))) Py_CLEAR(dims);
    }
    return dims;
}

static PyObject *model_size(PyObject *self, PyObject *args) {
    const char *text;
    char out[SOL_SIZE_TEXT];
    if (!PyArg_ParseTuple(args, "s:size", &text)) return NULL;
    if (!sol_model_size(model_of(self), text, out, sizeof out)) Py_RETURN_NONE;
    return PyUnicode_FromString(out);
}

static PyObject *model_dtype(PyObject *self, PyObject *args) {
    int tensor;
    if (!PyArg_ParseTuple(args, "i:dtype", &tensor)) return NULL;
    enum sol_dtype dtype = sol_model_dtype(model_of(self), tensor);
    if (dtype == SOL_N_DTYPES) Py_RETURN_NONE;
    return PyUnicode_FromString(dtype_names[dtype]);
}

static PyObject *model_values(PyObject *self, PyObject *none) {
    const struct sol_onnx *onnx = ((struct model_object *)self)->onnx;
    PyObject *addresses = PyList_New(0);
    (void)none;
    for (int i = 0; onnx && addresses && i < sol_onnx_n_params(onnx); i++)
        if (append(addresses, PyLong_FromVoidPtr((void *)(uintptr_t)sol_onnx_params(onnx)[i])))
            Py_CLEAR(addresses);
    return addresses;
}

static PyObject *model_symbols(PyObject *self, PyObject *none) {
    PyObject *names = PyList_New(0);
    const char *name;
    (void)none;
    for (int i = 0; names && (name = sol_model_symbol_name(model_of(self), i)); i++)
        if (append(names, new_name(name))) Py_CLEAR(names);
    return names;
}

static PyObject *model_n_nodes(PyObject *self, PyObject *none) {
    const struct sol_onnx *onnx = ((struct model_object *)self)->onnx;
    (void)none;
    return PyLong_FromLong(onnx ? sol_onnx_n_nodes(onnx) : 0);
}

static PyObject *model_check(PyObject *self, PyObject *none) {
    (void)none;
    enum sol_status status = sol_model_check(model_of(self));
    if (status) return raise_status(status);
    Py_RETURN_NONE;
}

static PyObject *model_recover(PyObject *self, PyObject *none) {
    (void)none;
    enum sol_status status = sol_model_recover(model_of(self));
    if (status) return raise_status(status);
    Py_RETURN_NONE;
}

static PyObject *model_print(PyObject *self, PyObject *none) {
    (void)none;
    return take_text(sol_model_print(model_of(self)));
}

static PyObject *model_dump(PyObject *self, PyObject *args) {
    int pass;
    const char *name = NULL;
    if (!PyArg_ParseTuple(args, "i:dump", &pass)) return NULL;
    char *text = sol_dump(model_of(self), pass, &name);
    if (!text) Py_RETURN_NONE;
    PyObject *result = Py_BuildValue("(ss)", name ? name : "", text);
    free(text);
    return result;
}

/* libsol calls this during compiles and deployments, perhaps on a thread that Python has not created. An exception in the
 * callback must not stop the compile, so it is only printed. */
void report_progress(void *user, int done, int total, const char *what) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result = PyObject_CallFunction(user, "iis", done, total, what ? what : "");
    if (!result) PyErr_WriteUnraisable(user);
    Py_XDECREF(result);
    PyGILState_Release(state);
}

static PyObject *model_compile(PyObject *self, PyObject *args, PyObject *kwargs) {
    struct sol_options options = {0};
    long long batch = 0;
    int winograd = 1, autotune = 1, debug = 0;
    PyObject *progress = Py_None, *given = NULL;
    static char *keywords[] = {"device",    "batch_hint",    "winograd", "autotune",
                               "debug",     "name",          "progress", "hints",
                               "recompute", "device_number", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|zLpppzOOdi:compile", keywords, &options.device,
                                     &batch, &winograd, &autotune, &debug, &options.name, &progress,
                                     &given, &options.recompute, &options.device_number))
        return NULL;
    Py_ssize_t n_hints = 0;
    int64_t *hints = given ? get_ints(given, &n_hints) : NULL;
    if (given && !hints) return NULL;
    options.hints = hints;
    options.n_hints = (int)n_hints;
    options.batch_hint = batch;
    options.deterministic = !winograd;
    options.no_autotune = !autotune;
    options.debug = debug;
    if (progress != Py_None) {
        options.progress = report_progress;
        options.user = progress;
    }
    struct sol_program *program = NULL;
    enum sol_status status;
    Py_BEGIN_ALLOW_THREADS status = sol_compile(model_of(self), &options, &program);
    Py_END_ALLOW_THREADS free(hints);
    return status ? raise_status(status) : wrap_program(program);
}

static PyMethodDef model_methods[] = {
    {"symbol", model_symbol, METH_VARARGS,
     "symbol(name, multiple=1, least=0) -> a negative number to use as a dim."},
    {"input", model_input, METH_VARARGS, "input(name, dtype, shape) -> tensor."},
    {"param", model_param, METH_VARARGS, "param(name, dtype, shape) -> tensor."},
    {"dims", model_dims, METH_VARARGS,
     "dims(tensor) -> a text per dim, such as '3' or '2*$8+1'; None if the tensor is poisoned."},
    {"size", model_size, METH_VARARGS,
     "size(text) -> the normal form of a size, or None: check() raises the reason."},
    {"scalar", model_scalar, METH_VARARGS, "scalar(value) -> tensor of rank 0."},
    {"layer", (PyCFunction)(void (*)(void))model_layer, METH_VARARGS | METH_KEYWORDS,
     "layer(kind, inputs, attributes='', origin=None) -> tensor; < 0 after the first mistake."},
    {"host", model_host, METH_VARARGS,
     "host(name, function) -> its number. function(inputs, outputs, symbols) gets DLPack capsules."},
    {"host_layer", model_host_layer, METH_VARARGS,
     "host_layer(host, inputs, types, attributes, origin, n_out) -> tensors; see sol_model_host_layer."},
    {"custom", model_custom, METH_VARARGS,
     "custom(Custom, attributes) -> the number of a host; see sol_model_custom."},
    {"output", model_output, METH_VARARGS, "output(name, tensor)."},
    {"backward_input", model_backward_input, METH_VARARGS,
     "backward_input(name, like) -> tensor: an input of the backward call, with the type of the tensor `like`."},
    {"gradients", model_gradients, METH_VARARGS,
     "gradients(ys, dys, xs) -> [the gradient of sum(y * dy) by x, or None if no y depends on it], one per x."},
    {"backward_output", model_backward_output, METH_VARARGS,
     "backward_output(name, tensor): a result of the backward call."},
    {"update", model_update, METH_VARARGS,
     "update(param, tensor): each call writes the tensor's values into the parameter."},
    {"shape", model_shape, METH_VARARGS,
     "shape(tensor) -> dims: < 0 symbols, None formulas; None when poisoned."},
    {"dtype", model_dtype, METH_VARARGS, "dtype(tensor) -> its name; None when poisoned."},
    {"values", model_values, METH_NOARGS,
     "Addresses of the parameters' values, of a model from a file; they live as long as it."},
    {"symbols", model_symbols, METH_NOARGS, "Names of the symbols: the first is that of dim -1."},
    {"n_nodes", model_n_nodes, METH_NOARGS, "Nodes of the file; 0 of other models."},
    {"check", model_check, METH_NOARGS, "Raises the builder's first error."},
    {"recover", model_recover, METH_NOARGS, "Raises the builder's first error, and forgets it."},
    {"print", model_print, METH_NOARGS, "The text form."},
    {"dump", model_dump, METH_VARARGS,
     "dump(pass) -> (name of the pass, text), or None past the last."},
    {"compile", (PyCFunction)(void (*)(void))model_compile, METH_VARARGS | METH_KEYWORDS,
     "compile(device=None, batch_hint=0, winograd=True, autotune=True, debug=False, name=None, progress=None,"
     " hints=(), recompute=0.0, device_number=0) -> Program. hints: typical values of the symbols. recompute: 0 to 1, how much of what the"
     " forward call could save the backward call computes again; -1: all cheap layers. progress(done, total, what) is called now and then."},
    {"deploy", (PyCFunction)(void (*)(void))model_deploy, METH_VARARGS | METH_KEYWORDS,
     "deploy(params, symbols, lib_name, func_name, path, target, weights, device=None, cpu=None, compiler=None,"
     " static_memory=False, winograd=True, autotune=True, progress=None). `params`: addresses."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot model_slots[] = {
    {Py_tp_doc, "Model(name): a model under construction; see include/sol/sol.h."},
    {Py_tp_new, model_new},
    {Py_tp_dealloc, model_dealloc},
    {Py_tp_methods, model_methods},
    {0, NULL},
};
PyType_Spec model_spec = {"sol._core.Model", sizeof(struct model_object), 0, Py_TPFLAGS_DEFAULT,
                          model_slots};

/*
 * sol._core: libsol for Python. One abi3 extension over include/sol; it knows neither torch nor NumPy.
 *
 *   Model, Program, Weights   the objects of sol.h and run.h, memory as plain addresses (int)
 *   Guard                     tells in microseconds whether a framework's module changed since the last call
 *
 * Statuses become the exceptions of SOL_STATUS_LIST with SOL's own message. Everything that can take long
 * releases the GIL. The types live in static variables: one interpreter per process.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sol/sol.h>
#include <stdlib.h>
#include <string.h>

static PyTypeObject *model_type, *program_type, *weights_type, *guard_type;

/* ---- Errors and conversions ---- */

static PyObject *const *const exceptions[] = {
#define EXCEPTION(code, type, text) [SOL_##code] = &PyExc_##type,
    SOL_STATUS_LIST(EXCEPTION)
#undef EXCEPTION
};

static PyObject *raise_status(enum sol_status status) {
    PyErr_SetString(*exceptions[status], sol_error());
    return NULL;
}

/* A malloc'ed text as str; NULL is out of memory. */
static PyObject *take_text(char *text) {
    if (!text) return PyErr_NoMemory();
    PyObject *result = PyUnicode_FromString(text);
    free(text);
    return result;
}

static const char *const dtype_names[] = {
#define NAME(code, name, size) name,
    SOL_DTYPE_LIST(NAME)
#undef NAME
};

/* -1 with ValueError when there is no such dtype. */
static int find_dtype(const char *name) {
    for (int i = 0; i < SOL_N_DTYPES; i++) {
        if (!strcmp(name, dtype_names[i])) return i;
    }
    PyErr_Format(PyExc_ValueError, "unknown dtype '%s'", name);
    return -1;
}

/* A malloc'ed array of the integers in `object`, a tuple or list; NULL with an exception set. */
static int64_t *get_ints(PyObject *object, Py_ssize_t *n) {
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

/* As get_ints, for addresses, of which there must be `n`. `what` stands in the message. */
static void **get_addresses(PyObject *object, int n, const char *what) {
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

/* Dims as a tuple; INT64_MIN (a formula of symbols) becomes None. */
static PyObject *new_shape(int rank, const int64_t *dim) {
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

/* Appends to a list, taking over `item`; -1 with an exception set. */
static int append(PyObject *list, PyObject *item) {
    int result = item ? PyList_Append(list, item) : -1;
    Py_XDECREF(item);
    return result;
}

/* Frees an object of a heap type, which holds a reference to its type. */
static void free_object(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc free_self = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_self(self);
    Py_DECREF(type);
}

static PyObject *new_object(PyTypeObject *type) {
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return alloc(type, 0);
}

/* ---- Model ---- */

struct model_object {
    PyObject_HEAD struct sol_model *model;
};

static struct sol_model *model_of(PyObject *self) { return ((struct model_object *)self)->model; }

static PyObject *wrap_model(PyTypeObject *type, struct sol_model *model) {
    PyObject *self = new_object(type);
    if (self) ((struct model_object *)self)->model = model;
    else sol_model_free(model);
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
    sol_model_free(model_of(self));
    free_object(self);
}

static PyObject *model_symbol(PyObject *self, PyObject *args) {
    const char *name;
    if (!PyArg_ParseTuple(args, "s:symbol", &name)) return NULL;
    return PyLong_FromLongLong(sol_model_symbol(model_of(self), name));
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
    int64_t *ints = get_ints(inputs, &n);
    if (!ints) return NULL;
    sol_tensor *in = malloc(sizeof *in * (size_t)(n + 1));
    if (!in) {
        free(ints);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < n; i++) in[i] = (sol_tensor)ints[i];
    sol_tensor out = sol_model_layer(model_of(self), kind, (int)n, in, attributes, origin);
    free(in);
    free(ints);
    return PyLong_FromLong(out);
}

static PyObject *model_output(PyObject *self, PyObject *args) {
    const char *name;
    int tensor;
    if (!PyArg_ParseTuple(args, "si:output", &name, &tensor)) return NULL;
    sol_model_output(model_of(self), name, tensor);
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

static PyObject *model_check(PyObject *self, PyObject *none) {
    (void)none;
    enum sol_status status = sol_model_check(model_of(self));
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

/* Called during sol_compile, perhaps from a thread that Python does not know. An exception in the callback
 * must not stop the compile: it is reported and forgotten. */
static void report_progress(void *user, int done, int total, const char *what) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result = PyObject_CallFunction(user, "iis", done, total, what ? what : "");
    if (!result) PyErr_WriteUnraisable(user);
    Py_XDECREF(result);
    PyGILState_Release(state);
}

static PyObject *wrap_program(struct sol_program *program);

static PyObject *model_compile(PyObject *self, PyObject *args, PyObject *kwargs) {
    struct sol_options options = {0};
    long long batch = 0;
    int winograd = 1, autotune = 1, debug = 0;
    PyObject *progress = Py_None;
    static char *keywords[] = {"device", "batch_hint", "winograd", "autotune",
                               "debug",  "name",       "progress", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|zLpppzO:compile", keywords, &options.device,
                                     &batch, &winograd, &autotune, &debug, &options.name,
                                     &progress))
        return NULL;
    options.batch_hint = batch;
    options.no_winograd = !winograd;
    options.no_autotune = !autotune;
    options.debug = debug;
    if (progress != Py_None) {
        options.progress = report_progress;
        options.user = progress;
    }
    struct sol_program *program = NULL;
    enum sol_status status;
    Py_BEGIN_ALLOW_THREADS status = sol_compile(model_of(self), &options, &program);
    Py_END_ALLOW_THREADS return status ? raise_status(status) : wrap_program(program);
}

static PyMethodDef model_methods[] = {
    {"symbol", model_symbol, METH_VARARGS,
     "symbol(name) -> a negative number that stands as a dim."},
    {"input", model_input, METH_VARARGS, "input(name, dtype, shape) -> tensor."},
    {"param", model_param, METH_VARARGS, "param(name, dtype, shape) -> tensor."},
    {"scalar", model_scalar, METH_VARARGS, "scalar(value) -> tensor of rank 0."},
    {"layer", (PyCFunction)(void (*)(void))model_layer, METH_VARARGS | METH_KEYWORDS,
     "layer(kind, inputs, attributes='', origin=None) -> tensor; < 0 after the first mistake."},
    {"output", model_output, METH_VARARGS, "output(name, tensor)."},
    {"shape", model_shape, METH_VARARGS,
     "shape(tensor) -> dims: < 0 symbols, None formulas; None when poisoned."},
    {"check", model_check, METH_NOARGS, "Raises the builder's first error."},
    {"print", model_print, METH_NOARGS, "The text form."},
    {"dump", model_dump, METH_VARARGS,
     "dump(pass) -> (name of the pass, text), or None past the last."},
    {"compile", (PyCFunction)(void (*)(void))model_compile, METH_VARARGS | METH_KEYWORDS,
     "compile(device=None, batch_hint=0, winograd=True, autotune=True, debug=False, name=None, progress=None)"
     " -> Program. progress(done, total, what) is called now and then."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot model_slots[] = {
    {Py_tp_doc, "Model(name): a model under construction; see include/sol/sol.h."},
    {Py_tp_new, model_new},
    {Py_tp_dealloc, model_dealloc},
    {Py_tp_methods, model_methods},
    {0, NULL},
};
static PyType_Spec model_spec = {"sol._core.Model", sizeof(struct model_object), 0,
                                 Py_TPFLAGS_DEFAULT, model_slots};

/* ---- Weights ---- */

/* `keep` holds the tensors whose memory the weights may use in place. */
struct weights_object {
    PyObject_HEAD struct sol_weights *weights;
    PyObject *program, *keep;
};

static void weights_dealloc(PyObject *self) {
    struct weights_object *w = (struct weights_object *)self;
    sol_weights_release(w->weights);
    Py_XDECREF(w->keep);
    Py_XDECREF(w->program);
    free_object(self);
}

static PyType_Slot weights_slots[] = {
    {Py_tp_doc, "Derived forms of one version of the parameters; made by Program.weights."},
    {Py_tp_dealloc, weights_dealloc},
    {0, NULL},
};
static PyType_Spec weights_spec = {"sol._core.Weights", sizeof(struct weights_object), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                   weights_slots};

/* ---- Program ---- */

struct program_object {
    PyObject_HEAD struct sol_program *program;
};

static struct sol_program *program_of(PyObject *self) {
    return ((struct program_object *)self)->program;
}

static PyObject *wrap_program(struct sol_program *program) {
    PyObject *self = new_object(program_type);
    if (self) ((struct program_object *)self)->program = program;
    else sol_program_release(program);
    return self;
}

static void program_dealloc(PyObject *self) {
    sol_program_release(program_of(self));
    free_object(self);
}

/* The symbols' values, checked; NULL with an exception set. */
static int64_t *get_symbols(PyObject *self, PyObject *object) {
    Py_ssize_t n;
    int64_t *symbols = get_ints(object, &n);
    if (!symbols) return NULL;
    int expected = sol_program_n_symbols(program_of(self));
    if (n != expected) {
        PyErr_Format(PyExc_ValueError, "expected %d symbol values, got %zd", expected, n);
        free(symbols);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        if (symbols[i] < 0) {
            PyErr_Format(PyExc_ValueError, "symbol %zd has the negative value %lld", i,
                         (long long)symbols[i]);
            free(symbols);
            return NULL;
        }
    }
    return symbols;
}

static PyObject *program_weights(PyObject *self, PyObject *args) {
    PyObject *addresses, *keep = Py_None;
    if (!PyArg_ParseTuple(args, "O|O:weights", &addresses, &keep)) return NULL;
    void **params = get_addresses(addresses, sol_program_n_params(program_of(self)), "parameters");
    if (!params) return NULL;
    struct sol_weights *weights = NULL;
    enum sol_status status;
    Py_BEGIN_ALLOW_THREADS status =
        sol_weights_new(program_of(self), (const void *const *)params, &weights);
    Py_END_ALLOW_THREADS free(params);
    if (status) return raise_status(status);
    PyObject *result = new_object(weights_type);
    if (!result) {
        sol_weights_release(weights);
        return NULL;
    }
    struct weights_object *object = (struct weights_object *)result;
    object->weights = weights;
    object->program = Py_NewRef(self);
    object->keep = Py_NewRef(keep);
    return result;
}

/* What run and profile have in common. All arrays are malloc'ed. */
struct call {
    const struct sol_weights *weights;
    int64_t *symbols;
    void **inputs, **outputs;
};

static void call_fini(struct call *call) {
    free(call->symbols);
    free(call->inputs);
    free(call->outputs);
}

/* Checks and converts (weights, symbols, inputs, outputs); false with an exception set. */
static bool call_init(struct call *call, PyObject *self, PyObject *const *args, Py_ssize_t n) {
    struct sol_program *program = program_of(self);
    *call = (struct call){0};
    if (n != 4 || !PyObject_TypeCheck(args[0], weights_type)) {
        PyErr_SetString(PyExc_TypeError, "expected (weights, symbols, inputs, outputs)");
        return false;
    }
    struct weights_object *weights = (struct weights_object *)args[0];
    if (weights->program != self) {
        PyErr_SetString(PyExc_ValueError, "these weights were made for another program");
        return false;
    }
    call->weights = weights->weights;
    call->symbols = get_symbols(self, args[1]);
    if (call->symbols)
        call->inputs = get_addresses(args[2], sol_program_n_inputs(program), "inputs");
    if (call->inputs)
        call->outputs = get_addresses(args[3], sol_program_n_outputs(program), "outputs");
    if (call->outputs) return true;
    call_fini(call);
    return false;
}

static PyObject *program_run(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    struct call call;
    enum sol_status status;
    if (!call_init(&call, self, args, n)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = sol_program_run(program_of(self), call.weights, call.symbols,
                                                    (const void *const *)call.inputs, call.outputs);
    Py_END_ALLOW_THREADS call_fini(&call);
    if (status) return raise_status(status);
    Py_RETURN_NONE;
}

/* Runs with the GIL held: profiling is for people, one step at a time. */
static void visit_step(void *user, const struct sol_step_time *step) {
    PyObject *item =
        Py_BuildValue("(sssdddis)", step->name, step->module, step->layers, step->seconds,
                      step->flops, step->bytes, step->cluster, step->choice);
    if (append(user, item)) PyErr_Clear();
}

static PyObject *program_profile(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    struct call call;
    PyObject *steps = PyList_New(0);
    if (!steps || !call_init(&call, self, args, n)) {
        Py_XDECREF(steps);
        return NULL;
    }
    enum sol_status status =
        sol_program_profile(program_of(self), call.weights, call.symbols,
                            (const void *const *)call.inputs, call.outputs, visit_step, steps);
    call_fini(&call);
    if (!status) return steps;
    Py_DECREF(steps);
    return raise_status(status);
}

static PyObject *program_output_shape(PyObject *self, PyObject *args) {
    int i;
    PyObject *values;
    if (!PyArg_ParseTuple(args, "iO:output_shape", &i, &values)) return NULL;
    if (i < 0 || i >= sol_program_n_outputs(program_of(self))) {
        PyErr_Format(PyExc_ValueError, "there is no output %d", i);
        return NULL;
    }
    int64_t *symbols = get_symbols(self, values);
    if (!symbols) return NULL;
    int64_t dim[SOL_MAX_RANK];
    enum sol_status status = sol_program_output_shape(program_of(self), i, symbols, dim);
    free(symbols);
    if (status) return raise_status(status);
    return new_shape(sol_program_output(program_of(self), i)->rank, dim);
}

typedef const struct sol_port *get_port(const struct sol_program *, int);

static PyObject *program_ports(PyObject *self, int n, get_port *get) {
    PyObject *ports = PyList_New(0);
    for (int i = 0; ports && i < n; i++) {
        const struct sol_port *port = get(program_of(self), i);
        PyObject *shape = new_shape(port->rank, port->dim);
        if (!shape ||
            append(ports, Py_BuildValue("(ssN)", port->name, dtype_names[port->dtype], shape)))
            Py_CLEAR(ports);
    }
    return ports;
}

static PyObject *program_inputs(PyObject *self, void *closure) {
    (void)closure;
    return program_ports(self, sol_program_n_inputs(program_of(self)), sol_program_input);
}

static PyObject *program_params(PyObject *self, void *closure) {
    (void)closure;
    return program_ports(self, sol_program_n_params(program_of(self)), sol_program_param);
}

static PyObject *program_outputs(PyObject *self, void *closure) {
    (void)closure;
    return program_ports(self, sol_program_n_outputs(program_of(self)), sol_program_output);
}

static PyObject *program_n_compiled(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromLong(sol_program_n_compiled(program_of(self)));
}

static PyObject *program_weights_size(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromSize_t(sol_program_weights_size(program_of(self)));
}

static PyObject *program_arena_size(PyObject *self, PyObject *values) {
    int64_t *symbols = get_symbols(self, values);
    if (!symbols) return NULL;
    size_t size = sol_program_arena_size(program_of(self), symbols);
    free(symbols);
    return PyLong_FromSize_t(size);
}

static PyObject *program_memory(PyObject *self, PyObject *values) {
    int64_t *symbols = get_symbols(self, values);
    if (!symbols) return NULL;
    struct sol_memory m;
    enum sol_status status = sol_program_memory(program_of(self), symbols, &m);
    free(symbols);
    if (status) return raise_status(status);
    return Py_BuildValue("{snsnsnsnsn}", "weights", (Py_ssize_t)m.weights, "constants",
                         (Py_ssize_t)m.constants, "arena", (Py_ssize_t)m.arena, "live",
                         (Py_ssize_t)m.live, "scratch", (Py_ssize_t)m.scratch);
}

static PyObject *program_picture(PyObject *self, PyObject *none) {
    (void)none;
    return take_text(sol_program_picture(program_of(self)));
}

static PyObject *program_report(PyObject *self, PyObject *none) {
    (void)none;
    const char *text = sol_program_report(program_of(self));
    return PyUnicode_FromString(text ? text : "");
}

static PyMethodDef program_methods[] = {
    {"weights", program_weights, METH_VARARGS,
     "weights(addresses, keep=None) -> Weights. `keep` lives as long: the owner of memory used in place."},
    {"run", (PyCFunction)(void (*)(void))program_run, METH_FASTCALL,
     "run(weights, symbols, inputs, outputs): one run, the GIL released; memory as addresses."},
    {"profile", (PyCFunction)(void (*)(void))program_profile, METH_FASTCALL,
     "As run -> [(name, module, layers, seconds, flops, bytes, cluster, choice)], one per step."},
    {"output_shape", program_output_shape, METH_VARARGS, "output_shape(i, symbols) -> dims."},
    {"arena_size", program_arena_size, METH_O,
     "arena_size(symbols) -> bytes of one call's intermediates."},
    {"memory", program_memory, METH_O,
     "memory(symbols) -> {weights, constants, arena, live, scratch} in bytes; see sol_memory."},
    {"picture", program_picture, METH_NOARGS,
     "Graphviz text: clusters as boxes, modules as colours."},
    {"report", program_report, METH_NOARGS,
     "What was chosen and refused for each cluster, and why."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef program_getset[] = {
    {"inputs", program_inputs, NULL, "[(name, dtype, dims)]; a dim < 0 is symbol number -dim-1",
     NULL},
    {"params", program_params, NULL, "as inputs", NULL},
    {"outputs", program_outputs, NULL, "as inputs; a formula of symbols is None", NULL},
    {"n_compiled", program_n_compiled, NULL, "kernels handed to the C compiler by this compile",
     NULL},
    {"weights_size", program_weights_size, NULL, "bytes of packed weights", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot program_slots[] = {
    {Py_tp_doc, "A compiled program; made by Model.compile."},
    {Py_tp_dealloc, program_dealloc},
    {Py_tp_methods, program_methods},
    {Py_tp_getset, program_getset},
    {0, NULL},
};
static PyType_Spec program_spec = {"sol._core.Program", sizeof(struct program_object), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                   program_slots};

/* ---- Guard ---- */

/*
 * Have a module's dicts or tensors changed since the guard was made? Neither an address nor a version is enough:
 * a freed tensor's successor may have both, and writes through `.data` or NumPy leave the version as it is. So
 *
 *   dicts    every value is the same object as before, in the same order (the guard holds references, so no
 *            new object can have an old one's identity). They are __dict__, _parameters, hooks, ... of modules.
 *   tensors  address and version are the same, and so is one element, at a place that changes with every call.
 *
 * A guard never changes: after a change its owner makes a new one.
 */
/* Inlined before the compiler can take a function that only prefetches for one without effect, and drop it. */
#define ALWAYS_INLINE inline __attribute__((always_inline))
enum { N_SAMPLES = 8, MAX_ITEM = 16, MAX_HINTS = 4, HINT_LINES = 4, AHEAD = 8 };

struct watched_tensor {
    PyObject *tensor;   /* borrowed from guard->tensors */
    PyObject *data_ptr; /* the bound method; owned */
    char *address;
    int64_t version; /* -1: this tensor counts none */
    int64_t item_size;
    int64_t offset[N_SAMPLES]; /* bytes; -1: nothing to sample */
    char sample[N_SAMPLES][MAX_ITEM];
    const char
        *hint[MAX_HINTS]; /* where the framework keeps it: fetched early, never read; or NULL */
};

struct guard_object {
    PyObject_HEAD PyObject *dicts; /* tuple of dicts */
    PyObject *items;               /* list: key, value, key, value, ... of all dicts */
    PyObject *tensors;             /* tuple */
    Py_ssize_t n_dicts;
    Py_ssize_t *size; /* of each dict */
    PyObject **
        dict; /* the objects of `dicts` and `items`, borrowed: the lists' accessors would take longer */
    PyObject **item;
    struct watched_tensor *watched;
    unsigned turn;
};

static PyObject *version_name; /* the interned text "_version" */

static int guard_traverse(PyObject *self, visitproc visit, void *arg) {
    struct guard_object *guard = (struct guard_object *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(guard->dicts);
    Py_VISIT(guard->items);
    Py_VISIT(guard->tensors);
    Py_ssize_t n = guard->watched ? PyTuple_Size(guard->tensors) : 0;
    for (Py_ssize_t i = 0; i < n; i++) Py_VISIT(guard->watched[i].data_ptr);
    return 0;
}

static int guard_clear(PyObject *self) {
    struct guard_object *guard = (struct guard_object *)self;
    Py_ssize_t n = guard->watched ? PyTuple_Size(guard->tensors) : 0;
    struct watched_tensor *watched = guard->watched;
    guard->watched = NULL;
    for (Py_ssize_t i = 0; i < n; i++) Py_XDECREF(watched[i].data_ptr);
    free(watched);
    guard->n_dicts = 0;
    Py_CLEAR(guard->dicts);
    Py_CLEAR(guard->items);
    Py_CLEAR(guard->tensors);
    return 0;
}

static void guard_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    guard_clear(self);
    struct guard_object *guard = (struct guard_object *)self;
    free(guard->size);
    free(guard->dict);
    free(guard->item);
    free_object(self);
}

/* Appends the items of one dict; -1 with an exception set. */
static int note_dict(PyObject *dict, PyObject *items) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    if (!PyDict_Check(dict)) {
        PyErr_SetString(PyExc_TypeError, "a guard watches dicts only");
        return -1;
    }
    while (PyDict_Next(dict, &at, &key, &value))
        if (PyList_Append(items, key) || PyList_Append(items, value)) return -1;
    return 0;
}

/* Notes the items of all dicts; -1 with an exception set. */
static int guard_note_dicts(struct guard_object *guard) {
    Py_ssize_t n = PyTuple_Size(guard->dicts);
    guard->items = PyList_New(0);
    guard->size = calloc((size_t)n + 1, sizeof *guard->size);
    guard->dict = calloc((size_t)n + 1, sizeof *guard->dict);
    if (!guard->items || !guard->size || !guard->dict) return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        guard->dict[i] = PyTuple_GetItem(guard->dicts, i);
        if (note_dict(guard->dict[i], guard->items)) return -1;
        guard->size[i] = PyDict_Size(guard->dict[i]);
    }
    Py_ssize_t n_items = PyList_Size(guard->items);
    guard->item = calloc((size_t)n_items + 1, sizeof *guard->item);
    if (!guard->item) return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < n_items; i++) guard->item[i] = PyList_GetItem(guard->items, i);
    guard->n_dicts = n;
    return 0;
}

static ALWAYS_INLINE void fetch_lines(const char *at, Py_ssize_t size) {
    for (Py_ssize_t line = 0; line < size; line += 64) __builtin_prefetch(at + line);
}

/* A network's run leaves nothing of its module in the caches, and each check is a chain of reads. Fetched ahead of their
 * turn, many wait at the same time. Where CPython's dicts keep their tables is a guess that can only cost time: words 4 and
 * 5 of a dict are in it in all versions, and what they hold is handed to the processor, never read. */
static ALWAYS_INLINE void fetch_dict_early(const struct guard_object *guard, Py_ssize_t i) {
    enum { TABLES = 4, HEADER = 64, ENTRY = 16 };
    if (i + AHEAD < guard->n_dicts) fetch_lines((const char *)guard->dict[i + AHEAD], 64);
    if (i < 0 || i >= guard->n_dicts || !guard->size[i]) return;
    const char *table[2];
    memcpy(table, (const char *)guard->dict[i] + TABLES * sizeof(void *), sizeof table);
    fetch_lines(table[0], HEADER + ENTRY * guard->size[i]);
    if (table[1]) fetch_lines(table[1], (Py_ssize_t)sizeof(void *) * guard->size[i]);
}

static bool guard_dicts_changed(const struct guard_object *guard) {
    PyObject *const *item = guard->item;
    for (Py_ssize_t i = 0; i < AHEAD; i++) fetch_dict_early(guard, i - AHEAD);
    for (Py_ssize_t i = 0; i < AHEAD; i++) fetch_dict_early(guard, i);
    for (Py_ssize_t i = 0; i < guard->n_dicts; i++) {
        PyObject *key, *value;
        Py_ssize_t at = 0;
        fetch_dict_early(guard, i + AHEAD);
        if (PyDict_Size(guard->dict[i]) != guard->size[i]) return true;
        for (; PyDict_Next(guard->dict[i], &at, &key, &value); item += 2)
            if (item[0] != key || item[1] != value) return true;
    }
    return false;
}

/* The tensor's address now; -1 with an exception set. */
static int read_address(const struct watched_tensor *w, char **address) {
    PyObject *result = PyObject_CallNoArgs(w->data_ptr);
    if (!result) return -1;
    *address = PyLong_AsVoidPtr(result);
    Py_DECREF(result);
    return PyErr_Occurred() ? -1 : 0;
}

static int read_version(const struct watched_tensor *w, int64_t *version) {
    PyObject *result = PyObject_GetAttr(w->tensor, version_name);
    if (!result) return -1;
    *version = PyLong_AsLongLong(result);
    Py_DECREF(result);
    return *version == -1 && PyErr_Occurred() ? -1 : 0;
}

static int get_hints(struct watched_tensor *w, PyObject *hints) {
    Py_ssize_t n = PyTuple_Size(hints);
    if (n < 0) return -1;
    for (Py_ssize_t i = 0; i < n && i < MAX_HINTS; i++)
        w->hint[i] = PyLong_AsVoidPtr(PyTuple_GetItem(hints, i));
    return PyErr_Occurred() ? -1 : 0;
}

/* `place` is (size of an element, offsets of N_SAMPLES elements in bytes, addresses to fetch early); without offsets only
 * identity is watched. */
static int watch_tensor(struct watched_tensor *w, PyObject *tensor, PyObject *place) {
    PyObject *offsets, *hints;
    long long item_size;
    Py_ssize_t n;
    w->tensor = tensor;
    w->data_ptr = PyObject_GetAttrString(tensor, "data_ptr");
    if (!w->data_ptr || read_address(w, &w->address)) return -1;
    if (!PyArg_ParseTuple(place, "LOO!", &item_size, &offsets, &PyTuple_Type, &hints) ||
        get_hints(w, hints))
        return -1;
    int64_t *offset = get_ints(offsets, &n);
    if (!offset) return -1;
    w->item_size = item_size;
    bool sampled = n == N_SAMPLES && w->address && item_size > 0 && item_size <= MAX_ITEM;
    for (int i = 0; i < N_SAMPLES; i++) {
        w->offset[i] = sampled ? offset[i] : -1;
        if (sampled) memcpy(w->sample[i], w->address + offset[i], (size_t)item_size);
    }
    free(offset);
    /* Tensors made under inference_mode count no versions; their samples must do. */
    if (read_version(w, &w->version)) {
        PyErr_Clear();
        w->version = -1;
    }
    return 0;
}

static PyObject *guard_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *dicts, *tensors, *places;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OOO:Guard", &dicts, &tensors, &places)) return NULL;
    PyObject *self = new_object(type);
    if (!self) return NULL;
    struct guard_object *guard = (struct guard_object *)self;
    guard->dicts = PySequence_Tuple(dicts);
    guard->tensors = PySequence_Tuple(tensors);
    places = PySequence_Tuple(places);
    if (!guard->dicts || !guard->tensors || !places || guard_note_dicts(guard)) goto failed;
    Py_ssize_t n = PyTuple_Size(guard->tensors);
    if (PyTuple_Size(places) != n) {
        PyErr_SetString(PyExc_ValueError, "a guard needs one place per tensor");
        goto failed;
    }
    guard->watched = calloc((size_t)n + 1, sizeof *guard->watched);
    if (!guard->watched) {
        PyErr_NoMemory();
        goto failed;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        if (watch_tensor(&guard->watched[i], PyTuple_GetItem(guard->tensors, i),
                         PyTuple_GetItem(places, i)))
            goto failed;
    }
    Py_DECREF(places);
    return self;
failed:
    Py_XDECREF(places);
    Py_DECREF(self);
    return NULL;
}

/* 1 changed, 0 not, -1 with an exception set. */
static int tensor_changed(const struct watched_tensor *w, unsigned turn) {
    char *address;
    int64_t version = -1;
    if (read_address(w, &address)) return -1;
    if (w->version >= 0 && read_version(w, &version)) return -1;
    if (address != w->address || version != w->version) return 1;
    if (w->offset[turn] < 0) return 0;
    return memcmp(address + w->offset[turn], w->sample[turn], (size_t)w->item_size) != 0;
}

/* A network's run leaves nothing of its tensors in the caches, and each check is a chain of reads. Fetched ahead of
 * their turn, the reads of many tensors wait at the same time. */
static ALWAYS_INLINE void fetch_early(const struct watched_tensor *w, unsigned turn) {
    for (int i = 0; i < MAX_HINTS && w->hint[i]; i++)
        for (int line = 0; line < HINT_LINES; line++) __builtin_prefetch(w->hint[i] + 64 * line);
    __builtin_prefetch(w->data_ptr);
    if (w->offset[turn] >= 0) __builtin_prefetch(w->address + w->offset[turn]);
}

static PyObject *guard_check(PyObject *self, PyObject *none) {
    (void)none;
    struct guard_object *guard = (struct guard_object *)self;
    if (!guard->watched) return PyLong_FromLong(1);
    if (guard_dicts_changed(guard)) return PyLong_FromLong(1);
    unsigned turn = guard->turn++ % N_SAMPLES;
    Py_ssize_t n = PyTuple_Size(guard->tensors);
    for (Py_ssize_t i = 0; i < n && i < AHEAD; i++) fetch_early(&guard->watched[i], turn);
    for (Py_ssize_t i = 0; i < n; i++) {
        if (i + AHEAD < n) fetch_early(&guard->watched[i + AHEAD], turn);
        int changed = tensor_changed(&guard->watched[i], turn);
        if (changed < 0) return NULL;
        if (changed) return PyLong_FromLong(2);
    }
    return PyLong_FromLong(0);
}

static PyMethodDef guard_methods[] = {
    {"check", guard_check, METH_NOARGS, "0: as before, 1: a dict changed, 2: a tensor changed."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot guard_slots[] = {
    {Py_tp_doc,
     "Guard(dicts, tensors, places); a place is (element size, 8 byte offsets to sample or none, "
     "addresses to fetch early)."},
    {Py_tp_new, guard_new},
    {Py_tp_dealloc, guard_dealloc},
    {Py_tp_traverse, guard_traverse},
    {Py_tp_clear, guard_clear},
    {Py_tp_methods, guard_methods},
    {0, NULL},
};
static PyType_Spec guard_spec = {"sol._core.Guard", sizeof(struct guard_object), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, guard_slots};

/* ---- Module ---- */

static PyObject *core_parse(PyObject *module, PyObject *args) {
    const char *text;
    struct sol_model *model = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "s:parse", &text)) return NULL;
    enum sol_status status = sol_model_parse(text, &model);
    return status ? raise_status(status) : wrap_model(model_type, model);
}

static void visit_info(void *user, const struct sol_info *info) {
    PyObject *item =
        Py_BuildValue("(ssOs)", info->kind, info->name, info->available ? Py_True : Py_False,
                      info->detail ? info->detail : "");
    if (append(user, item)) PyErr_Clear();
}

static PyObject *core_list(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    PyObject *rows = PyList_New(0);
    if (rows) sol_list(visit_info, rows);
    return rows;
}

static PyObject *core_version(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return PyUnicode_FromString(sol_version());
}

static PyObject *core_cache_clear(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    enum sol_status status = sol_cache_clear();
    if (status) return raise_status(status);
    Py_RETURN_NONE;
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

static PyMethodDef core_methods[] = {
    {"parse", core_parse, METH_VARARGS, "parse(text) -> Model."},
    {"list", core_list, METH_NOARGS,
     "[(kind, name, available, detail)] of devices, libraries, compilers, caches."},
    {"version", core_version, METH_NOARGS, "The version of libsol."},
    {"cache_clear", core_cache_clear, METH_NOARGS, "Deletes the compiled kernels of this user."},
    {"set_threads", core_set_threads, METH_VARARGS, "set_threads(n); 0: one per core."},
    {"threads", core_threads, METH_NOARGS, "Threads that take part in a call."},
    {"measure_flops", core_measure_flops, METH_NOARGS,
     "The machine's peak in floating point operations per second."},
    {"measure_bandwidth", core_measure_bandwidth, METH_VARARGS,
     "measure_bandwidth(size) -> bytes per second of reading `size` bytes."},
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
    version_name = PyUnicode_InternFromString("_version");
    if (!version_name || add_type(module, &model_spec, &model_type) ||
        add_type(module, &program_spec, &program_type) ||
        add_type(module, &weights_spec, &weights_type) ||
        add_type(module, &guard_spec, &guard_type)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}

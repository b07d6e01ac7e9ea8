/*
 * sol._core.Shortcut: runs a usual call of an optimized module, from the arguments to the result, without Python code.
 *
 *   Optimized.__call__ -> shortcut_run: take_inputs -> sol_program_run_speculative(guard = look_around) -> take_result
 *
 * After a network's run, data of the caller is no longer in the caches, so each function, object and table that a call reads
 * is a cache miss: about 5 us per call of a framework's function, more than 1 us per Python function. So `run` checks the
 * inputs and starts a speculative run: workers may begin the program's first step, while this thread checks that the call is
 * a usual one of an unchanged module, and makes the outputs.
 *
 * If any check fails, `run` returns NotImplemented and has no other effect. The Python code then makes the call, and finds the
 * reason. All conditions are data from Python (shortcut.py), so this file depends on no framework.
 *
 * A batch size without a verdict of the selector runs here until the seconds that the selector has granted are used up. The
 * next call then returns NotImplemented, so that the selector gets it.
 *
 * Invariant: after its creation only `batches` (which grows), `verdicts`, `won`, `granted`, `left` and `is_refused` of a
 * shortcut change. Several threads may use it at the same time, and its owner may drop its reference during a call.
 */
#include "_core.h"

#include <time.h>

enum { MAX_PORTS = 16 };

/* The expected dtype and shape of an input. dim -1: the batch size, which is equal in all inputs. */
struct input {
    int at; /* index of the argument */
    int code, bits, ndim;
    int64_t dim[SOL_MAX_RANK];
};

struct shortcut_object {
    /* The arguments of the constructor, a tuple; the objects below are borrowed from it. */
    PyObject_HEAD PyObject *parts;
    PyObject *guards; /* tuple of Guard, which must report no change */
    /* Tuple of (dict, key, expected value; Ellipsis: absent). A dict of None is run's second argument, the module's __dict__. */
    PyObject *values;
    PyObject *questions; /* tuple of (function, its arguments, expected result) */
    PyObject *types;     /* tuple of the exact types that an input may have */
    PyObject *refuse;    /* function(input): False if the program can read this input */
    PyObject *program, *weights;
    PyObject *empty,
        *keywords; /* function that makes an output; tuple of its keyword arguments, one dict per output */
    PyObject *batches; /* {batch: tuple of arguments of `empty`, one per output} */
    /* {batch: True: runs here; another value: the framework runs it; no entry: no verdict yet}; None: all batches run here. */
    PyObject *verdicts;
    PyObject *build; /* function(list of outputs) -> result; None: the result is the only output */
    struct input input[MAX_PORTS];
    struct held held;  /* all other arguments */
    Py_ssize_t n_args; /* n_inputs, n_sizes, and held.n */
    int n_inputs, n_sizes, n_outputs, n_taken, n_threads;
    int taken[MAX_PORTS]; /* for each input of the program its index in `input` */
    int size_at
        [MAX_PORTS]; /* indices of the arguments that are the batch size itself, as an integer */
    int64_t won;     /* a batch whose verdict is True, valid for `n_threads`; 0: none */
    double granted, left; /* seconds for calls of batches without a verdict */
    bool is_refused;      /* a call was not a usual one; the shortcut makes no further attempt */
};

/* ---- Making one ---- */

static int parse_input(struct input *input, PyObject *spec) {
    const char *name;
    PyObject *shape;
    struct dl_tensor type;
    Py_ssize_t ndim;
    if (!PyArg_ParseTuple(spec, "sO", &name, &shape)) return -1;
    if (find_dl_type(name, &type)) input->code = type.dtype.code, input->bits = type.dtype.bits;
    int64_t *dim = get_ints(shape, &ndim);
    if (!dim) return -1;
    bool fits = input->bits && ndim <= SOL_MAX_RANK;
    input->ndim = (int)ndim;
    if (fits) memcpy(input->dim, dim, (size_t)ndim * sizeof *dim);
    free(dim);
    if (!fits) PyErr_SetString(PyExc_NotImplementedError, "no shortcut for such inputs");
    return fits ? 0 : -1;
}

static int refuse_ports(void) {
    PyErr_SetString(PyExc_NotImplementedError, "no shortcut for so many inputs or outputs");
    return -1;
}

/* `spec`: (dtype, shape); None: the batch size; or the description of a held argument. */
static int parse_arg(struct shortcut_object *s, Py_ssize_t at, PyObject *spec) {
    if (spec != Py_None && (!PyTuple_Check(spec) || PyTuple_Size(spec) != 2))
        return PyErr_SetString(PyExc_TypeError, "expected a pair for each argument"), -1;
    if (spec != Py_None && !PyUnicode_Check(PyTuple_GetItem(spec, 0)))
        return view_tensor ? held_add(&s->held, at, spec) : refuse_ports();
    if (s->n_inputs + s->n_sizes == MAX_PORTS) return refuse_ports();
    if (spec == Py_None) return s->size_at[s->n_sizes++] = (int)at, 0;
    s->input[s->n_inputs].at = (int)at;
    return parse_input(&s->input[s->n_inputs++], spec);
}

static int parse_inputs(struct shortcut_object *s, PyObject *inputs, PyObject *taken) {
    Py_ssize_t n_taken;
    s->n_args = PyTuple_Size(inputs);
    for (Py_ssize_t i = 0; i < s->n_args; i++)
        if (parse_arg(s, i, PyTuple_GetItem(inputs, i))) return -1;
    int64_t *index = get_ints(taken, &n_taken);
    if (!index) return -1;
    s->n_outputs = sol_program_n_outputs(((struct program_object *)s->program)->program);
    bool fits = n_taken <= MAX_PORTS && s->n_outputs <= MAX_PORTS;
    for (Py_ssize_t i = 0; fits && i < n_taken; i++) {
        fits = index[i] >= 0 && index[i] < s->n_inputs;
        s->taken[i] = (int)index[i];
    }
    free(index);
    s->n_taken = (int)n_taken;
    return fits ? 0 : refuse_ports();
}

/* Checks what the constructor's format string does not: types of items, and that the objects belong together. Returns -1 with
 * an exception set. */
static int check_parts(struct shortcut_object *s) {
    const struct sol_program *program = ((struct program_object *)s->program)->program;
    if (((struct weights_object *)s->weights)->program != s->program)
        return PyErr_SetString(PyExc_ValueError, "these weights were made for another program"), -1;
    if (!view_tensor || sol_program_n_symbols(program) > 1 ||
        sol_program_n_inputs(program) != s->n_taken)
        return PyErr_SetString(PyExc_NotImplementedError, "no shortcut for this program"), -1;
    if (s->verdicts != Py_None && !PyDict_Check(s->verdicts))
        return PyErr_SetString(PyExc_TypeError, "expected a dict of verdicts"), -1;
    if (PyTuple_Size(s->keywords) != s->n_outputs)
        return PyErr_SetString(PyExc_ValueError, "expected keyword arguments for each output"), -1;
    for (Py_ssize_t i = 0; i < PyTuple_Size(s->guards); i++)
        if (!PyObject_TypeCheck(PyTuple_GetItem(s->guards, i), guard_type))
            return PyErr_SetString(PyExc_TypeError, "expected a Guard"), -1;
    return 0;
}

static PyObject *shortcut_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *inputs, *taken, *self = new_object(type);
    (void)kwargs;
    if (!self) return NULL;
    struct shortcut_object *s = (struct shortcut_object *)self;
    s->parts = Py_NewRef(args);
    if (PyArg_ParseTuple(args, "O!O!O!O!OO!O!O!O!OO!O!OOi:Shortcut", &PyTuple_Type, &s->guards,
                         &PyTuple_Type, &s->values, &PyTuple_Type, &s->questions, &PyTuple_Type,
                         &s->types, &s->refuse, &PyTuple_Type, &inputs, &PyTuple_Type, &taken,
                         program_type, &s->program, weights_type, &s->weights, &s->empty,
                         &PyTuple_Type, &s->keywords, &PyDict_Type, &s->batches, &s->verdicts,
                         &s->build, &s->n_threads) &&
        !parse_inputs(s, inputs, taken) && !check_parts(s))
        return self;
    Py_DECREF(self);
    return NULL;
}

static int shortcut_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct shortcut_object *)self)->parts);
    return 0;
}

/* The garbage collector clears only objects that nothing else refers to, so no call uses the parts any more. */
static int shortcut_clear(PyObject *self) {
    Py_CLEAR(((struct shortcut_object *)self)->parts);
    return 0;
}

static void shortcut_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    shortcut_clear(self);
    held_clear(&((struct shortcut_object *)self)->held);
    free_object(self);
}

/* ---- A call ---- */

struct shortcut_call {
    struct shortcut_object *s;
    PyObject *args, *own; /* a tuple; the module's __dict__ */
    int64_t batch;        /* -1: no input has an open size */
    const void *in[MAX_PORTS];
    void *out[MAX_PORTS];
    PyObject *outputs;           /* list */
    PyThreadState *thread;       /* saved when the GIL is released */
    bool is_usual, is_undecided; /* all checks passed; the batch has no verdict */
};

/* Calls a function. Returns whether its result equals `answer`; false, with an exception set, if it raises. */
static bool ask(PyObject *function, PyObject *args, PyObject *answer) {
    PyObject *result = PyObject_CallObject(function, args);
    if (!result) return false;
    bool is_expected = PyObject_RichCompareBool(result, answer, Py_EQ) == 1;
    Py_DECREF(result);
    return is_expected;
}

static bool has_values(PyObject *values, PyObject *own) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(values); i++) {
        PyObject *item = PyTuple_GetItem(values, i), *dict = PyTuple_GetItem(item, 0);
        PyObject *expected = PyTuple_GetItem(item, 2);
        PyObject *value =
            PyDict_GetItemWithError(dict == Py_None ? own : dict, PyTuple_GetItem(item, 1));
        if (value ? value != expected : expected != Py_Ellipsis) return false;
    }
    return true;
}

static bool has_answers(PyObject *questions) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(questions); i++) {
        PyObject *item = PyTuple_GetItem(questions, i);
        if (!ask(PyTuple_GetItem(item, 0), PyTuple_GetItem(item, 1), PyTuple_GetItem(item, 2)))
            return false;
    }
    return true;
}

static bool is_unchanged(PyObject *guards) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(guards); i++)
        if (guard_changed(PyTuple_GetItem(guards, i))) return false;
    return true;
}

static bool is_row_major(const struct dl_tensor *view) {
    int64_t stride = 1;
    for (int i = view->ndim - 1; view->strides && i >= 0; i--) {
        if (view->shape[i] != 1 && view->strides[i] != stride) return false;
        stride *= view->shape[i];
    }
    return true;
}

static bool has_shape(const struct input *input, const struct dl_tensor *view, int64_t *batch) {
    if (view->ndim != input->ndim) return false;
    for (int i = 0; i < view->ndim; i++) {
        if (view->shape[i] <= 0) return false;
        if (input->dim[i] < 0 && *batch < 0) *batch = view->shape[i];
        if (view->shape[i] != (input->dim[i] < 0 ? *batch : input->dim[i])) return false;
    }
    return true;
}

static bool has_type(PyObject *types, PyObject *tensor) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(types); i++)
        if ((PyObject *)Py_TYPE(tensor) == PyTuple_GetItem(types, i)) return true;
    return false;
}

/* Checks one argument, and reads its address and the batch size. Returns false, perhaps with an exception set, if the call
 * is not a usual one. */
static bool take_input(struct shortcut_call *call, int i, PyObject *tensor, void **address) {
    const struct input *input = &call->s->input[i];
    struct dl_tensor view;
    if (!has_type(call->s->types, tensor) || view_tensor(tensor, &view)) return false;
    if (view.device.type != DL_CPU || view.dtype.code != input->code ||
        view.dtype.bits != input->bits || view.dtype.lanes != 1 || !is_row_major(&view))
        return false;
    *address = (char *)view.data + view.byte_offset;
    if (!has_shape(input, &view, &call->batch)) return false;
    PyObject *refused = PyObject_CallFunctionObjArgs(call->s->refuse, tensor, NULL);
    Py_XDECREF(refused);
    return refused == Py_False;
}

/* As take_input, for the batch size as an argument. */
static bool take_batch(struct shortcut_call *call, PyObject *size) {
    int64_t batch = PyLong_Check(size) ? PyLong_AsLongLong(size) : 0;
    if (batch <= 0) return false;
    if (call->batch < 0) call->batch = batch;
    return batch == call->batch;
}

static bool take_inputs(struct shortcut_call *call) {
    const struct shortcut_object *s = call->s;
    void *address[MAX_PORTS];
    if (!PyTuple_Check(call->args) || PyTuple_Size(call->args) != s->n_args) return false;
    for (int i = 0; i < s->n_inputs; i++)
        if (!take_input(call, i, PyTuple_GetItem(call->args, s->input[i].at), &address[i]))
            return false;
    for (int i = 0; i < s->n_sizes; i++)
        if (!take_batch(call, PyTuple_GetItem(call->args, s->size_at[i]))) return false;
    for (int i = 0; i < s->n_taken; i++) call->in[i] = address[s->taken[i]];
    return held_given(&s->held, call->args);
}

static bool make_outputs(struct shortcut_call *call, PyObject *shapes) {
    struct dl_tensor view;
    call->outputs = PyList_New(0);
    for (int i = 0; call->outputs && i < call->s->n_outputs; i++) {
        PyObject *output = PyObject_Call(call->s->empty, PyTuple_GetItem(shapes, i),
                                         PyTuple_GetItem(call->s->keywords, i));
        if (append(call->outputs, output) || view_tensor(output, &view)) return false;
        call->out[i] = (char *)view.data + view.byte_offset;
    }
    return call->outputs != NULL;
}

/* Returns the arguments of `empty` for each output (borrowed); NULL if `batches` does not have this batch size. */
static PyObject *find_batch(const struct shortcut_call *call) {
    PyObject *key = PyLong_FromLongLong(call->batch);
    PyObject *shapes = key ? PyDict_GetItemWithError(call->s->batches, key) : NULL;
    Py_XDECREF(key);
    bool fits = shapes && PyTuple_Check(shapes) && PyTuple_Size(shapes) == call->s->n_outputs;
    return fits ? shapes : NULL;
}

/* Whether the selector's verdict allows a call of this batch size here. Without a verdict, it needs granted seconds. */
static bool may_run(struct shortcut_call *call) {
    struct shortcut_object *s = call->s;
    if (s->verdicts == Py_None || s->won == call->batch) return true;
    PyObject *key = PyLong_FromLongLong(call->batch);
    PyObject *verdict = key ? PyDict_GetItemWithError(s->verdicts, key) : Py_False;
    Py_XDECREF(key);
    if (verdict == Py_True) s->won = call->batch;
    call->is_undecided = !verdict;
    return verdict ? verdict == Py_True : s->left > 0;
}

/* The guard of the speculative run: makes all remaining checks and the outputs. It releases the GIL at its end. */
static bool look_around(void *user) {
    struct shortcut_call *call = user;
    struct shortcut_object *s = call->s;
    PyObject *shapes = find_batch(call);
    call->is_usual = shapes && has_values(s->values, call->own) && has_answers(s->questions) &&
                     is_unchanged(s->guards) && held_in_place(&s->held, call->args) &&
                     sol_threads() == s->n_threads && make_outputs(call, shapes);
    if (!call->is_usual) s->is_refused = true;
    PyErr_Clear();
    call->thread = PyEval_SaveThread();
    return call->is_usual;
}

/* Returns the model's result, built from the outputs. */
static PyObject *take_result(struct shortcut_call *call) {
    if (call->s->build != Py_None)
        return PyObject_CallFunctionObjArgs(call->s->build, call->outputs, NULL);
    return Py_XNewRef(PyList_GetItem(call->outputs, 0));
}

static PyObject *run_call(struct shortcut_call *call) {
    const struct shortcut_object *s = call->s;
    enum sol_status status = sol_program_run_speculative(
        look_around, call, ((struct program_object *)s->program)->program,
        ((struct weights_object *)s->weights)->weights, &call->batch, call->in, call->out);
    PyEval_RestoreThread(call->thread);
    PyObject *result = NULL;
    /* Data that SOL refuses, such as an index out of range, are left to the engine, whose run is refused again. */
    bool is_refused = (status == SOL_EINDEX || status == SOL_EINVAL) && !PyErr_Occurred();
    if (!call->is_usual || is_refused) result = Py_NewRef(Py_NotImplemented);
    else if (status) raise_status(status);
    else result = take_result(call);
    Py_XDECREF(call->outputs);
    return result;
}

static double clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static PyObject *run_undecided(struct shortcut_call *call) {
    double start = clock_seconds();
    PyObject *result = run_call(call);
    call->s->left -= clock_seconds() - start;
    return result;
}

static PyObject *shortcut_run(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    struct shortcut_object *s = (struct shortcut_object *)self;
    if (n != 2 || !PyDict_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple and a dict");
        return NULL;
    }
    struct shortcut_call call = {.s = s, .args = args[0], .own = args[1], .batch = -1};
    if (!s->is_refused && s->parts && take_inputs(&call) && find_batch(&call) && may_run(&call))
        return call.is_undecided ? run_undecided(&call) : run_call(&call);
    PyErr_Clear();
    return Py_NewRef(Py_NotImplemented);
}

static PyObject *shortcut_grant(PyObject *self, PyObject *seconds) {
    struct shortcut_object *s = (struct shortcut_object *)self;
    double used = s->granted - s->left, granted = PyFloat_AsDouble(seconds);
    if (PyErr_Occurred()) return NULL;
    s->granted = s->left = granted;
    return PyFloat_FromDouble(used);
}

static PyObject *get_refused(PyObject *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(((struct shortcut_object *)self)->is_refused);
}

static PyMethodDef shortcut_methods[] = {
    {"run", (PyCFunction)(void (*)(void))shortcut_run, METH_FASTCALL,
     "run(args, own) -> the result, or NotImplemented: the call needs Python code."},
    {"grant", shortcut_grant, METH_O,
     "grant(seconds) -> those used of the grant before: lets calls of undecided batches run."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef shortcut_getset[] = {
    {"is_refused", get_refused, NULL,
     "true if the last call needed Python code, and no later call is tried here", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot shortcut_slots[] = {
    {Py_tp_doc,
     "Shortcut(guards, values, questions, types, refuse, inputs, taken, program, weights, empty, "
     "keywords, batches, verdicts, build, threads): the usual call without Python code."},
    {Py_tp_new, shortcut_new},
    {Py_tp_dealloc, shortcut_dealloc},
    {Py_tp_traverse, shortcut_traverse},
    {Py_tp_clear, shortcut_clear},
    {Py_tp_methods, shortcut_methods},
    {Py_tp_getset, shortcut_getset},
    {0, NULL},
};
PyType_Spec shortcut_spec = {"sol._core.Shortcut", sizeof(struct shortcut_object), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, shortcut_slots};

/* sol._core.Program and sol._core.Weights: a compiled program and its packed parameters (run.h), for Python. */
#include "_core.h"

#include <time.h>

/* ---- Weights ---- */

static void weights_dealloc(PyObject *self) {
    struct weights_object *w = (struct weights_object *)self;
    sol_weights_release(w->weights);
    free(w->params);
    Py_XDECREF(w->keep);
    Py_XDECREF(w->program);
    free_object(self);
}

static PyObject *raise_no_weights(void) {
    PyErr_SetString(PyExc_RuntimeError, "an update of these weights has failed");
    return NULL;
}

/* Waits while another thread updates the weights. Returns NULL with an exception set if there are none. In a child of fork, the thread
 * that began an update does not exist. */
static struct sol_weights *wait_for_weights(const struct weights_object *w) {
    while (!w->weights && w->packer == getpid()) {
        Py_BEGIN_ALLOW_THREADS nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        Py_END_ALLOW_THREADS
    }
    if (!w->weights) raise_no_weights();
    return w->weights;
}

static struct sol_weights *take_weights(struct weights_object *w) {
    struct sol_weights *weights = wait_for_weights(w);
    w->weights = NULL;
    w->packer = getpid();
    return weights;
}

static PyObject *weights_keep(PyObject *self, void *closure) {
    (void)closure;
    return Py_NewRef(((struct weights_object *)self)->keep);
}

/* Packs the values at w->params. While it runs, the object has no weights, so no call can begin to read what changes. Returns -1
 * with an exception set. */
static int pack_again(struct weights_object *w) {
    enum sol_status status;
    struct sol_weights *weights = take_weights(w);
    if (!weights) return w->packer = 0, -1;
    Py_BEGIN_ALLOW_THREADS status = sol_weights_update(&weights, (const void *const *)w->params);
    Py_END_ALLOW_THREADS w->weights = weights;
    w->packer = 0;
    if (status) raise_status(status);
    return status ? -1 : 0;
}

static const struct sol_program *program_of_weights(const struct weights_object *w) {
    return ((struct program_object *)w->program)->program;
}

static PyObject *weights_update(PyObject *self, PyObject *args) {
    struct weights_object *w = (struct weights_object *)self;
    PyObject *addresses, *keep, *old = w->keep;
    if (!PyArg_ParseTuple(args, "OO:update", &addresses, &keep)) return NULL;
    void **params =
        get_addresses(addresses, sol_program_n_params(program_of_weights(w)), "parameters");
    if (!params) return NULL;
    free(w->params);
    w->params = params;
    if (pack_again(w)) return NULL;
    w->keep = Py_NewRef(keep);
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

/* The address of a tensor without gaps and of the port's shape; NULL if it is none, or the framework cannot tell. */
static void *find_address(PyObject *tensor, const struct sol_port *port) {
    struct dl_tensor view;
    if (!view_tensor || view_tensor(tensor, &view)) {
        PyErr_Clear();
        return NULL;
    }
    int64_t stride = 1;
    for (int d = view.ndim - 1; d >= 0 && view.ndim == port->rank; d--) {
        if (view.shape[d] != port->dim[d]) return NULL;
        if (view.shape[d] != 1 && view.strides && view.strides[d] != stride) return NULL;
        stride *= view.shape[d];
    }
    return view.ndim == port->rank ? (char *)view.data + view.byte_offset : NULL;
}

static PyObject *weights_refresh(PyObject *self, PyObject *tensors) {
    struct weights_object *w = (struct weights_object *)self;
    const int n = sol_program_n_params(program_of_weights(w));
    if (!PyTuple_Check(tensors) || PyTuple_Size(tensors) != n)
        return PyErr_Format(PyExc_TypeError, "expected a tuple of %d tensors", n);
    for (int i = 0; i < n; i++) {
        void *at =
            find_address(PyTuple_GetItem(tensors, i), sol_program_param(program_of_weights(w), i));
        if (!at || at != w->params[i]) Py_RETURN_FALSE;
    }
    return pack_again(w) ? NULL : Py_NewRef(Py_True);
}

static PyMethodDef weights_methods[] = {
    {"update", weights_update, METH_VARARGS,
     "update(addresses, keep): packs other values of the parameters, in the same memory if no call uses it."},
    {"refresh", weights_refresh, METH_O,
     "refresh(tensors): update with the same addresses -> True. False, without an update, if one of the tensors has another\n"
     "address or shape, or gaps."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef weights_getset[] = {
    {"keep", weights_keep, NULL, "what Program.weights got as `keep`", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot weights_slots[] = {
    {Py_tp_doc, "Packed parameters: one version of the parameters, prepacked by Program.weights."},
    {Py_tp_dealloc, weights_dealloc},
    {Py_tp_methods, weights_methods},
    {Py_tp_getset, weights_getset},
    {0, NULL},
};
PyType_Spec weights_spec = {"sol._core.Weights", sizeof(struct weights_object), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, weights_slots};

/* ---- Program ---- */

static struct sol_program *program_of(PyObject *self) {
    return ((struct program_object *)self)->program;
}

PyObject *wrap_program(struct sol_program *program) {
    PyObject *self = new_object(program_type);
    if (self) ((struct program_object *)self)->program = program;
    else sol_program_release(program);
    return self;
}

static void program_dealloc(PyObject *self) {
    struct program_object *p = (struct program_object *)self;
    for (int i = 0; p->outputs && i < sol_program_n_outputs(p->program); i++)
        saved_list_release(p->outputs[i]);
    free(p->outputs);
    saved_list_release(p->saved);
    sol_program_release(p->program);
    free_object(self);
}

/* Converts and checks the values of the program's symbols. Returns a malloc'ed array; NULL with an exception set. */
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
    Py_END_ALLOW_THREADS PyObject *result =
        status ? raise_status(status) : new_object(weights_type);
    if (!result) {
        sol_weights_release(weights);
        free(params);
        return NULL;
    }
    struct weights_object *object = (struct weights_object *)result;
    object->weights = weights;
    object->params = params;
    object->program = Py_NewRef(self);
    object->keep = Py_NewRef(keep);
    return result;
}

/* The arguments of a call. The arrays are malloc'ed. The weights and `keep` are retained, so that an update during the call does not
 * change or free what it reads. */
struct call {
    struct sol_weights *weights;
    PyObject *keep;
    int64_t *symbols;
    void **inputs, **outputs;
    void *saved;
};

static void call_fini(struct call *call) {
    sol_weights_release(call->weights);
    Py_XDECREF(call->keep);
    free(call->symbols);
    free(call->inputs);
    free(call->outputs);
}

/* Checks and converts the arguments (weights, symbols, inputs, outputs); false with an exception set. */
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
    if (!wait_for_weights(weights)) return false;
    call->weights = weights->weights;
    sol_weights_retain(call->weights);
    call->keep = Py_NewRef(weights->keep);
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

/* As call_init, for (weights, symbols, inputs, outputs, saved). */
static bool call_init_saved(struct call *call, PyObject *self, PyObject *const *args,
                            Py_ssize_t n) {
    void *saved = n == 5 ? PyLong_AsVoidPtr(args[4]) : NULL;
    if (n != 5)
        PyErr_SetString(PyExc_TypeError, "expected (weights, symbols, inputs, outputs, saved)");
    if (PyErr_Occurred() || !call_init(call, self, args, 4)) return false;
    call->saved = saved;
    return true;
}

static PyObject *program_forward(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    struct call call;
    enum sol_status status;
    if (!call_init_saved(&call, self, args, n)) return NULL;
    Py_BEGIN_ALLOW_THREADS status =
        sol_program_forward(program_of(self), call.weights, call.symbols,
                            (const void *const *)call.inputs, call.outputs, call.saved);
    Py_END_ALLOW_THREADS call_fini(&call);
    if (status) return raise_status(status);
    Py_RETURN_NONE;
}

static PyObject *program_backward(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    struct call call;
    enum sol_status status;
    if (!call_init_saved(&call, self, args, n)) return NULL;
    Py_BEGIN_ALLOW_THREADS status =
        sol_program_backward(program_of(self), call.weights, call.symbols,
                             (const void *const *)call.inputs, call.outputs, call.saved);
    Py_END_ALLOW_THREADS call_fini(&call);
    if (status) return raise_status(status);
    Py_RETURN_NONE;
}

static PyObject *program_saved_size(PyObject *self, PyObject *values) {
    size_t size;
    int64_t *symbols = get_symbols(self, values);
    if (!symbols) return NULL;
    enum sol_status status = sol_program_saved_size(program_of(self), symbols, &size);
    free(symbols);
    return status ? raise_status(status) : PyLong_FromSize_t(size);
}

static PyObject *program_take_saved(PyObject *self, PyObject *values) {
    size_t size;
    int64_t *symbols = get_symbols(self, values);
    if (!symbols) return NULL;
    enum sol_status status = sol_program_saved_size(program_of(self), symbols, &size);
    free(symbols);
    if (status) return raise_status(status);
    if (!size) Py_RETURN_NONE;
    return saved_list_take(&((struct program_object *)self)->saved, program_of(self), size);
}

/* Returns {implementation: the reason why it refused this step}. */
static PyObject *get_refusals(const struct sol_step_time *step) {
    PyObject *refused = PyDict_New();
    for (int i = 0; refused && i < step->n_candidates; i++) {
        const struct sol_candidate *c = &step->candidate[i];
        PyObject *reason = c->refusal ? PyUnicode_FromString(c->refusal) : NULL;
        if (reason) (void)PyDict_SetItemString(refused, c->name, reason);
        Py_XDECREF(reason);
    }
    return refused;
}

void append_step(void *user, const struct sol_step_time *step) {
    PyObject *refused = get_refusals(step);
    PyObject *item = refused ? Py_BuildValue("(sssdddisNOs)", step->name, step->module,
                                             step->layers, step->seconds, step->flops, step->bytes,
                                             step->cluster, step->implementation, refused,
                                             step->is_backward ? Py_True : Py_False, step->choice)
                             : NULL;
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
                            (const void *const *)call.inputs, call.outputs, append_step, steps);
    call_fini(&call);
    if (!status) return steps;
    Py_DECREF(steps);
    return raise_status(status);
}

/* Converts the arguments (i, symbols) to the number of an output and its dims; false with an exception set. */
static bool get_output(PyObject *self, PyObject *args, int *i, int64_t *dim) {
    PyObject *values;
    if (!PyArg_ParseTuple(args, "iO", i, &values)) return false;
    if (*i < 0 || *i >= sol_program_n_outputs(program_of(self))) {
        PyErr_Format(PyExc_ValueError, "there is no output %d", *i);
        return false;
    }
    int64_t *symbols = get_symbols(self, values);
    if (!symbols) return false;
    enum sol_status status = sol_program_output_shape(program_of(self), *i, symbols, dim);
    free(symbols);
    if (status) raise_status(status);
    return !status;
}

static PyObject *program_output_shape(PyObject *self, PyObject *args) {
    int i;
    int64_t dim[SOL_MAX_RANK];
    if (!get_output(self, args, &i, dim)) return NULL;
    return new_shape(sol_program_output(program_of(self), i)->rank, dim);
}

static PyObject *program_take_output(PyObject *self, PyObject *args) {
    struct program_object *p = (struct program_object *)self;
    int i;
    int64_t dim[SOL_MAX_RANK];
    if (!get_output(self, args, &i, dim)) return NULL;
    const struct sol_port *port = sol_program_output(p->program, i);
    struct dl_tensor as = {.ndim = port->rank, .shape = dim};
    if (!find_dl_type(dtype_names[port->dtype], &as))
        return PyErr_Format(PyExc_TypeError, "output %d has a type without tensors", i);
    const size_t n = (size_t)sol_program_n_outputs(p->program);
    if (!p->outputs && !(p->outputs = calloc(n, sizeof *p->outputs))) return PyErr_NoMemory();
    return saved_list_take_typed(&p->outputs[i], p->program, &as);
}

typedef const struct sol_port *get_port(const struct sol_program *, int);

static PyObject *program_ports(PyObject *self, int n, get_port *get) {
    PyObject *ports = PyList_New(0);
    for (int i = 0; ports && i < n; i++) {
        const struct sol_port *port = get(program_of(self), i);
        PyObject *shape = new_shape(port->rank, port->dim);
        if (!shape || append(ports, Py_BuildValue("(NsN)", new_name(port->name),
                                                  dtype_names[port->dtype], shape)))
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

static PyObject *program_flags(PyObject *self, int n, get_port *get) {
    PyObject *flags = PyList_New(0);
    for (int i = 0; flags && i < n; i++) {
        const struct sol_port *port = get(program_of(self), i);
        if (append(flags, Py_BuildValue("(OO)", port->is_backward ? Py_True : Py_False,
                                        port->is_saved ? Py_True : Py_False)))
            Py_CLEAR(flags);
    }
    return flags;
}

static PyObject *program_input_flags(PyObject *self, void *closure) {
    (void)closure;
    return program_flags(self, sol_program_n_inputs(program_of(self)), sol_program_input);
}

static PyObject *program_output_flags(PyObject *self, void *closure) {
    (void)closure;
    return program_flags(self, sol_program_n_outputs(program_of(self)), sol_program_output);
}

static PyObject *program_n_compiled(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromLong(sol_program_n_compiled(program_of(self)));
}

static PyObject *program_compiler_s(PyObject *self, void *closure) {
    (void)closure;
    return PyFloat_FromDouble(sol_program_compiler_seconds(program_of(self)));
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
    return Py_BuildValue("{snsnsnsnsnsnsnsnsn}", "weights", (Py_ssize_t)m.weights, "constants",
                         (Py_ssize_t)m.constants, "arena", (Py_ssize_t)m.arena, "live",
                         (Py_ssize_t)m.live, "scratch", (Py_ssize_t)m.scratch, "saved",
                         (Py_ssize_t)m.saved, "backward_arena", (Py_ssize_t)m.backward_arena,
                         "backward_live", (Py_ssize_t)m.backward_live, "backward_scratch",
                         (Py_ssize_t)m.backward_scratch);
}

static PyObject *program_transfers(PyObject *self, void *closure) {
    struct sol_transfers t;
    (void)closure;
    sol_program_transfers(program_of(self), &t);
    return Py_BuildValue("{sLsLsLsL}", "to_device", (long long)t.to_device, "to_host",
                         (long long)t.to_host, "launches", (long long)t.launches, "weights",
                         (long long)t.weights);
}

static PyObject *program_dot(PyObject *self, PyObject *none) {
    (void)none;
    return take_text(sol_program_dot(program_of(self)));
}

/* Converts a row of program_profile. The texts of *step belong to `row`. Returns -1 with an exception set. */
static int read_step(PyObject *row, struct sol_step_time *step) {
    PyObject *refused, *is_backward;
    return PyArg_ParseTuple(row, "sssdddisOOs;a row of profile", &step->name, &step->module,
                            &step->layers, &step->seconds, &step->flops, &step->bytes,
                            &step->cluster, &step->implementation, &refused, &is_backward,
                            &step->choice)
               ? 0
               : -1;
}

static PyObject *make_html_report(PyObject *self, const char *title, const int64_t *symbols,
                                  PyObject *rows) {
    Py_ssize_t n = PyTuple_Size(rows);
    struct sol_step_time *steps = calloc((size_t)n + 1, sizeof *steps);
    if (!steps) return PyErr_NoMemory();
    char *text = NULL;
    for (Py_ssize_t i = 0; i < n; i++)
        if (read_step(PyTuple_GetItem(rows, i), &steps[i])) goto done;
    text = sol_program_html_report(program_of(self), title, symbols, steps, (int)n);
    if (!text) raise_status(SOL_EINVAL);
done:
    free(steps);
    return text ? take_text(text) : NULL;
}

static PyObject *program_html_report(PyObject *self, PyObject *args) {
    const char *title;
    PyObject *values, *rows;
    if (!PyArg_ParseTuple(args, "sOO!:html_report", &title, &values, &PyTuple_Type, &rows))
        return NULL;
    int64_t *symbols = get_symbols(self, values);
    if (!symbols) return NULL;
    PyObject *html = make_html_report(self, title, symbols, rows);
    free(symbols);
    return html;
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
    {"forward", (PyCFunction)(void (*)(void))program_forward, METH_FASTCALL,
     "forward(weights, symbols, inputs, outputs, saved): as run, of a program with a backward part. `saved`: the address of\n"
     "saved_size bytes. The addresses of ports of the other call are 0."},
    {"backward", (PyCFunction)(void (*)(void))program_backward, METH_FASTCALL,
     "backward(weights, symbols, inputs, outputs, saved): the second call; see sol_program_backward."},
    {"saved_size", program_saved_size, METH_O,
     "saved_size(symbols) -> bytes that forward leaves for backward."},
    {"take_saved", program_take_saved, METH_O,
     "take_saved(symbols) -> a DLPack capsule with memory of saved_size bytes, or None if that is 0. The memory is used again when\n"
     "no tensor has it any more."},
    {"take_output", program_take_output, METH_VARARGS,
     "take_output(i, symbols) -> a DLPack capsule with memory for output i, which is used again when no tensor has it any more."},
    {"profile", (PyCFunction)(void (*)(void))program_profile, METH_FASTCALL,
     "As run -> [(name, module, layers, seconds, flops, bytes, cluster, implementation,\n"
     "{refused: why}, is_backward, choice)], one per step of both calls."},
    {"output_shape", program_output_shape, METH_VARARGS, "output_shape(i, symbols) -> dims."},
    {"arena_size", program_arena_size, METH_O,
     "arena_size(symbols) -> bytes of one call's intermediates."},
    {"memory", program_memory, METH_O,
     "memory(symbols) -> {weights, constants, arena, ..} in bytes; see sol_memory."},
    {"dot", program_dot, METH_NOARGS, "Graphviz text: clusters as boxes, modules as colours."},
    {"html_report", program_html_report, METH_VARARGS,
     "html_report(title, symbols, rows of profile as a tuple) -> a page for a browser."},
    {"report", program_report, METH_NOARGS,
     "What was chosen and refused for each cluster, and why."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef program_getset[] = {
    {"inputs", program_inputs, NULL, "[(name, dtype, dims)]; a dim < 0 is symbol number -dim-1",
     NULL},
    {"params", program_params, NULL, "as inputs", NULL},
    {"outputs", program_outputs, NULL, "as inputs; a formula of symbols is None", NULL},
    {"input_flags", program_input_flags, NULL,
     "[(is_backward, is_saved)] of the inputs; see struct sol_port", NULL},
    {"output_flags", program_output_flags, NULL, "as input_flags", NULL},
    {"n_compiled", program_n_compiled, NULL, "kernels handed to the C compiler by this compile",
     NULL},
    {"compiler_s", program_compiler_s, NULL, "seconds of processor time that the C compiler took",
     NULL},
    {"weights_size", program_weights_size, NULL, "bytes of packed weights", NULL},
    {"transfers", program_transfers, NULL,
     "{to_device, to_host, launches, weights} since the program was made; see sol_transfers", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot program_slots[] = {
    {Py_tp_doc, "A compiled program; made by Model.compile."},
    {Py_tp_dealloc, program_dealloc},
    {Py_tp_methods, program_methods},
    {Py_tp_getset, program_getset},
    {0, NULL},
};
PyType_Spec program_spec = {"sol._core.Program", sizeof(struct program_object), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, program_slots};

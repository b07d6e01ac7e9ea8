/*
 * Held arguments of a shortcut: arguments of each call that must be those for which the shortcut was made: the very same tensors, or
 * equal numbers.
 *
 *   Shortcut.run -> take_inputs: held_given -> look_around: held_in_place
 *
 * A graph of torch.compile gets its weights as arguments. Their values were packed when the shortcut was made, and the guard of
 * the shortcut watches other tensor objects over the same memory, so that the weights can be freed while the graph lives on.
 * So each call checks that an argument is the same object, and that this object still has the same memory. Numbers are compiled in.
 *
 * Invariant: a held tensor is referred to by a weak reference only. An object that gets the address of a dead one is not
 * mistaken for it.
 */
#include "_core.h"

struct held_item {
    /* Weak reference to a tensor, or the number; borrowed from the arguments of the shortcut's constructor. */
    PyObject *expected;
    char *address; /* of the tensor's memory; NULL for a number */
    Py_ssize_t at; /* index of the argument */
};

static bool is_at(PyObject *tensor, const char *address) {
    struct dl_tensor view;
    return !view_tensor(tensor, &view) && (char *)view.data + view.byte_offset == address;
}

/* Reads a float: a Python float, or a tensor of the type f64 without dims, as which Dynamo passes floats that may vary. */
static bool read_float(PyObject *number, double *out) {
    enum { FLOAT = 2 };
    struct dl_tensor view;
    if (PyFloat_Check(number)) return *out = PyFloat_AsDouble(number), true;
    if (PyLong_Check(number) || view_tensor(number, &view)) return false;
    if (view.ndim || view.device.type != DL_CPU || view.dtype.code != FLOAT ||
        view.dtype.bits != 64)
        return false;
    memcpy(out, (char *)view.data + view.byte_offset, sizeof *out);
    return true;
}

/* Whether two numbers are equal, and floats have the same bits: 0.0 differs from -0.0. */
static bool is_number(PyObject *given, PyObject *expected) {
    double a, b;
    if (PyFloat_Check(expected))
        return read_float(expected, &a) && read_float(given, &b) && !memcmp(&a, &b, sizeof a);
    return Py_TYPE(given) == Py_TYPE(expected) &&
           PyObject_RichCompareBool(given, expected, Py_EQ) == 1;
}

/* Fills *item for the description: (weak reference, address), or (number, None). -1 with an exception set. */
static int hold(struct held_item *item, PyObject *description) {
    PyObject *address = PyTuple_GetItem(description, 1);
    item->expected = PyTuple_GetItem(description, 0);
    item->address = NULL;
    if (address == Py_None) return 0;
    item->address = PyLong_AsVoidPtr(address);
    if (PyErr_Occurred()) return -1;
    PyObject *tensor = PyObject_CallNoArgs(item->expected);
    bool fits = tensor && is_at(tensor, item->address);
    Py_XDECREF(tensor);
    PyErr_Clear();
    if (!fits) PyErr_SetString(PyExc_NotImplementedError, "no shortcut for such weights");
    return fits ? 0 : -1;
}

int held_add(struct held *held, Py_ssize_t at, PyObject *description) {
    struct held_item *more = realloc(held->item, (size_t)(held->n + 1) * sizeof *more);
    if (!more) return PyErr_NoMemory(), -1;
    held->item = more;
    more[held->n].at = at;
    if (hold(&more[held->n], description)) return -1;
    held->n++;
    return 0;
}

void held_clear(struct held *held) {
    free(held->item);
    held->item = NULL;
    held->n = 0;
}

static bool is_given(const struct held_item *item, PyObject *arg) {
    if (!item->address) return is_number(arg, item->expected);
    PyObject *tensor = PyObject_CallNoArgs(item->expected);
    Py_XDECREF(tensor); /* the arguments hold it, if it is the right one */
    return tensor && tensor == arg;
}

bool held_given(const struct held *held, PyObject *args) {
    for (Py_ssize_t i = 0; i < held->n; i++)
        if (!is_given(&held->item[i], PyTuple_GetItem(args, held->item[i].at))) return false;
    return true;
}

bool held_in_place(const struct held *held, PyObject *args) {
    for (Py_ssize_t i = 0; i < held->n; i++) {
        const struct held_item *item = &held->item[i];
        if (item->address && !is_at(PyTuple_GetItem(args, item->at), item->address)) return false;
    }
    return true;
}

/*
 * What a model reads besides its inputs, its parameters and its modules' attributes, for sol._core.Guard.
 *
 * A slot is a place in a Python object that held a value when the model was captured: an entry of a dict, the items of a
 * list, an attribute, a whole set. It has changed when another object is there, unless both are equal and of a simple type:
 * numbers and strings are often replaced by equal ones. The objects in which slots lie are held, so that no other object can
 * get their address.
 */
#include "_core.h"

/* A slot's kind is the first part of the tuple that describes it. */
enum slot_kind {
    SLOT_ENTRY,     /* (kind, dict, key, value; Ellipsis: no such key) */
    SLOT_ITEMS,     /* (kind, list, None, tuple of its items) */
    SLOT_ATTRIBUTE, /* (kind, object, name, value; Ellipsis: no such attribute) */
    SLOT_VALUE,     /* (kind, object, None, an equal object) */
};

struct slot {
    enum slot_kind kind;
    PyObject *where, *key, *expected; /* borrowed from the tuple */
    uint64_t tag; /* of the dict of an entry, when it was last found as before */
};

/* Are both the same number or text? 0.0 and -0.0 are not, and a NaN is itself. */
static bool is_equal_simple(PyObject *a, PyObject *b) {
    PyTypeObject *type = Py_TYPE(a);
    if (type != Py_TYPE(b)) return false;
    if (type == &PyFloat_Type) {
        double x = PyFloat_AsDouble(a), y = PyFloat_AsDouble(b);
        return !memcmp(&x, &y, sizeof x);
    }
    bool is_simple = type == &PyLong_Type || type == &PyUnicode_Type || type == &PyBytes_Type;
    return is_simple && PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

static bool is_same(PyObject *a, PyObject *b) { return a == b || is_equal_simple(a, b); }

/* `value` is what is there now, or NULL. */
static bool is_expected(PyObject *value, PyObject *expected) {
    return value ? is_same(value, expected) : expected == Py_Ellipsis;
}

static bool entry_changed(struct slot *slot) {
    uint64_t tag = dict_tag(slot->where);
    if (tag && tag == slot->tag) return false;
    if (!is_expected(PyDict_GetItemWithError(slot->where, slot->key), slot->expected)) return true;
    slot->tag = tag;
    return false;
}

static bool items_changed(const struct slot *slot) {
    Py_ssize_t n = PyList_Size(slot->where);
    if (n != PyTuple_Size(slot->expected)) return true;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!is_same(PyList_GetItem(slot->where, i), PyTuple_GetItem(slot->expected, i)))
            return true;
    return false;
}

static bool attribute_changed(const struct slot *slot) {
    PyObject *value = PyObject_GetAttr(slot->where, slot->key);
    bool is_as_before = is_expected(value, slot->expected);
    Py_XDECREF(value);
    return !is_as_before;
}

static bool slot_changed(struct slot *slot) {
    switch (slot->kind) {
    case SLOT_ENTRY: return entry_changed(slot);
    case SLOT_ITEMS: return items_changed(slot);
    case SLOT_ATTRIBUTE: return attribute_changed(slot);
    case SLOT_VALUE: return PyObject_RichCompareBool(slot->where, slot->expected, Py_EQ) != 1;
    }
    return true;
}

/* Whether the objects are of the types that the kind needs. */
static bool is_slot(const struct slot *slot) {
    switch (slot->kind) {
    case SLOT_ENTRY: return PyDict_Check(slot->where);
    case SLOT_ITEMS: return PyList_Check(slot->where) && PyTuple_Check(slot->expected);
    case SLOT_ATTRIBUTE: return PyUnicode_Check(slot->key);
    case SLOT_VALUE: return true;
    }
    return false;
}

static int parse_slot(struct slot *slot, PyObject *description) {
    int kind;
    if (!PyArg_ParseTuple(description, "iOOO:slot", &kind, &slot->where, &slot->key,
                          &slot->expected))
        return -1;
    slot->kind = (enum slot_kind)kind;
    if (is_slot(slot)) return 0;
    PyErr_SetString(PyExc_TypeError, "a slot's kind and objects do not belong together");
    return -1;
}

int slots_init(struct slots *slots, PyObject *descriptions) {
    slots->descriptions = PySequence_Tuple(descriptions);
    if (!slots->descriptions) return -1;
    Py_ssize_t n = PyTuple_Size(slots->descriptions);
    slots->at = calloc((size_t)n + 1, sizeof *slots->at);
    if (!slots->at) return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < n; i++)
        if (parse_slot(&slots->at[i], PyTuple_GetItem(slots->descriptions, i))) return -1;
    slots->n = n;
    return 0;
}

void slots_clear(struct slots *slots) {
    slots->n = 0;
    free(slots->at);
    slots->at = NULL;
    Py_CLEAR(slots->descriptions);
}

void slots_fetch(const struct slots *slots) {
    for (Py_ssize_t i = 0; i < slots->n; i++) __builtin_prefetch(slots->at[i].where);
}

/* What goes wrong in an attribute's or a comparison's own code counts as a change. */
bool slots_changed(struct slots *slots) {
    bool changed = false;
    for (Py_ssize_t i = 0; i < slots->n && !changed; i++) changed = slot_changed(&slots->at[i]);
    if (PyErr_Occurred()) PyErr_Clear(); /* also a missing attribute that is expected to be */
    return changed;
}

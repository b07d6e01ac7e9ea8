/*
 * The slots of a sol._core.Guard: Python state that a forward reads besides its inputs, parameters and attributes of modules.
 *
 *   reads.py -> Guard(..., slots) -> slots_init; at each call: guard_changed -> slots_changed
 *
 * A slot is a place in a Python object, with the value that it had at the capture: an entry of a dict, the items of a list,
 * an attribute, a whole set. A slot has changed if it holds another object, unless both objects are equal numbers or strings,
 * as these are often replaced by equal ones. The guard holds the objects, so that no new object can get their addresses.
 */
#include "_core.h"

/* The first item of the tuple that describes a slot. python/sol/pytorch/reads.py has the same numbers. */
enum slot_kind {
    SLOT_ENTRY,     /* (kind, dict, key, value; Ellipsis: no such key) */
    SLOT_ITEMS,     /* (kind, list, None, tuple of its items) */
    SLOT_ATTRIBUTE, /* (kind, object, name, value; Ellipsis: no such attribute) */
    SLOT_VALUE,     /* (kind, object, None, an equal object): compared by == */
};

struct slot {
    enum slot_kind kind;
    PyObject *where, *key, *expected; /* borrowed from the tuple */
    uint64_t tag; /* SLOT_ENTRY: the dict's version tag at the last check that found no change */
};

/* Whether both are equal ints, floats, strings or bytes of one type. Floats are equal if their bits are. */
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

/* `value`: the slot's current value, or NULL if there is none. */
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

/* Whether the objects of a slot have the types that its kind needs. */
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

/* An exception in the code of an attribute or a comparison counts as a change. */
bool slots_changed(struct slots *slots) {
    bool changed = false;
    for (Py_ssize_t i = 0; i < slots->n && !changed; i++) changed = slot_changed(&slots->at[i]);
    if (PyErr_Occurred()) PyErr_Clear(); /* also AttributeError of an attribute expected missing */
    return changed;
}

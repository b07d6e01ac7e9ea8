/*
 * sol._core.Guard: detects whether a module's dicts or tensors have changed since the guard was made.
 *
 *   Shortcut.run or Engine.__call__ -> guard_changed -> dicts, slots, tensors
 *
 * A tensor's address and version are not sufficient: after a tensor is freed, a new one may have the same address and
 * version, and writes through `.data` or NumPy do not count the version up. So the guard checks
 *
 *   dicts    that they hold the same objects under the same keys, in the same order. The guard holds references, so no new
 *            object can get the address of an old one. The dicts are __dict__, _parameters, hooks, ... of modules.
 *   slots    that other Python state that the forward reads has its expected values (_slots.c).
 *   tensors  that address and version are the same, and the value of one sampled element, another one at each call.
 *
 * Invariant: once a guard has reported a change, it always reports that change. Its owner then makes a new guard.
 */
#include "_core.h"

enum { N_SAMPLES = 8, MAX_ITEM = 16, MAX_HINTS = 4, HINT_LINES = 4, AHEAD = 8 };

struct watched_tensor {
    PyObject *tensor;   /* borrowed from guard->tensors */
    PyObject *data_ptr; /* the bound method; owned */
    bool is_viewed;     /* view_tensor returns the same address as data_ptr, and is faster */
    descrgetfunc get_version;
    PyObject *version_of; /* the descriptor `_version` of the tensor's class; owned */
    char *address;
    int64_t version;           /* -1: this tensor has no version counter */
    int64_t item_size;         /* bytes of one element */
    int64_t offset[N_SAMPLES]; /* bytes; -1: nothing to sample */
    char sample[N_SAMPLES][MAX_ITEM];
    /* Addresses of the framework's objects for this tensor, or NULL: only prefetched, never read. */
    const char *hint[MAX_HINTS];
};

struct guard_object {
    PyObject_HEAD PyObject *dicts; /* tuple of dicts */
    PyObject *items;               /* list: key, value, key, value, ... of all dicts */
    PyObject *tensors;             /* tuple */
    Py_ssize_t n_dicts;
    Py_ssize_t *size; /* of each dict */
    uint64_t *tag;    /* of each dict: its version tag at the last check that found no change */
    /* The objects of `dicts` and `items`, borrowed: reading these arrays is faster than the accessors of tuple and list. */
    PyObject **dict;
    PyObject **item;
    struct watched_tensor *watched;
    struct slots slots;
    unsigned turn; /* number of checks: selects the sampled element */
    int changed; /* the change that was found, or 0. A later check samples another element and may miss it. */
};

static int guard_traverse(PyObject *self, visitproc visit, void *arg) {
    struct guard_object *guard = (struct guard_object *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(guard->dicts);
    Py_VISIT(guard->items);
    Py_VISIT(guard->tensors);
    Py_VISIT(guard->slots.descriptions);
    Py_ssize_t n = guard->watched ? PyTuple_Size(guard->tensors) : 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_VISIT(guard->watched[i].data_ptr);
        Py_VISIT(guard->watched[i].version_of);
    }
    return 0;
}

static int guard_clear(PyObject *self) {
    struct guard_object *guard = (struct guard_object *)self;
    Py_ssize_t n = guard->watched ? PyTuple_Size(guard->tensors) : 0;
    struct watched_tensor *watched = guard->watched;
    guard->watched = NULL;
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_XDECREF(watched[i].data_ptr);
        Py_XDECREF(watched[i].version_of);
    }
    free(watched);
    guard->n_dicts = 0;
    slots_clear(&guard->slots);
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
    free(guard->tag);
    free(guard->dict);
    free(guard->item);
    free_object(self);
}

/*
 * Up to Python 3.11 each dict has a version tag (PEP 509): a number that is unique in the process for the dict's contents. If
 * the tag is the same, the items need no check. The tag is the word after the dict's size in Python 3.10 and 3.11, the two
 * supported versions that have tags; guard_use_tags verifies that once.
 */
static bool has_tags;

uint64_t dict_tag(PyObject *dict) {
    enum { TAG = 3 };
    uint64_t tag = 0;
    if (has_tags) memcpy(&tag, (const char *)dict + TAG * sizeof(void *), sizeof tag);
    return tag;
}

int guard_use_tags(void) {
    if (sizeof(void *) != 8) return 0;
    if (strncmp(Py_GetVersion(), "3.10.", 5) && strncmp(Py_GetVersion(), "3.11.", 5)) return 0;
    PyObject *dict = PyDict_New();
    if (!dict) return -1;
    has_tags = true;
    uint64_t empty = dict_tag(dict);
    int failed = PyDict_SetItemString(dict, "key", Py_None);
    uint64_t none = dict_tag(dict), again = dict_tag(dict);
    failed = failed || PyDict_SetItemString(dict, "key", Py_True);
    uint64_t changed = dict_tag(dict);
    has_tags = !failed && none == again && none > empty && changed > none;
    Py_DECREF(dict);
    return failed;
}

/* Appends the keys and values of a dict to the list `items`; -1 with an exception set. */
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

/* Stores the items, sizes and tags of all dicts; -1 with an exception set. */
static int guard_note_dicts(struct guard_object *guard) {
    Py_ssize_t n = PyTuple_Size(guard->dicts);
    guard->items = PyList_New(0);
    guard->size = calloc((size_t)n + 1, sizeof *guard->size);
    guard->dict = calloc((size_t)n + 1, sizeof *guard->dict);
    guard->tag = calloc((size_t)n + 1, sizeof *guard->tag);
    if (!guard->items || !guard->size || !guard->dict || !guard->tag) return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        guard->dict[i] = PyTuple_GetItem(guard->dicts, i);
        if (note_dict(guard->dict[i], guard->items)) return -1;
        guard->size[i] = PyDict_Size(guard->dict[i]);
        guard->tag[i] = dict_tag(guard->dict[i]);
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

/* Prefetches dicts that will be checked soon: the dict AHEAD places after `i`, and the tables of dict `i`. After a network's
 * run the module is no longer in the caches, and each check is a chain of dependent reads; prefetches let many of these reads
 * overlap. Words 4 and 5 of a dict are assumed to be the addresses of its tables. They exist in all versions of CPython and
 * are only prefetched, never read, so a wrong assumption costs only time. */
static ALWAYS_INLINE void fetch_dict_early(const struct guard_object *guard, Py_ssize_t i) {
    enum { TABLES = 4, HEADER = 64, ENTRY = 16 };
    if (i + AHEAD < guard->n_dicts) fetch_lines((const char *)guard->dict[i + AHEAD], 64);
    if (has_tags || i < 0 || i >= guard->n_dicts || !guard->size[i]) return;
    const char *table[2];
    memcpy(table, (const char *)guard->dict[i] + TABLES * sizeof(void *), sizeof table);
    fetch_lines(table[0], HEADER + ENTRY * guard->size[i]);
    if (table[1]) fetch_lines(table[1], (Py_ssize_t)sizeof(void *) * guard->size[i]);
}

/* Whether a dict has other items than the stored ones (key, value, key, value, ...), or another order. */
static bool dict_changed(PyObject *dict, Py_ssize_t size, PyObject *const *item) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    if (PyDict_Size(dict) != size) return true;
    for (; PyDict_Next(dict, &at, &key, &value); item += 2)
        if (item[0] != key || item[1] != value) return true;
    return false;
}

static bool guard_dicts_changed(struct guard_object *guard) {
    PyObject *const *item = guard->item;
    for (Py_ssize_t i = 0; i < AHEAD; i++) fetch_dict_early(guard, i - AHEAD);
    for (Py_ssize_t i = 0; i < AHEAD; i++) fetch_dict_early(guard, i);
    for (Py_ssize_t i = 0; i < guard->n_dicts; item += 2 * guard->size[i], i++) {
        uint64_t tag = dict_tag(guard->dict[i]);
        fetch_dict_early(guard, i + AHEAD);
        if (has_tags && tag == guard->tag[i]) continue;
        if (dict_changed(guard->dict[i], guard->size[i], item)) return true;
        guard->tag[i] = tag;
    }
    return false;
}

static int view_address(const struct watched_tensor *w, char **address) {
    struct dl_tensor view;
    if (view_tensor(w->tensor, &view)) return -1;
    *address = (char *)view.data + view.byte_offset;
    return 0;
}

/* Reads the tensor's current address; -1 with an exception set. */
static int read_address(const struct watched_tensor *w, char **address) {
    if (w->is_viewed) return view_address(w, address);
    PyObject *result = PyObject_CallNoArgs(w->data_ptr);
    if (!result) return -1;
    *address = PyLong_AsVoidPtr(result);
    Py_DECREF(result);
    return PyErr_Occurred() ? -1 : 0;
}

static int read_version(const struct watched_tensor *w, int64_t *version) {
    PyObject *result = w->get_version(w->version_of, w->tensor, (PyObject *)Py_TYPE(w->tensor));
    if (!result) return -1;
    *version = PyLong_AsLongLong(result);
    Py_DECREF(result);
    return *version == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Whether view_tensor returns the same address as data_ptr. */
static bool can_view(const struct watched_tensor *w) {
    char *address;
    if (view_tensor && !view_address(w, &address)) return address == w->address;
    PyErr_Clear();
    return false;
}

/* Reads the version and the descriptor for it. Tensors made under inference_mode have no version, only samples. */
static void watch_version(struct watched_tensor *w) {
    w->version = -1;
    w->version_of = PyObject_GetAttrString((PyObject *)Py_TYPE(w->tensor), "_version");
    if (w->version_of) w->get_version = PyType_GetSlot(Py_TYPE(w->version_of), Py_tp_descr_get);
    if (!w->get_version || read_version(w, &w->version)) {
        PyErr_Clear();
        w->version = -1;
    }
}

static int get_hints(struct watched_tensor *w, PyObject *hints) {
    Py_ssize_t n = PyTuple_Size(hints);
    if (n < 0) return -1;
    for (Py_ssize_t i = 0; i < n && i < MAX_HINTS; i++)
        w->hint[i] = PyLong_AsVoidPtr(PyTuple_GetItem(hints, i));
    return PyErr_Occurred() ? -1 : 0;
}

/* Fills *w for `tensor`. `place` is (bytes of one element, byte offsets of N_SAMPLES elements, addresses to prefetch).
 * Without offsets, only address and version are checked. -1 with an exception set. */
static int watch_tensor(struct watched_tensor *w, PyObject *tensor, PyObject *place) {
    PyObject *offsets, *hints;
    long long item_size;
    Py_ssize_t n;
    w->tensor = tensor;
    w->data_ptr = PyObject_GetAttrString(tensor, "data_ptr");
    if (!w->data_ptr || read_address(w, &w->address)) return -1;
    w->is_viewed = can_view(w);
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
    watch_version(w);
    return 0;
}

static PyObject *guard_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *dicts, *tensors, *places, *slots;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OOOO:Guard", &dicts, &tensors, &places, &slots)) return NULL;
    PyObject *self = new_object(type);
    if (!self) return NULL;
    struct guard_object *guard = (struct guard_object *)self;
    guard->dicts = PySequence_Tuple(dicts);
    guard->tensors = PySequence_Tuple(tensors);
    places = PySequence_Tuple(places);
    if (!guard->dicts || !guard->tensors || !places || guard_note_dicts(guard) ||
        slots_init(&guard->slots, slots))
        goto failed;
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

/* 1: changed, 0: not changed, -1: with an exception set. `turn` selects the sampled element. */
static int tensor_changed(const struct watched_tensor *w, unsigned turn) {
    char *address;
    int64_t version = -1;
    if (read_address(w, &address)) {
        if (!w->is_viewed) return -1;
        PyErr_Clear(); /* the tensor has changed so that DLPack does not support it */
        return 1;
    }
    if (w->version >= 0 && read_version(w, &version)) return -1;
    if (address != w->address || version != w->version) return 1;
    if (w->offset[turn] < 0) return 0;
    return memcmp(address + w->offset[turn], w->sample[turn], (size_t)w->item_size) != 0;
}

/* Prefetches what the check of a tensor reads, so that the cache misses of many tensors overlap (see fetch_dict_early). */
static ALWAYS_INLINE void fetch_early(const struct watched_tensor *w, unsigned turn) {
    for (int i = 0; i < MAX_HINTS && w->hint[i]; i++)
        for (int line = 0; line < HINT_LINES; line++) __builtin_prefetch(w->hint[i] + 64 * line);
    if (!w->is_viewed) __builtin_prefetch(w->data_ptr);
    if (w->offset[turn] >= 0) __builtin_prefetch(w->address + w->offset[turn]);
}

static int guard_tensors_changed(struct guard_object *guard) {
    unsigned turn = guard->turn++ % N_SAMPLES;
    Py_ssize_t n = PyTuple_Size(guard->tensors);
    for (Py_ssize_t i = 0; i < n && i < AHEAD; i++) fetch_early(&guard->watched[i], turn);
    for (Py_ssize_t i = 0; i < n; i++) {
        if (i + AHEAD < n) fetch_early(&guard->watched[i + AHEAD], turn);
        int changed = tensor_changed(&guard->watched[i], turn);
        if (changed) return changed < 0 ? -1 : 2;
    }
    return 0;
}

int guard_changed(PyObject *self) {
    struct guard_object *guard = (struct guard_object *)self;
    if (guard->changed || !guard->watched) return guard->changed ? guard->changed : 1;
    slots_fetch(&guard->slots);
    int changed = guard_dicts_changed(guard) || slots_changed(&guard->slots)
                      ? 1
                      : guard_tensors_changed(guard);
    if (changed > 0) guard->changed = changed;
    return changed;
}

static PyObject *guard_check(PyObject *self, PyObject *none) {
    (void)none;
    int changed = guard_changed(self);
    return changed < 0 ? NULL : PyLong_FromLong(changed);
}

static PyMethodDef guard_methods[] = {
    {"check", guard_check, METH_NOARGS,
     "0: as before, 1: a dict or slot changed, 2: a tensor changed."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot guard_slots[] = {
    {Py_tp_doc,
     "Guard(dicts, tensors, places, slots); a place is (element size, 8 byte offsets to sample or "
     "none, addresses to fetch early), a slot is (kind, object, key, value)."},
    {Py_tp_new, guard_new},
    {Py_tp_dealloc, guard_dealloc},
    {Py_tp_traverse, guard_traverse},
    {Py_tp_clear, guard_clear},
    {Py_tp_methods, guard_methods},
    {0, NULL},
};
PyType_Spec guard_spec = {"sol._core.Guard", sizeof(struct guard_object), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, guard_slots};

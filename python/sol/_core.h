/*
 * What the files of the extension share: _core.c (the module, conversions), _model.c, _program.c, _guard.c,
 * _slots.c, _deploy.c, _shortcut.c. Each type has a file, a spec and, once the module is there, a type object.
 */
#ifndef SOL_CORE_H
#define SOL_CORE_H
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sol/deploy.h>
#include <sol/onnx.h>
#include <sol/sol.h>
#include <stdlib.h>
#include <string.h>

extern PyTypeObject *model_type, *program_type, *weights_type, *guard_type, *shortcut_type,
    *session_type;
extern PyType_Spec model_spec, program_spec, weights_spec, guard_spec, shortcut_spec, session_spec;
extern const char *const dtype_names[]; /* by enum sol_dtype */

/* ---- Errors and conversions ---- */

PyObject *raise_status(enum sol_status status); /* NULL */
/* A malloc'ed text as str; NULL is out of memory. */
PyObject *take_text(char *text);
PyObject *new_name(const char *name);
/* -1 with ValueError when there is no such dtype. */
int find_dtype(const char *name);
/* A malloc'ed array of the integers in `object`, a tuple or list; NULL with an exception set. */
int64_t *get_ints(PyObject *object, Py_ssize_t *n);
/* As get_ints, for addresses, of which there must be `n`. `what` stands in the message. */
void **get_addresses(PyObject *object, int n, const char *what);
/* Dims as a tuple; INT64_MIN (a formula of symbols) becomes None. */
PyObject *new_shape(int rank, const int64_t *dim);
/* Calls the Python function `user`: for compiles. */
void report_progress(void *user, int done, int total, const char *what);
PyObject *model_deploy(PyObject *model, PyObject *args, PyObject *kwargs);
/* Appends to a list, taking over `item`; -1 with an exception set. */
int append(PyObject *list, PyObject *item);
/* Objects of heap types, which hold a reference to their type. */
PyObject *new_object(PyTypeObject *type);
void free_object(PyObject *self);

/* ---- Objects ---- */

/* `onnx`: the file that the model was read from, which owns it; NULL for other models. */
struct model_object {
    PyObject_HEAD struct sol_model *model;
    struct sol_onnx *onnx;
};

/* They take over what they are given. */
PyObject *wrap_model(PyTypeObject *type, struct sol_model *model);
PyObject *wrap_onnx(struct sol_onnx *onnx);
PyObject *wrap_program(struct sol_program *program);
PyObject *core_open_session(PyObject *module, PyObject *args);

struct program_object {
    PyObject_HEAD struct sol_program *program;
};

/* `keep` holds the tensors whose memory the weights may use in place. */
struct weights_object {
    PyObject_HEAD struct sol_weights *weights;
    PyObject *program, *keep;
};

/* 0: as before, 1: a dict or slot changed, 2: a tensor changed, -1 with an exception set. */
int guard_changed(PyObject *guard);
/* A number of the dict's contents, which no other contents had before; 0 where Python has none. */
uint64_t dict_tag(PyObject *dict);
int guard_use_tags(void); /* once, at the start; -1 with an exception set */

/* Places in Python objects with the values that they held (_slots.c). */
struct slots {
    PyObject *descriptions; /* tuple */
    struct slot *at;
    Py_ssize_t n;
};

/* The slots of a sequence of tuples; -1 with an exception set, and then slots_clear is still to be called. */
int slots_init(struct slots *slots, PyObject *descriptions);
void slots_clear(struct slots *slots);
void slots_fetch(
    const struct slots *slots); /* lets the caches fetch what slots_changed will read */
bool slots_changed(struct slots *slots);

/* ---- Tensors of any framework ---- */

/* DLPack's view of a tensor's memory; strides count elements. */
struct dl_tensor {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides; /* the tensor's own memory: valid as long as it is not touched */
    uint64_t byte_offset;
};
enum { DL_CPU = 1 };

/* Asks the framework; -1 with an exception set. NULL until Python has handed over its table of functions, which is DLPack's
 * capsule "dlpack_exchange_api". */
extern int (*view_tensor)(void *tensor, struct dl_tensor *out);
PyObject *core_use_tensors(PyObject *module, PyObject *capsule);

/* Inlined before the compiler can take a function that only prefetches for one without effect, and drop it. */
#define ALWAYS_INLINE inline __attribute__((always_inline))

#endif

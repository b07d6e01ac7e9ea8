/*
 * Declarations that the files of the extension share: _core.c (the module, conversions), _model.c, _host.c, _custom.c, _program.c,
 * _saved.c,
 * _session.c, _info.c, _guard.c, _slots.c, _deploy.c, _held.c, _shortcut.c. Each Python type has a file, a spec, and a type object, which PyInit__core makes.
 *
 * As in CPython's API, a function that returns an object returns a new reference, or NULL with an exception set.
 */
#ifndef SOL_CORE_H
#define SOL_CORE_H
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sol/deploy.h>
#include <sol/onnx.h>
#include <sol/queue.h>
#include <sol/sol.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern PyTypeObject *model_type, *program_type, *weights_type, *guard_type, *shortcut_type,
    *session_type, *custom_type;
extern PyType_Spec custom_spec, model_spec, program_spec, weights_spec, guard_spec, shortcut_spec,
    session_spec;
extern const char *const dtype_names[]; /* by enum sol_dtype */

/* ---- Errors and conversions ---- */

/* Raises the exception of a status, with sol_error() as its message; an exception that a host node has raised stays as it is.
 * Returns NULL. */
PyObject *raise_status(enum sol_status status);
/* Converts a malloc'ed text to a str, and frees it. NULL raises MemoryError. */
PyObject *take_text(char *text);
/* Converts a name of any bytes to a str; bytes that are not UTF-8 are replaced. */
PyObject *new_name(const char *name);
/* Returns the enum sol_dtype of a name, or -1 with ValueError set. */
int find_dtype(const char *name);
/* Returns the integers of a Python sequence as a malloc'ed array, and their number in *n; NULL with an exception set. */
int64_t *get_ints(PyObject *object, Py_ssize_t *n);
/* As get_ints, for tensors of a model. */
sol_tensor *get_tensors(PyObject *object, Py_ssize_t *n);
/* As get_ints, for a sequence of exactly `n` addresses. `what` names them in the message of the ValueError. */
void **get_addresses(PyObject *object, int n, const char *what);
/* Returns dims as a tuple; INT64_MIN (a formula of symbols) becomes None. */
PyObject *new_shape(int rank, const int64_t *dim);
/* A progress callback of libsol: calls the Python function `user` with the GIL. */
void report_progress(void *user, int done, int total, const char *what);
PyObject *model_deploy(PyObject *model, PyObject *args, PyObject *kwargs);
PyObject *model_host(PyObject *model, PyObject *args);
PyObject *model_host_layer(PyObject *model, PyObject *args);
PyObject *model_custom(PyObject *model, PyObject *args);
/* Appends `item`, and drops the caller's reference to it. `item` may be NULL. Returns -1 with an exception set. */
int append(PyObject *list, PyObject *item);
/* A visitor of profiles: appends a row to the list `list`. The GIL must be held. */
void append_step(void *list, const struct sol_step_time *step);
/* Create and free an object of a heap type, which holds a reference to its type. */
PyObject *new_object(PyTypeObject *type);
void free_object(PyObject *self);

/* ---- Objects ---- */

/* `onnx`: the ONNX file that owns the model; NULL for other models, which the object owns. */
struct model_object {
    PyObject_HEAD struct sol_model *model;
    struct sol_onnx *onnx;
};

/* The wrap_ functions take ownership of their argument, also when they fail. */
PyObject *wrap_model(PyTypeObject *type, struct sol_model *model);
PyObject *wrap_onnx(struct sol_onnx *onnx);
PyObject *wrap_program(struct sol_program *program);
PyObject *core_open_session(PyObject *module, PyObject *args);
PyObject *core_read_info(PyObject *module, PyObject *source);

/* `saved`: memory between forward and backward calls; `outputs`: of each output (take_output). NULL until the first one. */
struct program_object {
    PyObject_HEAD struct sol_program *program;
    struct saved_list *saved, **outputs;
};

/* `weights` is NULL during an update, which runs in the process `packer`, and after one that failed. `params`: the addresses of the last update. `keep`: a Python object that owns the
 * tensors whose memory the weights may use in place. */
struct weights_object {
    PyObject_HEAD struct sol_weights *weights;
    void **params;
    pid_t packer;
    PyObject *program, *keep;
};

/* The memory that a program's forward calls leave for its backward calls (_saved.c). */
struct saved_list;
struct dl_tensor;
void saved_list_release(struct saved_list *list); /* NULL is fine */
/* Returns a DLPack capsule of u8[size], or NULL with an exception set. Makes *list if it is NULL. The GIL must be held. */
PyObject *saved_list_take(struct saved_list **list, struct sol_program *program, size_t size);
/* The same with the type and the shape of `as`, which must not overflow. */
PyObject *saved_list_take_typed(struct saved_list **list, struct sol_program *program,
                                const struct dl_tensor *as);

/* Evaluates a guard. Returns 0: no change, 1: a dict or slot changed, 2: a tensor changed, -1: with an exception set. */
int guard_changed(PyObject *guard);
/* Returns the dict's version tag, which is unique for its contents; 0 if this Python has no such tags. */
uint64_t dict_tag(PyObject *dict);
/* Detects whether dicts have version tags. Called once, by PyInit__core. Returns -1 with an exception set. */
int guard_use_tags(void);

/* The slots of a guard: places in Python objects, with their expected values (_slots.c). */
struct slots {
    PyObject *descriptions; /* tuple */
    struct slot *at;
    Py_ssize_t n;
};

/* Fills `slots` from a sequence of tuples. Returns -1 with an exception set; then, too, the caller must call slots_clear. */
int slots_init(struct slots *slots, PyObject *descriptions);
void slots_clear(struct slots *slots);
/* Prefetches the objects that slots_changed will read. */
void slots_fetch(const struct slots *slots);
/* Whether any slot has another value than expected. Never leaves an exception set. */
bool slots_changed(struct slots *slots);

/* The held arguments of a shortcut: tensors and numbers that each call must pass again (_held.c). Zeros: none. */
struct held {
    struct held_item *item;
    Py_ssize_t n;
};

/* Adds the argument with index `at`; `description`: (weak reference to the tensor, address of its memory), or (number, None).
 * view_tensor must not be NULL. Returns -1 with an exception set; then, too, the caller must call held_clear. */
int held_add(struct held *held, Py_ssize_t at, PyObject *description);
void held_clear(struct held *held);
/* Whether the held arguments are the same tensors, and equal numbers. `args`: a tuple with all arguments. May leave an exception set. */
bool held_given(const struct held *held, PyObject *args);
/* Whether the held arguments, for which held_given was true, lie in the same memory. May leave an exception set. */
bool held_in_place(const struct held *held, PyObject *args);

/* ---- Tensors of any framework ---- */

/* DLTensor of DLPack: a view of a tensor's memory. Strides are in elements, `byte_offset` in bytes. */
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
    int64_t *shape, *strides; /* owned by the tensor: valid until the tensor changes */
    uint64_t byte_offset;
};
enum { DL_CPU = 1 };
/* DLManagedTensor of DLPack, with its dims behind it. Who takes the tensor calls `release`, perhaps on another thread and without the
 * GIL. */
struct managed {
    struct dl_tensor tensor;
    void *context;
    void (*release)(struct managed *self);
    int64_t dim[SOL_MAX_RANK];
};
/* Returns a DLPack capsule, which releases the tensor if nobody takes it. If it fails, `managed` is released. */
PyObject *new_dl_capsule(struct managed *managed);
/* Sets the tensor's type to that of the name, such as "f32". Returns false if DLPack has no such type. */
bool find_dl_type(const char *name, struct dl_tensor *out);

/* The framework's function that fills *out for a tensor; returns -1 with an exception set. NULL until core_use_tensors has
 * got the framework's table of functions, the DLPack capsule "dlpack_exchange_api". */
extern int (*view_tensor)(void *tensor, struct dl_tensor *out);
/* sol._core.use_tensors(capsule): sets view_tensor. Returns whether the table has the supported version. */
PyObject *core_use_tensors(PyObject *module, PyObject *capsule);

/* For functions that only prefetch: if they were not inlined, the compiler could remove their calls as without effect. */
#define ALWAYS_INLINE inline __attribute__((always_inline))

#endif

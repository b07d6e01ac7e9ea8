"""Reads: the Python state that a forward reads besides its inputs, parameters and modules, and that may change later.

    audit.py -> Walker.walk(source) -> Reads -> the guard (watch.py, python/sol/_slots.c)

Dynamo names each place that a forward reads as a source, such as L['model'].cfg['k']. A Walker follows a source from its
root and collects what the guard must check. STEPS and WATCHES list all supported sources and types. If a forward reads
anything else, PyTorch runs the model. The guard checks

    of a container                             all its items: Dynamo does not name a key that the forward did not find
    of a user's object or class                all its attributes
    of a Python module or a library's class    only the names that were read: others change for unrelated reasons
"""

import builtins
import collections
import contextlib
import functools
import gc
import inspect
import re
import sys
import types
import weakref

import torch

# The slot kinds of `enum slot_kind` in python/sol/_slots.c. ABSENT stands for a missing key or attribute.
ENTRY, ITEMS, ATTRIBUTE, VALUE = range(4)
ABSENT = ...

MAX_ITEMS = 10_000

# Types of immutable objects: the guard compares only their identity.
FIXED = (
    int, float, complex, str, bytes, bool, type(None), type(...), type(NotImplemented), range, slice, torch.dtype,
    torch.device, torch.layout, torch.memory_format, torch.Size, types.CodeType, types.BuiltinFunctionType,
    types.WrapperDescriptorType, types.MethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.MethodWrapperType, types.ClassMethodDescriptorType, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
    weakref.ReferenceType,
)  # fmt: skip

# Functions that return state of the process. If a forward calls one, each call of the model compares its result.
QUESTIONS = {
    torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.get_default_dtype,
    torch.are_deterministic_algorithms_enabled, torch.is_deterministic_algorithms_warn_only_enabled,
}  # fmt: skip

# Types of objects that a copy of a model shares with the original.
SHARED = tuple, type, types.ModuleType, types.MappingProxyType, types.FunctionType, types.MethodType

LIBRARIES = sys.stdlib_module_names | {"torch"}


class Unwatchable(Exception):
    """A forward reads something whose changes the guard cannot detect. The message names it."""


class Order:
    """The order of an OrderedDict's keys, for a slot of the kind VALUE: equal to a tuple of the keys in that order.

    move_to_end changes the order, but no entry that the guard compares.
    """

    def __init__(self, keys):
        self._keys = keys

    def __eq__(self, expected):
        return tuple(self._keys) == expected


class Reads:
    """The Python state that a forward reads.

    ``dicts``, ``slots``: what the guard checks. ``tensors``: tensors outside of the model. ``attributes``: {(id of a module,
    name)} of the modules' attributes that are read, or None: all. ``questions``: [(function, result)], of QUESTIONS.
    ``is_of_objects``: a deep copy of the model would read copies of some of these objects. ``asks_kinds``: the result may
    depend on the inputs' classes, or on whether two inputs are the same object. ``asked_attributes``: names; the forward asks whether
    an input has such an attribute. ``updates``, ``kept``: names of the model's tensors that SOL's calls write, and of those that they
    only read.
    """

    def __init__(self):
        self.dicts, self.slots, self.tensors, self.questions = [], [], [], []
        self.attributes = set()
        self.is_of_objects = False
        self.asks_kinds = False
        self.asked_attributes = set()
        self.updates, self.kept = [], set()
        self._entries = []

    def freeze(self):
        """Copies the current contents of all dicts, for ``has_changed``."""
        self._entries = [_copy_stored(x) for x in self.dicts]

    def has_changed(self):
        """Whether any value has changed. The guard compares most values by identity, so it also reports equal new objects."""
        return not (
            all(map(_is_same_dict, self.dicts, self._entries)) and all(map(_holds, self.slots))
        )

    def find_conflict(self, leaves):
        """Returns a reason if PyTorch's state, or the classes or identity of a call's inputs, may give another result than in
        the capture; or None."""
        if self.asks_kinds and not _are_plain(leaves):
            return "its forward asks for its inputs' types or whether they are the same"
        for leaf in leaves if self.asked_attributes else ():
            if not self.asked_attributes.isdisjoint(getattr(leaf, "__dict__", ())):
                return "its forward asks for attributes that an input has"
        for function, answer in self.questions:
            if function() != answer:
                return f"its forward asks torch.{function.__name__}(), which was {answer} when it was captured"
        return None


def _are_plain(leaves):
    """Whether all tensors are of the class torch.Tensor itself, and none occurs twice."""
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    return len({id(x) for x in tensors}) == len(tensors) and {type(x) for x in tensors} <= {
        torch.Tensor
    }


def _copy_stored(given):
    """Returns a dict of the values that a mapping stores: a subclass of dict may make a new one at each access."""
    if type(given) is dict or not isinstance(given, dict):
        return dict(given)
    kind = collections.OrderedDict if isinstance(given, collections.OrderedDict) else dict
    return dict(kind.items(given))


def _is_same_dict(now, before):
    """Whether a dict has the same keys and values in the same order, as a forward may iterate over it.

    It works on a copy, as another thread may write into the dict.
    """
    now = _copy_stored(now)
    return list(now) == list(before) and all(is_same(now[key], before[key]) for key in now)


def _holds(slot):
    kind, where, key, expected = slot
    if kind == ENTRY:
        return is_same(where.get(key, ABSENT), expected)
    if kind == ITEMS:
        return len(where) == len(expected) and all(map(is_same, list(where), expected))
    if kind == ATTRIBUTE:
        return is_same(getattr(where, key, ABSENT), expected)
    return where == expected


def is_same(a, b):
    """Compares numbers and strings by value (0.0 differs from -0.0), all other objects by identity."""
    simple = int, float, str, bytes
    return a is b or (type(a) is type(b) and type(a) in simple and repr(a) == repr(b))


class Walker:
    """Evaluates sources and collects what the guard must check in ``reads``.

    ``roots``: {name of a local variable: value}. ``scope``: function that returns the value of a global name, also of names
    that Dynamo has made for Python modules and for globals of other functions. ``known``: objects that the guard checks
    anyway.
    """

    def __init__(self, roots, scope, known):
        self.reads = Reads()
        self._roots = roots
        self._scope = scope
        self._values = {}  # source -> its value
        self._seen = {id(x): x for x in known}  # holds objects: no other object gets their ids
        self._namespaces = {id(vars(builtins))}
        self._classes = set()
        self._n_items = 0

    def walk(self, source):
        """Returns the value of ``source``, or ABSENT, and adds it to ``reads``. Raises Unwatchable."""
        if source not in self._values:
            self._values[source] = value = self._step(source)
            self.touch(value)
        return self._values[source]

    # ---- One step: the value of a source from the value of its base ----

    def _step(self, source):
        kind = type(source).__name__
        if kind == "LocalSource" and source.local_name in self._roots:
            return self._roots[source.local_name]
        if kind == "GlobalSource":
            return self._global(source.global_name)
        if kind == "ImportSource" and source.module_name in sys.modules:
            return self._entry(sys.modules, source.module_name)
        step = STEPS.get(kind)
        if step is None:
            raise Unwatchable(source_name(source))
        base = self.walk(source.base)
        return ABSENT if base is ABSENT else step(self, base, source)

    def _global(self, name):
        value = self._scope(name)
        if isinstance(value, dict):
            self._namespaces.add(id(value))
        return value

    def _attribute(self, base, source):
        name = source.member
        if isinstance(base, types.ModuleType):
            return self._entry(vars(base), name)
        if isinstance(base, type):
            return self._class_attribute(base, name)
        if isinstance(base, torch.nn.Module):
            self.reads.attributes.add((id(base), name))
        own = getattr(base, "__dict__", {})
        if name in own:
            is_function = isinstance(base, types.FunctionType)
            return self._entry(own, name) if is_function else own[name]
        if isinstance(base, torch.nn.Module):
            for group in ("_parameters", "_buffers", "_modules"):
                if name in own[group]:
                    return own[group][name]
        return self._inherited(base, name, source)

    def _inherited(self, base, name, source):
        """Returns an attribute that is found through the object's class: a method, a constant, or an entry of __slots__."""
        found = inspect.getattr_static(type(base), name, ABSENT)
        if inspect.ismemberdescriptor(found) or inspect.isgetsetdescriptor(found):
            value = getattr(base, name, ABSENT)
            self._add(ATTRIBUTE, base, name, value)
            return value
        if isinstance(found, (types.FunctionType, classmethod, staticmethod)):
            return found.__get__(base, type(base))
        if hasattr(type(found), "__get__") and not isinstance(found, FIXED):
            raise Unwatchable(source_name(source))
        return found

    def _class_attribute(self, cls, name):
        for base in cls.__mro__:
            if name in vars(base):
                return self._entry(class_dict(base), name)
        return getattr(cls, name, ABSENT)  # an attribute of the metaclass, such as __mro__

    def _item(self, base, source):
        index = source.index
        if isinstance(base, dict):
            return self._dict_item(base, source)
        if not isinstance(base, (list, tuple)) or not isinstance(index, int):
            raise Unwatchable(source_name(source))
        return base[index] if -len(base) <= index < len(base) else ABSENT

    def _dict_item(self, base, source):
        key = source.index
        if type(key).__name__ == "ConstDictKeySource":
            key = self.walk(key)
        if not isinstance(base, (dict, types.MappingProxyType)):
            raise Unwatchable(source_name(source))
        if id(base) in self._namespaces:
            return self._entry(base, key)
        # A subclass may override get; Dynamo reads the dict itself.
        return dict.get(base, key, ABSENT) if isinstance(base, dict) else base.get(key, ABSENT)

    def _key(self, base, source):
        keys = list(base)
        return keys[source.index] if source.index < len(keys) else ABSENT

    def _default(self, base, source):
        values = base.__kwdefaults__ if source.is_kw else base.__defaults__
        return values[source.idx_key]

    def _entry(self, namespace, key):
        """Returns an entry of a dict, and adds a slot for this entry only."""
        value = namespace.get(key, ABSENT)
        self._add(ENTRY, namespace, key, value)
        return value

    def _add(self, kind, where, key, expected):
        self.reads.slots.append((kind, where, key, expected))

    # ---- What the guard checks of a value ----

    def touch(self, value):
        """Adds everything of ``value`` to ``reads`` that can change while it stays the same object. Raises Unwatchable."""
        if isinstance(value, FIXED) or id(value) in self._seen or id(value) in self._namespaces:
            return
        self._seen[id(value)] = value
        self.reads.is_of_objects |= not isinstance(value, SHARED)
        for kinds, watch in WATCHES:
            if isinstance(value, kinds):
                return watch(self, value)
        self._touch_object(value)

    def _touch_nested(self, values):
        """Touches the containers among ``values``. Their container compares its items by identity, which misses changes inside
        of an item."""
        self._n_items += len(values)
        if self._n_items > MAX_ITEMS:
            raise Unwatchable("more Python objects than a call can look at")
        for value in values:
            if isinstance(value, (dict, list, tuple, set)) and not hasattr(value, "__array__"):
                self.touch(value)

    def _touch_dict(self, value):
        self.reads.dicts.append(value)
        if isinstance(value, collections.OrderedDict):
            self._add(VALUE, Order(value), None, tuple(value))
        self._touch_nested(list(value.values()))

    def _touch_list(self, value):
        self._add(ITEMS, value, None, tuple(value))
        self._touch_nested(value)

    def _touch_set(self, value):
        self._add(VALUE, value, None, value.copy())

    def _touch_tensor(self, value):
        self.reads.tensors.append(value)

    def _touch_module(self, value):
        """Touches an nn.Module that is not registered as a submodule, such as an item of a plain list."""
        self._touch_class(type(value))
        self._touch_dict(vars(value))
        tensors = (*value._parameters.values(), *value._buffers.values())
        for part in (*tensors, *value._modules.values()):
            self.touch(part)

    def _touch_class(self, cls):
        """Adds all attributes and bases of a user's class and of its metaclass; of a library's nn.Module only its forward."""
        for base in (*cls.__mro__, *type(cls).__mro__):
            if base in self._classes:
                continue
            self._classes.add(base)
            if base.__module__.partition(".")[0] not in LIBRARIES:
                self.reads.dicts.append(class_dict(base))
                self._add(ATTRIBUTE, base, "__mro__", base.__mro__)
            elif "forward" in vars(base) and issubclass(base, torch.nn.Module):
                self._entry(class_dict(base), "forward")

    def _touch_function(self, value):
        library = (value.__module__ or "").partition(".")[0]
        if library != "torch" and library in LIBRARIES:
            return self._touch_globals_of(value)
        if library in LIBRARIES:
            return
        for name in "__code__", "__defaults__", "__kwdefaults__":
            if getattr(value, name) is not None:
                self._add(ATTRIBUTE, value, name, getattr(value, name))
        self.touch(value.__defaults__)
        self.touch(value.__kwdefaults__)
        for cell in value.__closure__ or ():
            self.touch(cell)

    def _touch_globals_of(self, function):
        """Touches the globals that a function of the standard library uses.

        Such a function may read state that Dynamo does not name: os.getenv of a missing variable reads os.environ.
        """
        for name in function.__code__.co_names:
            with contextlib.suppress(Unwatchable):
                self.touch(function.__globals__.get(name))

    def _touch_cell(self, value):
        content = getattr(value, "cell_contents", ABSENT)
        self._add(ATTRIBUTE, value, "cell_contents", content)
        self._touch_nested([content])

    def _touch_parts(self, value):
        for name in "__self__", "__func__", "func", "args", "keywords", "fget":
            self.touch(getattr(value, name, None))

    def _touch_object(self, value):
        """Touches an object of a user's class: its attributes in __dict__ and __slots__, and its class."""
        own = getattr(value, "__dict__", None)
        slots = [x for x in vars(type(value)).values() if inspect.ismemberdescriptor(x)]
        if hasattr(value, "__next__") or hasattr(value, "__array__"):
            raise Unwatchable(f"a {type(value).__name__}")
        if type(own) is not dict and not slots and type(value) is not object:
            raise Unwatchable(f"a {type(value).__name__}")
        if type(own) is dict:
            self._touch_dict(own)
        self._add(ATTRIBUTE, value, "__class__", type(value))
        for slot in slots:
            self._add(ATTRIBUTE, value, slot.__name__, getattr(value, slot.__name__, ABSENT))
        self._touch_class(type(value))


def class_dict(cls):
    """Returns the dict of a class. ``cls.__dict__`` is only a read-only view of it, which the guard cannot check."""
    return gc.get_referents(vars(cls))[0]


def source_name(source):
    """Returns a source as text for users: model.cfg['k'], input[1]."""
    try:
        name = source.name if isinstance(source.name, str) else source.name()
    except NotImplementedError:
        name = type(source).__name__
    return _clean(name)


def _clean(name):
    """Converts L['model']._modules['x'], L['args'][0] and G['__import_a_dot_b'].x to model.x, input[0] and a.b.x."""
    name = (
        name.replace("L['model']", "model")
        .replace("L['args']", "input")
        .replace("L['kwargs']", "input")
    )
    name = re.sub(r"\._(?:modules|parameters|buffers)\['([^']+)'\]", r".\1", name)
    name = re.sub(r"^___from_numpy\((.*)\)$", r"the NumPy value \1", name)
    if name.startswith("G['__import_"):
        module, _, rest = name.removeprefix("G['__import_").partition("']")
        name = module.replace("_dot_", ".") + rest
    return name


# {class of a source: function that computes its value from the value of its base}. WATCHES: what `touch` calls by type.
STEPS = {
    **dict.fromkeys(("AttrSource", "GenericAttrSource", "CellContentsSource"), Walker._attribute),
    **dict.fromkeys(("ParamBufferSource", "UnspecializedParamBufferSource"), Walker._attribute),
    **dict.fromkeys(("DictGetItemSource", "DictSubclassGetItemSource"), Walker._dict_item),
    **dict.fromkeys(("GetItemSource", "ListGetItemSource"), Walker._item),
    **dict.fromkeys(
        ("NNModuleSource", "UnspecializedNNModuleSource", "UnspecializedBuiltinNNModuleSource"),
        lambda walker, base, source: base,
    ),
    "ConstDictKeySource": Walker._key,
    "DefaultsSource": Walker._default,
    "TypeSource": lambda walker, base, source: type(base),
    "TypeDictSource": lambda walker, base, source: vars(base),
    "TypeMROSource": lambda walker, base, source: base.__mro__,
    "ClosureSource": lambda walker, base, source: base.__closure__,
    "CodeSource": lambda walker, base, source: base.__code__,
    "WeakRefCallSource": lambda walker, base, source: base(),
}

WATCHES = (
    (torch.Tensor, Walker._touch_tensor),
    (torch.nn.Module, Walker._touch_module),
    (dict, Walker._touch_dict),
    (list, Walker._touch_list),
    ((set, frozenset), Walker._touch_set),
    (tuple, Walker._touch_nested),
    ((types.ModuleType, types.MappingProxyType), lambda walker, value: None),
    (type, Walker._touch_class),
    (types.FunctionType, Walker._touch_function),
    (types.CellType, Walker._touch_cell),
    ((types.MethodType, functools.partial, property), Walker._touch_parts),
)

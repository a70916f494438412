"""What stands in a pickle beside tensors: modules, other objects and NumPy's numbers. None of their code
runs: each object is a record of its state."""
from .arrays import Array, by_row, item_size, swapped
from .spec_writer import product
from .tensor_files import FileError, numpy_kind

MAX_NAME = 1000  # characters of a tensor's name and of its group's
MODULE = ("_parameters", "_buffers", "_modules")  # what a module of PyTorch holds


class Named(type):
    """The type of the classes below. A file may name them, and make objects of them, but not call them."""

    def __call__(cls, *_):
        raise FileError("it wants to call %.80s.%.80s, which is no part of a tensor; save its state_dict() "
                        "alone" % cls.origin)


class Object(metaclass=Named):
    """An object of a file's own class. origin: the class, as module and name. state: what it holds."""

    origin, state = ("", ""), None

    def __new__(cls, *_):
        return object.__new__(cls)

    def __setstate__(self, state):
        self.state = state

    def is_module(self):
        """Whether it is a module of PyTorch, or of TorchScript, whose classes are of no other kind."""
        state = self.state if isinstance(self.state, dict) else {}
        return (self.origin[0].partition(".")[0] == "__torch__" or
                all(isinstance(state.get(key), dict) for key in MODULE))

    def parts(self):
        """The parameters, buffers and modules of a module by name, as its state_dict() has them."""
        state = self.state if isinstance(self.state, dict) else {}
        if not all(key in state for key in MODULE):  # TorchScript: all attributes
            return [pair for pair in state.items() if not isinstance(pair[1], (dict, list, tuple))]
        left_out = state.get("_non_persistent_buffers_set") or ()
        return [(key, value) for one in MODULE for key, value in state[one].items()
                if one != "_buffers" or key not in left_out]


def class_named(module, name):
    """A class of that name, which stands for a file's."""
    return type.__call__(Named, "Object", (Object,), {"origin": (module, name)})


def partial(*_):
    """functools.partial, which modules keep and nothing here calls."""
    return Object.__new__(class_named("functools", "partial"))


class Dtype:
    """A dtype of NumPy. text: such as f4; order: "<", ">" or "|"."""

    def __init__(self, text, *_):
        self.text, self.order = text, "<"

    def __setstate__(self, state):
        self.order = state[1]


class Ndarray:
    """An array of NumPy."""

    def __init__(self, *_):
        self.size, self.kind = (), "float32"

    def __setstate__(self, state):
        _, self.size, dtype, self.by_column, self.raw = state
        self.kind, self.swaps = numpy_kind("<" + dtype.text), dtype.order == ">"

    def array(self):
        raw = swapped(self.raw, self.kind) if self.swaps else self.raw
        if len(raw) != product(self.size) * item_size(self.kind):
            raise FileError("an array of %s has %d bytes" % (list(self.size), len(raw)))
        return (by_row if self.by_column else Array)(self.kind, self.size, raw=raw)


def flattened(root, view):
    """Yields (group, name, tensor) for each tensor in nested dictionaries, lists and modules, and None for
    each other item. view: the class of PyTorch's tensors."""
    pending = [("", "", {"tensor": root} if isinstance(root, (view, Ndarray)) else root, None)]
    while pending:
        group, prefix, item, owner = pending.pop()
        is_module = isinstance(item, Object) and item.is_module()
        if isinstance(item, Object) and not is_module:
            item, owner = {"state": item.state}, item.origin
        for key, value in (item.parts() if is_module else item.items() if isinstance(item, dict) else
                           enumerate(item) if isinstance(item, (list, tuple)) else ()):
            name, inner = prefix + str(key), "%s.%s" % (group, key) if group else str(key)
            if max(len(name), len(inner)) > MAX_NAME:
                raise FileError("its dictionaries and modules are nested too deep")
            if owner and isinstance(value, view):
                raise FileError("it holds an object of %.80s.%.80s with tensors, which is no module; save "
                                "its state_dict() alone" % owner)
            yield (group, name, value) if isinstance(value, (view, Ndarray)) and not owner else None
            if is_module and isinstance(value, Object):
                pending.append((group, name + ".", value, None))
            elif not is_module and isinstance(value, (Object, dict, list, tuple)):
                pending.append((inner, "", value, owner))

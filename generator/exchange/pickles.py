"""Reads PyTorch's .pt files with an unpickler that knows tensors and records the rest. No code of a file
runs."""
import collections
import io
import os
import pickle
import pickletools
import struct
import zipfile

from .arrays import CODES, Array, gathered, item_size, strides
from .pickled_objects import Dtype, Ndarray, class_named, flattened, partial
from .spec_writer import product
from .tensor_files import ZIP_FAULTS, FileError

MAGIC = 0x1950a86a20f9469cfc6c
MAX_ITEMS = 1 << 20  # of a file's dictionaries and lists
MAX_BYTES = 1 << 36
# tensors may share storages, or repeat elements: at most this many times the file's size in total
MAX_GROWTH = 16
STORAGES = {"FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16",
            "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32",
            "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8",
            "BoolStorage": "bool", "UntypedStorage": "uint8"}
DTYPES = tuple(CODES)


class Storage:
    """Bytes that tensors are views of. A legacy file has them after its pickles."""

    def __init__(self, kind, count, read):
        self.kind, self.count, self.read = kind, count, read


class View:
    """A tensor of a file."""

    def __init__(self, storage, offset, size, stride, kind=None):
        self.storage, self.offset, self.size, self.stride = storage, offset, tuple(size), tuple(stride)
        self.kind = kind or storage.kind

    def array(self):
        raw, count = self.storage.read(), product(self.size)
        width = item_size(self.kind)
        whole = len(raw) // width
        last = self.offset + sum((size - 1) * step for size, step in zip(self.size, self.stride))
        sound = len(self.size) == len(self.stride) and min(self.size + self.stride + (self.offset,)) >= 0
        if not sound or count and last >= whole:
            raise FileError("a tensor of %s lies outside its storage" % list(self.size))
        if count == 0 or list(self.stride) == strides(self.size) or count == 1:
            return Array(self.kind, self.size, raw=raw[self.offset * width:(self.offset + count) * width])
        source = Array(self.kind, (whole,), raw=raw).values
        return Array(self.kind, self.size, gathered(source, list(self.size), list(self.stride), self.offset))


def rebuilt(storage, offset, size, stride, *_):
    return View(storage, offset, size, stride)


def rebuilt_typed(storage, offset, size, stride, requires_grad, hooks, dtype, *_):
    return View(storage, offset, size, stride, dtype)


def rebuilt_parameter(tensor, *_):
    return tensor


def rebuilt_with_state(function, _, arguments, *__):
    """A tensor with attributes of its own, which are left out."""
    return function(*arguments)


class Maker(tuple):
    """A function that a file may call. It is a tuple, so that no file can change it."""

    __slots__ = ()

    def __call__(self, *arguments):
        return self[0](*arguments)


def maker(function):
    return Maker((function,))


# All names that a file may call or read, with their replacements.
KNOWN = {("torch._utils", "_rebuild_tensor_v2"): maker(rebuilt),
         ("torch._utils", "_rebuild_tensor"): maker(rebuilt),
         ("torch._utils", "_rebuild_tensor_v3"): maker(rebuilt_typed),
         ("torch._utils", "_rebuild_parameter"): maker(rebuilt_parameter),
         ("torch._utils", "_rebuild_parameter_with_state"): maker(rebuilt_parameter),
         ("torch._tensor", "_rebuild_from_type_v2"): maker(rebuilt_with_state),
         ("torch.nn.parameter", "Parameter"): maker(rebuilt_parameter),
         ("collections", "OrderedDict"): collections.OrderedDict, ("torch", "Size"): maker(tuple),
         ("torch", "device"): maker(lambda *names: None), ("torch.storage", "UntypedStorage"): "uint8",
         ("_codecs", "encode"): maker(lambda text, _: text.encode("latin-1")),
         ("functools", "partial"): maker(partial), ("numpy", "dtype"): maker(Dtype),
         ("numpy", "ndarray"): None}
KNOWN.update({(module, "set"): maker(tuple) for module in ("builtins", "__builtin__")})
KNOWN.update({("torch.jit._pickle", "build_%slist" % kind): maker(list)
              for kind in ("int", "bool", "double", "tensor")})
for NUMPY in ("numpy.core.multiarray", "numpy._core.multiarray"):
    KNOWN.update({(NUMPY, "scalar"): maker(lambda *_: None), (NUMPY, "_reconstruct"): maker(Ndarray)})
KNOWN.update({("torch", name): kind for name, kind in STORAGES.items()})
KNOWN.update({("torch", name): name for name in DTYPES})


class Unpickler(pickle.Unpickler):
    """storage: a function of a persistent id."""

    def __init__(self, file, storage):
        super().__init__(file, encoding="latin-1")
        self.storage = storage

    def find_class(self, module, name):
        return KNOWN[module, name] if (module, name) in KNOWN else class_named(module, name)

    def persistent_load(self, pid):
        if isinstance(pid, tuple) and len(pid) > 1 and pid[0] == "module":  # a class with its source
            return pid[1]
        return self.storage(pid)


def kind_of(pid):
    """The kind of a storage and its name, from the file's identifiers."""
    if (not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage" or pid[1] not in CODES or
        not isinstance(pid[4], int)):
        raise FileError("a tensor's storage is described in an unknown way")
    return pid[1], str(pid[2])


# The instructions in torch.save's pickles. Other instructions are rejected before any is executed.
INSTRUCTIONS = frozenset(
    "PROTO FRAME MARK STOP EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 BININT BININT1 "
    "BININT2 LONG1 BINFLOAT NONE NEWTRUE NEWFALSE BINUNICODE SHORT_BINUNICODE BINSTRING SHORT_BINSTRING "
    "BINGET LONG_BINGET BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL REDUCE BUILD BINPERSID SETITEM "
    "SETITEMS APPEND APPENDS EMPTY_SET ADDITEMS NEWOBJ SHORT_BINBYTES BINBYTES".split())


def check_instructions(file):
    """Checks a pickle without executing it, and seeks back to its start."""
    start, named = file.tell(), "a class"
    for instruction, argument, _ in pickletools.genops(file):
        if instruction.name == "GLOBAL":
            named = argument.replace(" ", ".")
        if instruction.name in ("NEWOBJ_EX", "INST", "OBJ"):
            raise FileError("it holds an object of %.80s, which is no tensor; save the module's state_dict() "
                            "alone" % named)
        if instruction.name not in INSTRUCTIONS:
            raise FileError(
                "its pickle has the instruction %s, which no state_dict() needs; save that alone" %
                instruction.name)
        if instruction.name == "LONG_BINPUT" and argument > MAX_ITEMS:  # for which memory would be allocated
            raise FileError("its pickle remembers more than %d items" % MAX_ITEMS)
    file.seek(start)


def unpickled(file, storage=None):
    try:
        check_instructions(file)
        return Unpickler(file, storage or kind_of).load()
    except FileError:
        raise
    except Exception as error:  # a cut-off or hostile pickle can raise anything in the unpickler
        raise FileError("its pickle cannot be read: %s" % error) from None


def read_zip(file):
    """The format of torch.save since PyTorch 1.6."""
    with zipfile.ZipFile(file) as archive:
        names = {one.filename: one.file_size for one in archive.infolist()}
        pickles = [name for name in names if name == "data.pkl" or name.endswith("/data.pkl")]
        if len(pickles) != 1:
            is_npz = names and all(name.endswith(".npy") for name in names)
            raise FileError("it is NumPy's archive; let its name end in .npz" if is_npz else
                            "it holds no data.pkl; this is no state_dict")
        root = pickles[0][:-len("data.pkl")]
        if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()
               if one.filename.startswith(root + "data")):
            raise FileError("it is compressed, as torch.save never does")
        if names.get(root + "byteorder") and archive.read(root + "byteorder").strip() not in (b"", b"little"):
            raise FileError("it is big-endian")

        def storage(pid):
            kind, name = kind_of(pid)
            path = "%sdata/%s" % (root, name)
            if path not in names:
                raise FileError("it lacks the data '%.80s'" % path)
            return Storage(kind, pid[4], lambda: archive.read(path))
        return views(unpickled(io.BytesIO(archive.read(pickles[0])), storage), file)


def read_legacy(file):
    """The older format: four pickles, the names of the storages, then each storage with its length."""
    if unpickled(file) != MAGIC or unpickled(file) != 1001:
        raise FileError("it is neither a zip archive nor a file of torch.save")
    info = unpickled(file)
    if not isinstance(info, dict) or info.get("little_endian") is False:
        raise FileError("it is big-endian")
    storages = {}

    def storage(pid):
        kind, name = kind_of(pid)
        if len(pid) > 5 and pid[5] is not None:
            raise FileError("views of storages as PyTorch 0.3 wrote them are not possible")
        return storages.setdefault(name, Storage(kind, pid[4], None))

    result, names = unpickled(file, storage), unpickled(file)
    for name in names if isinstance(names, list) else []:
        head, own = file.read(8), storages.get(str(name))
        if own is None or len(head) < 8:
            raise FileError("its storages are cut off")
        size = struct.unpack("<q", head)[0] * item_size(own.kind)
        chunk = file.read(size) if 0 <= size <= MAX_BYTES else b""
        if len(chunk) != size:
            raise FileError("its storages are cut off")
        own.read = lambda chunk=chunk: chunk
    if any(own.read is None for own in storages.values()):
        raise FileError("its storages are cut off")
    return views(result, file)


def array_of(view, room):
    """A tensor's Array, if it fits into so many bytes."""
    try:
        if product(view.size) * item_size(view.kind) > room:
            raise FileError("its tensors are more than %d times as large as the file" % MAX_GROWTH)
        return view.array()
    except FileError:
        raise
    except Exception as error:  # a pickle can put anything in a tensor's place
        raise FileError("a tensor is described in an unknown way: %s" % error) from None


def views(root, file):
    """The groups of tensors in nested dictionaries and modules: {path: {name: Array}}."""
    groups, room = {}, MAX_GROWTH * os.fstat(file.fileno()).st_size
    for seen, found in enumerate(flattened(root, View)):
        if seen >= MAX_ITEMS:
            raise FileError("its dictionaries have more than %d items" % MAX_ITEMS)
        if found:
            group, name, view = found
            array = groups.setdefault(group, {})[name] = array_of(view, room)
            room -= array.count() * array.item_size()
    return groups


def read(path):
    """The groups of a .pt file."""
    with open(path, "rb") as file:
        try:
            start = file.read(4)
            file.seek(0)
            if start[:1] not in (b"P", b"\x80"):  # a zip archive, a pickle
                raise FileError("it is neither a zip archive nor a file of torch.save")
            return read_zip(file) if start == b"PK\x03\x04" else read_legacy(file)
        except FileError as error:
            raise FileError("%s: %s" % (path, error)) from None
        except ZIP_FAULTS as error:
            raise FileError("%s: this is no file of torch.save: %s" % (path, error)) from None

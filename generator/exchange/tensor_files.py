"""Files of tensors: safetensors and NumPy's .npy and .npz. Files are treated as hostile."""
import ast
import json
import os
import re
import struct
import zipfile
import zlib

from .arrays import SAFETENSORS, USUAL_FLOATS, Array, by_row, item_size, stored_dtype, swapped
from .blocks import FORMATS, BlockArray
from .header import BLOCKS_KEY, FileError, with_header
from .spec_writer import Refused, product

MAX_BYTES = 1 << 36
# zipfile's exceptions for cut-off or hostile archives.
ZIP_FAULTS = (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError, TypeError, ValueError,
              KeyError, OverflowError, MemoryError, struct.error, zlib.error)
_KINDS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
          "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16",
          "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
DTYPES = {kind: name for name, kind in _KINDS.items()}
_NUMPY = {"f2": "float16", "f4": "float32", "f8": "float64", "i1": "int8", "i2": "int16", "i4": "int32",
          "i8": "int64", "u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64", "b1": "bool"}


def check_no_text(path):
    """Rejects, by name, what Git or a website delivers in place of a file."""
    with open(path, "rb") as file:
        start = file.read(512).lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        raise FileError("%s: this is a pointer of Git LFS; fetch the file itself with git lfs pull" % path)
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        raise FileError("%s: this is a web page; download the file itself" % path)
    if not start:
        raise FileError("%s: the file is empty" % path)


def read_safetensors(path):
    """The file's Arrays by name."""
    def take(file, header, start, size):
        metadata = header.pop("__metadata__", None) or {}
        found = {name: _tensor(file, start, size, one) for name, one in header.items()}
        found.update((name, _blocks(x, metadata[BLOCKS_KEY + name])) for name, x in found.items()
                     if BLOCKS_KEY + name in metadata)
        return found
    return with_header(path, take)


def _blocks(x, format_name):
    """The tensor of which x, U8, has the blocks."""
    block = FORMATS[format_name]
    if x.kind != "uint8" or not x.shape or x.shape[-1] % block.bytes:
        raise ValueError("a tensor of %s has no blocks of %s" % (list(x.shape), format_name))
    return BlockArray(format_name, x.shape[:-1] + (x.shape[-1] // block.bytes * block.length,), x.encoded())


def _shape(given):
    """A shape that a file gives."""
    if not all(type(size) is int and size >= 0 for size in given):
        raise ValueError("the shape %.80s has other sizes than whole numbers" % (given,))
    return tuple(given)


def _tensor(file, start, size, one):
    begin, end = one["data_offsets"]
    kind, shape = _KINDS[one["dtype"]], _shape(one["shape"])
    if not 0 <= begin <= end <= size - start or end - begin != product(shape) * item_size(kind):
        raise ValueError("a tensor of %s lies outside the file or has not its size" % list(shape))
    file.seek(start + begin)
    return Array(kind, shape, raw=file.read(end - begin))


def numpy_kind(descr):
    """The kind for a type name in an .npy header."""
    known = re.fullmatch("([<|=>]?)([a-z][0-9]+)", descr) if isinstance(descr, str) else None
    if known is None or known[2] not in _NUMPY:
        raise ValueError("its elements are %s" % (
            "Python objects" if descr == "|O" else "texts" if str(descr)[1:2] in "US" else
            "of dtype %.80s" % (descr,)))
    return _NUMPY[known[2]]


def read_npy(data, name):
    """The Array of an .npy file's bytes."""
    try:
        if data[:6] != b"\x93NUMPY":
            raise ValueError("it does not begin as one")
        wide = data[6] > 1
        length = struct.unpack("<I" if wide else "<H", data[8:12 if wide else 10])[0]
        start = (12 if wide else 10) + length
        head = ast.literal_eval(data[start - length:start].decode("latin-1").strip())
        kind, shape = numpy_kind(head["descr"]), _shape(head["shape"])
        if len(data) - start != product(shape) * item_size(kind):
            raise ValueError("it is cut off")
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, SyntaxError, IndexError,
            MemoryError, RecursionError) as error:
        raise FileError("%s: this is no .npy file of numbers: %s" % (name, error)) from None
    raw = swapped(data[start:], kind) if head["descr"][0] == ">" else data[start:]
    return (by_row if head.get("fortran_order") else Array)(kind, shape, raw=raw)


def read_npz(path):
    """The Arrays of an archive of .npy files by name."""
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = [one for one in archive.infolist() if one.filename.endswith(".npy")]
                if not members:
                    raise FileError("%s: it holds no .npy files" % path)
                if sum(one.file_size for one in members) > MAX_BYTES:
                    raise FileError("%s: its tensors are larger than 64 GiB" % path)
                return {one.filename[:-4]: read_npy(archive.read(one), "%s: %s" % (path, one.filename))
                        for one in members}
        except ZIP_FAULTS as error:
            raise FileError("%s: this is no .npz file: %s" % (path, error)) from None


def read_shards(path):
    """The tensors of the safetensors files that an index names. They lie beside it."""
    found = {}
    try:
        with open(path, "rb") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
        if any(os.path.basename(name) != name for name in names):
            raise ValueError("a file is not beside it")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError("%s: this is no index of safetensors files: %s" % (path, error)) from None
    for name in names:
        found.update(read_safetensors(os.path.join(os.path.dirname(path), name)))
    return found


def read(path):
    """The tensors of a file by name. The format follows from the file's extension."""
    check_no_text(path)
    if path.endswith(".json"):
        return read_shards(path)
    return read_npz(path) if path.endswith(".npz") else read_safetensors(path)


def conversion_notes(arrays):
    """A note for the user about Arrays that become floats from a type other than F64, F32, F16 and BF16."""
    found = [(name, x.kind) for name, x in arrays.items() if x.kind not in USUAL_FLOATS]
    return ["%d tensor%s became floats without a scale; the first is '%s' of type %s" % (
        len(found), "s" * (len(found) > 1), found[0][0], DTYPES[found[0][1]])] if found else []


def for_gpunn(x):
    """An Array as save_safetensors takes it: dtype, shape and bytes as gpunn reads them."""
    dtype = stored_dtype(x.kind)
    if dtype == "f32":
        return SAFETENSORS[dtype], x.shape, x.f32_bytes()
    kind = {"i64": "int64", "i32": "int32", "u8": "uint8", "bool": "bool"}[dtype]
    if kind == "int64" and any(value >= 1 << 63 for value in x.values):
        raise Refused("a number of 2^63 or more does not fit gpunn's integers")
    return (SAFETENSORS[dtype], x.shape,
            x.encoded() if x.kind == kind else Array(kind, x.shape, x.values).encoded())

"""The header of a safetensors file: the tensors' places, and metadata. A model's one file has its spec
there."""
import json
import os
import struct

ONE_FILE = ".gpunn"  # the ending of a file with a model's spec and weights
BLOCKS_KEY = "gpunn_blocks:"  # and a tensor's name: the metadata with the format of its blocks, which are U8


class FileError(Exception):
    """An error in a file."""


def with_header(path, take):
    """What take(file, header, begin of the tensors, size of the file) makes of a safetensors file."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        if length > size - 8 or length > 100 << 20:
            raise FileError("%s: this is no safetensors file: its header is cut off" % path)
        try:
            return take(file, json.loads(file.read(length).decode("utf-8")), 8 + length, size)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FileError("%s: its header is no description of tensors: %s" % (path, error)) from None


def is_safetensors(data):
    """Whether a file's first bytes are those of safetensors. Texts have no zeros."""
    return data[8:9] == b"{" and 0 in data[:8]


def is_one_file(path):
    """Whether a file has tensors, and so perhaps a model's spec, too."""
    with open(path, "rb") as file:
        return is_safetensors(file.read(9))


def spec_in(path):
    """The spec's text in a model's one file."""
    metadata = with_header(path, lambda file, header, start, size: dict(header.get("__metadata__") or {}))
    text = metadata.get("gpunn_spec")
    if not isinstance(text, str):
        raise FileError("%s: it has weights, but no model; give the model's spec" % path)
    return text.encode("utf-8", "surrogatepass")

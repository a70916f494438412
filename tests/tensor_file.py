"""Safetensors files with the standard library alone."""
import array
import json
import struct

CODES = {"F32": "f", "I64": "q", "I32": "i", "U8": "B", "BOOL": "B"}


def load(path):
    """By name, (dtype, shape, bytes)."""
    with open(path, "rb") as file:
        data = file.read()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"],
                   data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
            for name, t in header.items()}


def save(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, chunk) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(chunk)]}
        data += chunk
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + data)


def values(tensor):
    return array.array(CODES[tensor[0]], tensor[2])

"""Weights that bitsandbytes keeps in NF4, as in Hugging Face's folders of models for QLoRA. Beside NAME, U8
with two numbers a byte, stand NAME.absmax, the scales, NAME.quant_map, the table, and NAME + STATE, JSON as
bytes. With double quantisation absmax is U8: indices into NAME.nested_quant_map. A factor of
NAME.nested_absmax belongs to `nested_blocksize` of them, and `nested_offset` is added."""
import array
import json
import struct

from ..floats import f32
from .arrays import Array, floats32
from .blocks import FORMATS, NF4_NUMBERS, BlockArray
from .header import FileError
from .spec_writer import product

STATE, OTHER = ".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"
PARTS = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", STATE)


def scales(tensors, name, state):
    """The scale of each `blocksize` numbers."""
    found = tensors[name + ".absmax"]
    if found.kind != "uint8":
        return floats32(found.values)
    table, factors = tensors[name + ".nested_quant_map"].values, tensors[name + ".nested_absmax"].values
    size, offset = state["nested_blocksize"], f32(state["nested_offset"])
    products = floats32([table[code] * factors[i // size] for i, code in enumerate(found.values)])
    return floats32([value + offset for value in products])


def weight(tensors, name):
    """The tensor of that name as blocks of NF4; as floats where its rows are no whole number of blocks."""
    state = json.loads(tensors[name + STATE].encoded())
    shape, size, packed = state["shape"], state["blocksize"], tensors[name].encoded()
    found, length = scales(tensors, name, state), FORMATS["NF4"].length
    count = product(shape)
    if size % length or count % length or len(packed) * 2 != count or len(found) != -(-count // size):
        raise ValueError("'%s' of %s has blocks of %d numbers, %d bytes and %d scales" %
                         (name, shape, size, len(packed), len(found)))
    if floats32(tensors[name + ".quant_map"].values) != NF4_NUMBERS:
        raise ValueError("'%s.quant_map' is not NF4's table" % name)
    data = b"".join([array.array("f", [found[i // size]]).tobytes() + packed[i // 2:(i + length) // 2]
                     for i in range(0, count, length)])
    blocks = BlockArray("NF4", shape, data)
    return blocks if shape[-1] % length == 0 else Array("float32", shape, raw=blocks.encoded())


def joined(path, tensors):
    """The tensors of a file with one tensor for each weight of bitsandbytes."""
    names = [name[:-len(STATE)] for name in tensors if name.endswith(STATE)]
    try:
        found = {name: weight(tensors, name) for name in names}
    except (ValueError, KeyError, TypeError, IndexError, ZeroDivisionError, struct.error) as error:
        raise FileError("%s: its 4-bit weights are not those of bitsandbytes: %s" % (path, error)) from None
    for name in tensors:
        if name.endswith(OTHER):
            raise FileError("%s: '%s' is FP4; quantise the model again with bnb_4bit_quant_type=\"nf4\"" %
                            (path, name[:-len(OTHER)]))
    parts = {name + part for name in names for part in PARTS}
    return {name: found.get(name, x) for name, x in tensors.items() if name not in parts}

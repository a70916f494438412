"""Shared by the tests of the examples: the folders of the expected values and of the programs, and
weights."""
import os
import shutil
import struct
import subprocess
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXPECTED = os.path.join(ROOT, "tests", "examples", "expected_output")
# built without gpunn_cuda.cu, which they would tell where there is a driver
if "GPUNN_EXAMPLES" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def program(name):
    """build/NAME, or NAME in the folder $GPUNN_EXAMPLES, which tests/gpu/run.sh sets for programs built for
    the GPU."""
    return os.path.join(os.environ.get("GPUNN_EXAMPLES", os.path.join(ROOT, "build")), name)


def comma_locale(folder):
    """The environment for a locale with a decimal comma, created in that folder. None: localedef is
    missing."""
    made = os.path.join(folder, "de_DE.UTF-8")
    if shutil.which("localedef"):
        subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", made], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
    return dict(os.environ, LOCPATH=folder, LC_ALL="de_DE.UTF-8") if os.path.isdir(made) else None


def drawn_weights(shapes):
    """Tensors with these names and shapes. Values are multiples of 2^-15, which every float can hold. Those
    of convolutions are about as large as PyTorch's own, those of norms near 1 and 0."""
    tensors = {}
    for name, shape in shapes.items():
        count, fan_in, seed = 1, 1, zlib.crc32(name.encode())
        for i, size in enumerate(shape):
            count *= size
            fan_in *= size if i else 1
        scale, shift = (1 / 8, 0) if len(shape) == 1 else (2.0 ** -((fan_in.bit_length() - 1) // 2), 0)
        if name.endswith((".weight", ".running_var")) and len(shape) == 1:
            scale, shift = 1 / 4, 1
        values = []
        for i in range(count):
            x = (seed + i) * 0x9E3779B1 & 0xFFFFFFFF
            x = (x ^ x >> 15) * 0x85EBCA77 & 0xFFFFFFFF
            values.append(((x ^ x >> 13) * 0xC2B2AE3D & 0xFFFFFFFF) >> 20)
        tensors[name] = ("F32", shape,
                         struct.pack("<%df" % count, *((x / 2048 - 1) * scale + shift for x in values)))
    return tensors

"""The names of a function: gpunn's with and without its prefix, and PyTorch's."""

import os
import re
from functools import lru_cache

FOLDER = os.path.dirname(os.path.abspath(__file__))
_MODULES = {"F": "torch.nn.functional", "nn": "torch.nn", "optim": "torch.optim", "Tensor": "torch.Tensor"}


def read(name):
    """A file beside this one."""
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        return file.read()


def short(name):
    return re.sub("^gpunn_", "", name).rstrip("_")


@lru_cache(maxsize=None)
def known_to_torch():
    """PyTorch's names of each function, by gpunn's short one."""
    return {words[0]: words[1:] for words in map(str.split, read("torch_names.txt").splitlines())}


def torch(name):
    return known_to_torch().get(short(name), [])


def full(name):
    """A name of PyTorch with its module."""
    module, _, rest = name.partition(".")
    return f"{_MODULES[module]}.{rest}" if module in _MODULES else name

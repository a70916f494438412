#!/usr/bin/env python3
"""gpunn from Python without a package: trains exclusive or, saves the weights and reads them back into a
second model.

    cc -O3 -march=native -shared -fPIC -DGPUNN_IMPLEMENTATION -x c gpunn.h -o libgpunn.so -lm -lpthread
    python3 examples/embedding/xor.py ./libgpunn.so

What C calls by a macro is here the function with "_" after its name. Its last argument is a struct by value,
all zeros except for the fields in use. The structs below are those of gpunn.h 0.2. The program rejects
another version of the library.

Expect: four lines, near 0 where both inputs are equal and near 1 where they differ.
Time:   less than a second on two cores.
Next:   declare other structs of gpunn.h beside these, or bring a model of PyTorch's:
        generator/exchange/README.md.
"""
import ctypes
import os
import sys
import tempfile
from ctypes import (POINTER, Structure, byref, c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint64,
                    c_void_p)

VERSION = 2  # 0.2
F32, BATCH = 1, -1


class Shape(Structure):
    """gpunn_shape: ends at the first 0."""
    _fields_ = [("dim", c_int64 * 8)]

    def __init__(self, *dim):
        super().__init__((c_int64 * 8)(*dim))


class DeviceArgs(Structure):
    _fields_ = [("args_", c_int), ("type", c_int), ("index", c_int), ("seed", c_uint64), ("threads", c_int),
                ("deterministic", c_bool), ("benchmark", c_bool), ("memory_limit", c_size_t),
                ("workspace_limit", c_size_t), ("stream", c_void_p),
                ("cuda_malloc_fn", c_void_p), ("cuda_free_fn", c_void_p), ("realloc_fn", c_void_p),
                ("log_fn", c_void_p), ("parallel_fn", c_void_p), ("user", c_void_p), ("backend", c_void_p)]


class ModelArgs(Structure):
    _fields_ = [("args_", c_int), ("precision", c_int), ("inference", c_bool)]


class LinearArgs(Structure):
    _fields_ = [("args_", c_int), ("out_features", c_int), ("no_bias", c_bool), ("weight", c_void_p),
                ("bias", c_void_p)]


class LossArgs(Structure):
    _fields_ = [("args_", c_int), ("reduction", c_int), ("delta", c_float), ("beta", c_float),
                ("weight", c_void_p), ("pos_weight", c_void_p),
                ("log_target", c_bool), ("full", c_bool), ("eps", c_float), ("no_log_input", c_bool)]


class AdamArgs(Structure):
    _fields_ = [("args_", c_int), ("lr", c_float), ("beta1", c_float), ("beta2", c_float), ("eps", c_float),
                ("weight_decay", c_float), ("maximize", c_bool), ("parameters", c_void_p),
                ("parameter_count", c_int), ("prefix", c_char_p),
                ("groups", c_void_p), ("group_count", c_int)]


class TrainStepArgs(Structure):
    _fields_ = [("args_", c_int), ("accumulate", c_int)]


class LoadArgs(Structure):
    _fields_ = [("args_", c_int), ("partial", c_bool), ("skip", c_void_p), ("report", c_void_p),
                ("user", c_void_p), ("io", c_void_p), ("map", c_void_p)]


FUNCTIONS = {  # name: (result, arguments)
    "gpunn_version": (c_int, []),
    "gpunn_error": (c_char_p, [c_void_p]),
    "gpunn_device_open_": (c_void_p, [DeviceArgs]),
    "gpunn_device_close": (None, [c_void_p]),
    "gpunn_model_create_": (c_void_p, [c_void_p, ModelArgs]),
    "gpunn_model_destroy": (None, [c_void_p]),
    "gpunn_input": (c_void_p, [c_void_p, c_char_p, c_int, Shape]),
    "gpunn_linear_": (c_void_p, [c_void_p, c_char_p, LinearArgs]),
    "gpunn_tanh": (c_void_p, [c_void_p]),
    "gpunn_sigmoid": (c_void_p, [c_void_p]),
    "gpunn_bce_with_logits_": (c_void_p, [c_void_p, c_void_p, LossArgs]),
    "gpunn_adam_": (c_void_p, [c_void_p, AdamArgs]),
    "gpunn_optimizer_destroy": (None, [c_void_p]),
    "gpunn_write": (c_int, [c_void_p, c_void_p, c_size_t]),
    "gpunn_read": (c_int, [c_void_p, c_void_p, c_size_t]),
    "gpunn_train_step_": (c_int, [c_void_p, c_void_p, TrainStepArgs]),
    "gpunn_forward": (c_int, [POINTER(c_void_p), c_int]),
    "gpunn_save": (c_int, [c_void_p, c_char_p]),
    "gpunn_load_": (c_int, [c_void_p, c_char_p, LoadArgs]),
}


def load(path):
    lib = ctypes.CDLL(os.path.abspath(path))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    if lib.gpunn_version() != VERSION:
        sys.exit(f"{path} has version {lib.gpunn_version()} of gpunn; these structs are of {VERSION}")
    return lib


class Net:
    """2-8-1 with tanh between."""

    def __init__(self, lib, dev):
        self.lib, self.dev = lib, dev
        self.model = lib.gpunn_model_create_(dev, ModelArgs())
        self.x = lib.gpunn_input(self.model, b"x", F32, Shape(BATCH, 2))
        self.t = lib.gpunn_input(self.model, b"t", F32, Shape(BATCH, 1))
        hidden = lib.gpunn_tanh(lib.gpunn_linear_(self.x, b"fc1", LinearArgs(out_features=8)))
        logit = lib.gpunn_linear_(hidden, b"fc2", LinearArgs(out_features=1))
        self.loss = lib.gpunn_bce_with_logits_(logit, self.t, LossArgs())
        self.prob = lib.gpunn_sigmoid(logit)

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.lib.gpunn_error(self.dev).decode())

    def train(self, x, t, steps):
        adam = self.lib.gpunn_adam_(self.model, AdamArgs(lr=0.05))
        self.check(self.lib.gpunn_write(self.x, x, ctypes.sizeof(x)))
        self.check(self.lib.gpunn_write(self.t, t, ctypes.sizeof(t)))
        for _ in range(steps):
            self.check(self.lib.gpunn_train_step_(adam, self.loss, TrainStepArgs()))
        self.lib.gpunn_optimizer_destroy(adam)

    def predict(self, x):
        p = (c_float * (len(x) // 2))()
        self.check(self.lib.gpunn_write(self.x, x, ctypes.sizeof(x)))
        self.check(self.lib.gpunn_forward(byref(c_void_p(self.prob)), 1))
        self.check(self.lib.gpunn_read(self.prob, p, ctypes.sizeof(p)))
        return list(p)


def main():
    lib = load(sys.argv[1] if len(sys.argv) > 1 else "./libgpunn.so")
    dev = lib.gpunn_device_open_(DeviceArgs(seed=1))
    if not dev:
        sys.exit(lib.gpunn_error(None).decode())
    x, t = (c_float * 8)(0, 0, 0, 1, 1, 0, 1, 1), (c_float * 4)(0, 1, 1, 0)
    first, second = Net(lib, dev), Net(lib, dev)
    first.train(x, t, 300)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "xor.safetensors").encode()
        first.check(lib.gpunn_save(first.model, path))
        second.check(lib.gpunn_load_(second.model, path, LoadArgs()))
    for i, p in enumerate(second.predict(x)):
        print(f"{x[2 * i]:g} xor {x[2 * i + 1]:g} = {p:.3f}")
    for net in first, second:
        lib.gpunn_model_destroy(net.model)
    lib.gpunn_device_close(dev)


if __name__ == "__main__":
    main()

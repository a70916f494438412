"""Writes expected/pickles.json: files that PyTorch writes of a whole module, of a TorchScript module and of a
checkpoint with NumPy's numbers, packed by zlib and base64, and the tensors of their state_dict().

    python3 tests/generator/make_pickles.py     (needs torch and numpy)"""
import argparse
import base64
import functools
import json
import os
import tempfile
import zlib

import numpy
import torch

EXPECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "expected", "pickles.json")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(1, 2, 2, bias=False), torch.nn.BatchNorm2d(2)
        self.head = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.GELU())
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).mean(-1).mean(-1)) * self.mask


def packed(write):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "net")
        write(path)
        with open(path, "rb") as file:
            return base64.b64encode(zlib.compress(file.read(), 9)).decode()


def main():
    torch.manual_seed(3)
    net = Net().eval()
    script = torch.jit.script(net)
    net.norm_layer = functools.partial(torch.nn.LayerNorm, eps=1e-6)  # not computed with, as in torchvision
    whole = torch.nn.DataParallel(net)
    whole.module.head[0].weight.mark = "a tensor with an attribute"
    checkpoint = {"model": net.state_dict(), "best": numpy.float64(0.5), "epoch": numpy.int64(3),
                  "done": numpy.bool_(True), "arguments": argparse.Namespace(rate=numpy.float32(0.1)),
                  "mean": numpy.arange(6, dtype=">f4").reshape(2, 3).T}
    states = {"module": whole.state_dict(), "old": net.state_dict(), "script": script.state_dict(),
              "checkpoint": net.state_dict(), "late": net.state_dict()}
    files = {"module": packed(lambda path: torch.save(whole, path)),
             "old": packed(lambda path: torch.save(net, path, _use_new_zipfile_serialization=False)),
             "script": packed(script.save),
             "checkpoint": packed(lambda path: torch.save(checkpoint, path)),
             "late": packed(lambda path: torch.save(checkpoint, path, pickle_protocol=4))}
    with open(EXPECTED, "w", encoding="ascii") as file:
        file.write("{\n" + ",\n".join("%s: %s" % (json.dumps(name), json.dumps({
            "file": files[name], "tensors": {key: [list(x.shape), x.flatten().tolist()]
                                             for key, x in state.items()}}))
            for name, state in states.items()) + "\n}\n")


if __name__ == "__main__":
    main()

"""tests/bench/fused_gpu.py: its column "compile" times compiled code, with each case as one graph. Needs
torch, but no GPU."""
import importlib.util
import os
import sys
import tempfile
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "bench"))
import fused_gpu


@unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")
class Compiled(unittest.TestCase):
    def test_each_case_is_one_graph(self):
        import torch
        graphs = []

        def count(graph, inputs):
            graphs.append(graph)
            return graph

        for name in fused_gpu.CASES:
            with self.subTest(name):
                graphs.clear()
                function, inputs, leaves = fused_gpu.torch_case(name, "cpu", 1 << 16)
                y = torch.compile(function, backend=count, fullgraph=True, dynamic=False)(*inputs)
                self.assertEqual(len(graphs), 1)
                gradients = torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True)
                self.assertIsNotNone(gradients[0])


class Torch(unittest.TestCase):
    def test_one_that_does_not_load_leaves_the_other_columns(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(sys.modules), mock.patch.object(
                sys, "path", [folder]):
            sys.modules.pop("torch", None)
            with open(os.path.join(folder, "torch.py"), "w") as file:
                file.write("raise OSError('libcudart.so.13: cannot open shared object file')")
            self.assertEqual(fused_gpu.torch_times(["gelu"], 1), {})


if __name__ == "__main__":
    unittest.main()

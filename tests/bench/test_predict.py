"""tests/bench/predict.py: it covers all workloads and steps, and follows its formulas."""
import math
import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "bench"))
import gpu
import predict

PROGRAM = os.path.join(ROOT, "build", "emulator", "launches")


def step(launches, size, flops, block=False):
    return predict.Step("", launches, size, flops, predict.TENSOR, block)


class Predict(unittest.TestCase):
    def test_complete(self):
        rows = list(predict.plans(PROGRAM, gpu.WORKLOADS))
        self.assertEqual([name for name, *_ in rows], list(gpu.WORKLOADS))
        shares = {}
        for name, steps, beside in rows:
            for one in steps[1 if name != "copy" else 0:]:
                if one.label == predict.CHECKED:
                    shares[name] = sum(predict.time_of(one, "H100")) / sum(predict.total(steps, "H100"))
                    continue
                self.assertGreater(one.bytes, 0, (name, one))
                self.assertTrue(one.flops > 0 or name in ("copy", "adamw"), (name, one))
            self.assertGreater(sum(one.launches for one in steps), 0)
            for card in predict.COPY:
                parts = [part for one in steps for part in predict.time_of(one, card)]
                self.assertTrue(all(math.isfinite(part) and part >= 0 for part in parts), name)
                self.assertGreater(sum(predict.total(steps, card)), 0)
            self.assertEqual(len(list(predict.step_table(steps))), 1 + len(steps))
        lines = list(predict.table(rows))
        self.assertEqual(len(lines), 2 + len(gpu.WORKLOADS))
        self.assertEqual({line.count("|") for line in lines}, {12})
        self.assertNotIn("nan", " ".join(lines).lower())
        # gpu.py counts by the architecture, with the gradient of the images, which is not wanted.
        for name in ("mlp20", "lenet4", "resnet18_bf16", "gpt2_bf16", "adamw"):
            self.assertLess(shares[name], 0.01, name)
        products = [one.flops for one in dict(row[:2] for row in rows)["resnet18_bf16"]
                    if "conv" in one.label or "linear" in one.label]
        stem = 2 * 64 * 64 * 112 * 112 * 147
        self.assertAlmostEqual((sum(products) + stem) / gpu.WORKLOADS["resnet18_bf16"].operations, 1,
                               delta=1e-3)

    def test_times(self):
        """Launches add up. Of the times of bytes and of operations the longer one counts."""
        self.assertEqual(predict.time_of(step(2, 3.0e12, 1), "H100"), (2 * predict.LAUNCH, 1, 0))
        self.assertEqual(predict.time_of(step(1, 4.3, 2 * predict.TENSOR), "H200"), (predict.LAUNCH, 0, 2))
        self.assertEqual(predict.time_of(step(0, 3.0e12, 1), "H100"), (0, 1, 0))
        steps = [step(1, 1e9, 1), step(1, 64, 1, True), step(0, 64, 2 * 2048 * 10, True)]
        alone, first, second = predict.in_rows(steps)
        self.assertEqual([alone.block, first.block, second.block], [False, True, True])
        clock = 1 / 1.755e9
        self.assertAlmostEqual(sum(predict.time_of(first, "H100")), predict.LAUNCH + 600 * clock, delta=1e-12)
        self.assertAlmostEqual(sum(predict.time_of(second, "H100")), 10 * predict.EIGHT * clock, delta=1e-12)
        cached = step(0, 3.0e12, 1)._replace(cached=5.5e12)
        self.assertEqual(predict.time_of(cached, "H100"), (0, 2, 0))
        both = [step(1, 3.0e12, 1), step(1, 1, 2 * predict.TENSOR)]
        self.assertEqual(predict.total(both, "H100"), (2 * predict.LAUNCH, 1, 2))

    def test_check(self):
        """Gradients that have just been written come from the cache. A launch beside others takes no time."""
        mega = 1 << 20
        beside = predict.check(14, 10, 10, [mega, 40 * mega, 2 * mega])
        self.assertEqual((beside.launches, beside.bytes, beside.cached), (0, 40 * mega, 3 * mega))
        behind = predict.check(11, 11, 10, [mega, 2 * mega])
        self.assertEqual((behind.launches, behind.bytes, behind.cached), (1, 0, 3 * mega))
        self.assertEqual(predict.check(12, 11, 10, [20 * mega, 20 * mega]).bytes, 40 * mega)
        with self.assertRaises(SystemExit):
            predict.check(14, 13, 10, [])

    def test_labels(self):
        """Ops are recognized by the ends of labels, and passes that read again are counted."""
        work = {"dur": 250.0, "args": {"bytes": 30, "flops": 2000}}
        trace = {"traceEvents": [{"name": "0.q linear [8, 768]", "cat": "forward", **work},
                                 {"name": "0.bn batch_norm [8, 8]", "cat": "forward", **work},
                                 {"name": "batch_norm backward [8, 8]", "cat": "backward", **work}]}
        steps = list(predict.steps_of(trace, "x_bf16"))
        self.assertEqual([one.launches for one in steps], [2, 2, 2])
        self.assertEqual([one.bytes for one in steps], [30, 45, 50])
        self.assertEqual([one.block for one in steps], [True, False, False])
        self.assertEqual([one.rate for one in steps],
                         [predict.RATES[dtype] for dtype in ("bf16", "f32", "f32")])
        self.assertEqual(predict.precision("mlp784_tf32"), "tf32")
        self.assertEqual(predict.precision("mlp20"), "f32")


if __name__ == "__main__":
    unittest.main()

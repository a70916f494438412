"""nms.h keeps the boxes of torchvision.ops.nms's definition, in its order: python3 -m unittest
tests.examples.test_nms"""
import math
import os
import random
import struct
import subprocess
import tempfile
import unittest

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "nms")


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def expected(boxes, threshold):
    """Uses numbers whose sums and products are exact in F32."""
    order = sorted(range(len(boxes)), key=lambda i: (not math.isnan(boxes[i][4]),
                                                     0 if math.isnan(boxes[i][4]) else -boxes[i][4], i))
    keep = []
    for i in order:
        x1, y1, x2, y2, _ = boxes[i]
        for j in keep:
            u1, v1, u2, v2, _ = boxes[j]
            both = max(0, min(x2, u2) - max(x1, u1)) * max(0, min(y2, v2) - max(y1, v1))
            cover = (x2 - x1) * (y2 - y1) + (u2 - u1) * (v2 - v1) - both
            if cover and f32(both / cover) > f32(threshold):
                break
        else:
            keep.append(i)
    return keep


class Nms(unittest.TestCase):
    def check(self, boxes, threshold):
        with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
            self.addCleanup(os.remove, file.name)
            file.writelines(" ".join(map(repr, box)) + "\n" for box in boxes)
        done = subprocess.run([PROGRAM, repr(threshold), file.name], stdout=subprocess.PIPE, text=True,
                              check=True)
        self.assertEqual([int(line) for line in done.stdout.split()], expected(boxes, threshold))

    def test_random_boxes(self):
        draw = random.Random(4)
        for count in (0, 1, 2, 3, 17, 100, 1000):
            for threshold in (0.0, 0.3, 0.5, 1.0):
                boxes = []
                for _ in range(count):
                    x, y = draw.randrange(100), draw.randrange(100)
                    score = draw.choice([draw.random(), draw.randrange(4) / 4, draw.randrange(4) / 4])
                    boxes.append((x, y, x + draw.randrange(30), y + draw.randrange(30), f32(score)))
                with self.subTest(count=count, threshold=threshold):
                    self.check(boxes, threshold)

    def test_edges(self):
        same = [(0, 0, 10, 10, 0.5)] * 3
        self.check(same, 0.99)
        self.check(same, 1.0)
        self.check([(0, 0, 10, 10, 0.5), (0, 0, 10, 5, math.nan), (0, 0, 10, 10, math.inf),
                    (20, 0, 30, 10, -math.inf)], 0.5)
        # an overlap equal to the threshold is kept
        self.check([(0, 0, 10, 10, 0.9), (0, 0, 10, 5, 0.8)], 0.5)
        self.check([(5, 5, 5, 5, 0.9), (5, 5, 5, 5, 0.8), (0, 0, 10, 10, 0.7)], 0.1)  # without an area


if __name__ == "__main__":
    unittest.main()

"""examples/actor_critic.c, forecast.c, gan.c, ppo.c, sdf.c and vae.c: each learns its task, and draws it."""
import os
import re
import struct
import subprocess
import tempfile
import unittest
import zlib

from tests.examples import program

FASHION = "/usr/share/datasets/fashion-mnist"


class Research(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_example(self, name, *options, status=0):
        done = subprocess.run([program(name), "--threads", "2", *options], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout

    def number(self, pattern, text):
        return float(re.search(pattern, text).group(1))

    def pixels(self, name):
        """For a grey PNG: its width, its height, and its number of different bytes."""
        with open(os.path.join(self.folder.name, name), "rb") as file:
            data = file.read()
        width, height = struct.unpack(">II", data[16:24])
        at, packed = 8, b""
        while at < len(data):
            size, kind = struct.unpack(">I4s", data[at:at + 8])
            packed += data[at + 8:at + 8 + size] if kind == b"IDAT" else b""
            at += size + 12
        return width, height, len(set(zlib.decompress(packed)))

    def test_actor_critic(self):
        text = self.run_example("actor_critic")
        self.assertGreaterEqual(self.number(r"\n([\d.]+) of 500 after", text), 475)
        self.run_example("actor_critic", "--steps", "512", status=1)

    def test_ppo(self):
        """Each world is learned from its first returns, which are as poor as chance, whatever the threads."""
        path = os.path.join(self.folder.name, "curve.csv")
        for world, steps, before, after in (("pendulum", 300000, -800, -300), ("cart", 200000, 40, 475),
                                            ("maze", 100000, 0, 0.6)):
            options = ("--world", world, "--environments", "128", "--horizon", "64", "--batch", "1024",
                       "--steps", str(steps), "--curve", path)
            text = self.run_example("ppo", *options)
            with open(path, encoding="ascii") as file:
                returns = [float(line.split(",")[1]) for line in file]
            self.assertLess(min(returns[:5]), before, world)
            self.assertGreater(returns[-1], after, world)
            self.assertAlmostEqual(self.number(r"mean return (-?[\d.]+) of", text), returns[-1], delta=0.01)
        with open(path, "rb") as file:
            curve = file.read()
        self.run_example("ppo", *options, "--threads", "3")
        with open(path, "rb") as file:
            self.assertEqual(file.read(), curve)

    def test_ppo_recurrent(self):
        """A cart whose speeds cannot be seen is balanced from memory alone."""
        options = ("--world", "blind", "--environments", "128", "--horizon", "64", "--batch", "1024",
                   "--steps", "70000")
        blind, recurrent = (
            self.number(r"mean return (-?[\d.]+) of", self.run_example("ppo", *options, *more))
            for more in ((), ("--recurrent",)))
        self.assertLess(blind, 80)
        self.assertGreater(recurrent, 100)

    def test_ppo_duel(self):
        """Self-play against snapshots of the network: it learns to win against the first of them."""
        path = os.path.join(self.folder.name, "wins.csv")
        options = ("--world", "duel", "--environments", "128", "--horizon", "64", "--batch", "1024",
                   "--steps", "90000", "--goal", "2", "--curve", path)
        curves = []
        for more in (("--snapshot", "3"), ("--snapshot", "3", "--threads", "3"), ("--snapshot", "100")):
            self.run_example("ppo", *options, *more)
            with open(path, encoding="ascii") as file:
                curves.append([float(line.split(",")[1]) for line in file])
        self.assertLess(curves[0][0], 0.5)
        self.assertGreater(curves[0][-1], 0.85)
        self.assertEqual(curves[0], curves[1])
        self.assertNotEqual(curves[0], curves[2])  # other rivals
        self.run_example("ppo", *options, "--recurrent", status=2)

    def test_sdf(self):
        text = self.run_example("sdf", "--steps", "800", "--out", self.folder.name)
        self.assertLess(self.number(r"mean error ([\d.]+)", text), 0.04)
        self.assertEqual(self.pixels("sdf.png")[:2], (256, 256))

    def test_forecast(self):
        text = self.run_example("forecast", "--epochs", "3")
        self.assertGreater(self.number(r"([\d.]+) times better than persistence", text), 1.7)
        path = os.path.join(self.folder.name, "saw.csv")
        with open(path, "w", encoding="ascii") as file:
            file.write("hour,load\n" + "".join("%d,%d\n" % (i, i % 24) for i in range(2000)))
        text = self.run_example("forecast", "--epochs", "8", "--data", path)
        self.assertGreater(self.number(r"([\d.]+) times better than persistence", text), 3)
        with open(path, "w", encoding="ascii") as file:
            file.write("hour,load\n1,2\n")
        self.run_example("forecast", "--data", path, status=1)

    @unittest.skipUnless(os.path.isdir(FASHION), "dataset-fashion-mnist is not installed")
    def test_vae(self):
        text = self.run_example("vae", "--epochs", "1", "--out", self.folder.name)
        loss = self.number(r"test images ([\d.]+)", text)
        likeness, divergence = (self.number(name + r" ([\d.]+)", text) for name in ("likeness", "divergence"))
        self.assertTrue(200 < loss < 275, loss)
        self.assertAlmostEqual(loss, likeness + divergence, delta=0.02)
        self.assertGreater(divergence, 5)  # the code carries information on the image
        self.assertEqual(self.pixels("vae.png")[:2], (16 * 28, 5 * 28))

    @unittest.skipUnless(os.path.isdir(FASHION), "dataset-fashion-mnist is not installed")
    def test_gan(self):
        text = self.run_example("gan", "--epochs", "1", "--images", "30000", "--out", self.folder.name)
        self.assertLess(self.number(r"real pictures: ([\d.]+) apart", text), 0.2)
        width, height, different = self.pixels("gan.png")
        self.assertEqual((width, height), (16 * 28, 8 * 28))
        self.assertGreater(different, 100)


if __name__ == "__main__":
    unittest.main()

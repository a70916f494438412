"""tests/bench/real_models.py without times: each model whose wheel pip can fetch gives ONNX Runtime's
values."""
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

if not importlib.util.find_spec("onnxruntime"):
    raise unittest.SkipTest("onnxruntime is not here")

from tests.bench import real_models  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class RealModels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.wheels = tempfile.mkdtemp()

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.wheels)

    def check(self, title):
        if not os.path.exists(os.path.join(ROOT, "build", "run_model")):
            self.skipTest("build/run_model is not there: ninja build/run_model")
        words = ["--only", "^%s$" % re.escape(title), "--rounds", "0", "--wheels", self.wheels]
        done = subprocess.run([sys.executable, "tests/bench/real_models.py"] + words, cwd=ROOT,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        counts = re.search(r"^(\d) equal, (\d) wrong, (\d) skipped$", done.stdout, re.M)
        self.assertTrue(counts, done.stdout[-2000:])
        if counts.groups() == ("0", "0", "1"):
            self.skipTest(done.stdout.splitlines()[2])
        self.assertEqual(counts.groups(), ("1", "0", "0"), done.stdout)


for number, name in enumerate(real_models.MODELS):
    setattr(RealModels, "test_%02d_%s" % (number, re.sub(r"\W+", "_", name)),
            lambda self, title=name: self.check(title))


if __name__ == "__main__":
    unittest.main()

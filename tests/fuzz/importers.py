#!/usr/bin/env python3
"""Alters files that generator/ reads: python3 tests/fuzz/importers.py [RUNS [KIND...]].

Whatever a file holds, its command ends with files that the generator reads, or with one sentence: no other
exception, no more than SECONDS of a processor, no more than MEMORY bytes. RUNS inputs of corpus/importers.zip
are read, most of them altered. GPUNN_TEST_SEED, which is printed, determines them. A fault is printed with
its input as base64; `importers.py --file KIND FILE` repeats it.

With the package atheris, `importers.py --guided KIND FOLDER...` has libFuzzer choose the inputs by the code
that they run, and `importers.py --minimize FOLDER` writes corpus/importers.zip anew: of its inputs and those
in FOLDER/KIND/, as few as run the same code. KIND/HASH is an input's name. Those with other names once found
a fault; they stay, and are always read."""
import base64
import contextlib
import io
import json
import os
import random
import re
import resource
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
import zipfile

THIS = os.path.abspath(__file__)
HERE = os.path.dirname(THIS)
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, ROOT)
GUIDED = sys.argv[1:2] == ["--guided"]
if GUIDED:
    import atheris
with atheris.instrument_imports(include=["generator"]) if GUIDED else contextlib.nullcontext():
    from generator import (__main__ as generator, import_darknet, import_kann, import_llm, import_onnx,
                           import_rtneural, import_torch, quantize, spec)
    from generator.exchange import onnx_file, protobuf, tensor_files
from tests.fuzz import alter

CORPUS = os.path.join(HERE, "corpus", "importers.zip")
RUNS, SECONDS, MEMORY, HASH = 300, 20, 1 << 30, 8


class TooLong(BaseException):
    """An input took more than SECONDS of a processor."""


def stop(*_):
    raise TooLong("it takes more than %d s" % SECONDS)


def written(name, data):
    with open(name, "wb") as file:
        file.write(data)
    return name


def zipped(members):
    result = io.BytesIO()
    with zipfile.ZipFile(result, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return result.getvalue()


# ---- what reads a file: each function runs a command on an input, and reads what it wrote ----
def network(main, *arguments):
    main([*arguments, "-o", "net"])
    spec.load("net.json")
    tensor_files.read_safetensors("net.safetensors")


def onnx(data):
    network(import_onnx.main, written("f.onnx", data), "--dynamic")


def onnx_floats(data):
    network(import_onnx.main, written("f.onnx", data), "--floats", "--batch", "2", "--size", "T=3")


def darknet(data):
    config, _, weights = data.partition(b"\0")
    network(import_darknet.main, written("f.cfg", config), written("f.weights", weights))


def kann(data):
    network(import_kann.main, written("f.kann", data))
    network(import_kann.main, "f.kann", "--steps", "2")


def rtneural(data):
    network(import_rtneural.main, written("f.json", data))


def llm(data):
    import_llm.main([written("f.bin", data), "-o", "folder"])
    tensor_files.read_safetensors("folder/model.safetensors")


def tensors(name, data):
    import_torch.main([written(name, data), "-o", "w.safetensors"])
    tensor_files.read_safetensors("w.safetensors")


def torch(data):
    try:
        tensors("f.pt", data)
    except SystemExit as why:
        groups = re.search("it holds the groups ([^,;]*)", str(why))
        if groups is None:
            raise
        import_torch.main(["f.pt", "-o", "w.safetensors", "--key", groups[1]])


def pickle(data):
    """In an archive with storages of 64 bytes."""
    torch(zipped({"a/data.pkl": data, **{"a/data/%d" % i: bytes(range(64)) for i in range(9)}}))


def npz(data):
    tensors("f.npz", data)


def npy(data):
    tensors("f.npz", zipped({"a.npy": data}))


def gguf(data):
    tensors("f.gguf", data)


def state(data):
    tensors("f.json", data)


def safetensors(data):
    quantize.main([written("f.safetensors", data), "-o", "w.gguf", "--to", "q8_0"])


def generate(*words):
    if generator.main(list(words)) == 3:
        raise AssertionError("the generator found a fault of its own")


def weights(data):
    with open("net.json", "w", encoding="ascii") as file:
        json.dump({"gpunn_spec": 1, "tensors": [
            {"op": "input", "name": "x", "shape": ["N", 2]},
            {"op": "linear", "name": "a", "inputs": ["x"], "out_features": 2}]}, file)
    generate("net.json", written("f.safetensors", data), "-o", "net", "--inference")


def one_file(data):
    generate(written("f.gpunn", data), "-o", "net", "--embed")
    generate("f.gpunn", "f.gpunn", "-o", "net", "--inference")


def one_spec(data):
    generate(written("f.json", data), "-o", "net", "--inference")
    generate("f.json", "-o", "net")


def altered_onnx(rng, data):
    return protobuf.write(alter.of_message(rng, protobuf.read(data, onnx_file.MODEL)))


def altered_json(rng, data):
    return alter.of_json(rng, data).encode()


# name: what reads it, and changes that keep its format
KINDS = {"onnx": (onnx, altered_onnx), "onnx_floats": (onnx_floats, altered_onnx),
         "darknet": (darknet, alter.of_text), "kann": (kann, alter.of_bytes),
         "rtneural": (rtneural, altered_json), "llm": (llm, alter.of_bytes), "torch": (torch, alter.of_bytes),
         "pickle": (pickle, alter.of_pickle), "npz": (npz, alter.of_bytes), "npy": (npy, alter.of_text),
         "gguf": (gguf, alter.of_bytes), "state": (state, altered_json),
         "safetensors": (safetensors, alter.of_text), "weights": (weights, alter.of_text),
         "one_file": (one_file, alter.of_text), "spec": (one_spec, altered_json)}


def check(kind, data):
    """Reads an input. Raises what must not happen."""
    said = io.StringIO()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            KINDS[kind][0](data)
    except SystemExit as why:
        assert isinstance(why.code, str) and why.code.strip(), "no sentence, but %r" % (why.code,)
        assert len(why.code) < 20000, "a sentence of %d characters" % len(why.code)
    except AssertionError as why:
        raise AssertionError("%s: %s" % (why, said.getvalue()[-500:])) from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < MEMORY >> 10, "it takes much memory"


def altered(rng, kind, data):
    """An altered input. One without its format is altered byte by byte."""
    if rng.randrange(2):
        try:
            return KINDS[kind][1](rng, data)
        except (ValueError, TypeError, LookupError, RecursionError, protobuf.ProtobufError, struct.error):
            pass
    return alter.of_bytes(rng, data)


def corpus():
    """The inputs by name."""
    with zipfile.ZipFile(CORPUS) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def found_faults(known):
    return {name: data for name, data in known.items() if len(name.partition("/")[2]) != HASH}


def of_kind(known, kind):
    return [data for name, data in known.items() if name.startswith(kind + "/")]


def fails(kind, data):
    """Whether an input shows a fault, which is printed."""
    try:
        check(kind, data)
        return False
    except (Exception, TooLong) as why:
        lines = traceback.format_exception(type(why), why, why.__traceback__)
        print("# %s: %s" % (kind, "# ".join(lines[-4:])))
        print("# input: " + base64.b64encode(data).decode(), flush=True)
        return True


def guided(kind, arguments):
    """Goes on after a fault, which is printed."""
    def mutator(data, most, seed):
        rng = random.Random(seed)
        return altered(rng, kind, data)[:most] if rng.randrange(3) else atheris.Mutate(data, most)

    with open("again", "w", encoding="utf-8") as file:  # which libFuzzer runs to merge
        file.write('#!/bin/sh\nexec %s --guided %s "$@"\n' % (shlex.join((sys.executable, THIS)), kind))
    os.chmod("again", 0o700)
    atheris.Setup([os.path.abspath("again"), *arguments], lambda data: fails(kind, data) and None,
                  custom_mutator=mutator)
    atheris.Fuzz()


def minimize(folder):
    known = corpus()
    found = found_faults(known)
    for kind in KINDS:
        least, old, new = kind + "-least", kind + "-old", os.path.join(folder, kind)
        os.mkdir(least)
        os.mkdir(old)
        for i, data in enumerate(of_kind(known, kind)):
            written(os.path.join(old, str(i)), data)
        folders = [os.path.abspath(path) for path in (least, old, new) if os.path.isdir(path)]
        subprocess.run([sys.executable, THIS, "--guided", kind, "-set_cover_merge=1", "-use_counters=0",
                        "-max_len=16384",
                        *folders], check=True)
        for name in os.listdir(least):
            with open(os.path.join(least, name), "rb") as file:
                found[kind + "/" + name[:HASH]] = file.read()
    alter.save_zip(CORPUS, found)


def run(runs, kinds):
    """Whether all is well."""
    seed, known = int(os.environ.get("GPUNN_TEST_SEED", 1)), corpus()
    print("1..1\n# GPUNN_TEST_SEED=%d" % seed)
    inputs = {kind: of_kind(known, kind) for kind in kinds}
    failed = sum(fails(name.partition("/")[0], data) for name, data in found_faults(known).items())
    rng = random.Random(seed)
    for i in range(runs):
        kind = kinds[i % len(kinds)]
        data = rng.choice(inputs[kind])
        failed += fails(kind, altered(rng, kind, data) if rng.randrange(4) else data)
    print("%s 1 - importers of %d altered files" % ("not ok" if failed else "ok", runs))
    return failed == 0


def main():
    signal.signal(signal.SIGPROF, stop)
    words = [os.path.abspath(word) if os.path.exists(word) else word for word in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        if GUIDED:
            guided(words[1], words[2:])
        if words[:1] == ["--minimize"]:
            return minimize(words[1])
        if words[:1] == ["--file"]:
            with open(words[2], "rb") as file:
                return int(fails(words[1], file.read()))
        return int(not run(int(words[0]) if words else RUNS, words[1:] or list(KINDS)))


if __name__ == "__main__":
    sys.exit(main())

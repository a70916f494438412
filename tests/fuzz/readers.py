#!/usr/bin/env python3
"""Runs the fuzzer of the readers: python3 tests/fuzz/readers.py FUZZER [RUNS [ALTERED]].

It reads corpus/readers.zip and seeds of every format, then alters them until it has run RUNS inputs. Each
whole spec gives ALTERED variants. GPUNN_TEST_SEED, which is printed, determines these and the fuzzer's
choices. A crash prints the input as base64; save it to a file and repeat it with FUZZER FILE.

`readers.py --minimize FUZZER FOLDER...` writes corpus/readers.zip anew: of its inputs, the seeds and those in
the folders, as few as run the same code. KIND/HASH is an input's name. Inputs with other names stay: they
were written by hand or once found a fault."""
import base64
import glob
import hashlib
import gzip
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
from generator import spec  # noqa: E402
from generator.exchange import gguf  # noqa: E402
from tests.fuzz import alter  # noqa: E402

CORPUS = os.path.join(ROOT, "tests", "fuzz", "corpus", "readers.zip")
WORDS = ['"dtype"', '"shape"', '"data_offsets"', '"__metadata__"', '"F32"', '"F64"', '"F16"', '"BF16"',
         '"I64"', "\\u0041", "\\ud83d\\ude00", "9223372036854775807", "-1", "4294967296", "'descr'",
         "'fortran_order'", "'shape'", "'<f4'", "'>f8'", "'|u1'", "True", "False", "\x93NUMPY", "sigmoid(",
         "where(", "leaky_relu(", "max(", "pow(", "K(0.5)", "x0", "y", "pi", "<=", "1e38", "tensor",
         "optimizer.", '"op":', '"id":', '"name":', '"inputs":["', '"N"', '"dims":', '"weight_map"',
         '"normalizer":', '"pre_tokenizer":', '"Sequence"', '"ByteLevel"', '"Metaspace"', '"added_tokens":',
         '"byte_fallback":true', '"NFKC"', '"NFKD"', '"StripAccents"', '"Nmt"', '"Split"', '"Replace"',
         '"Regex":"', '"Isolated"', '"MergedWithNext"', '"invert":true', '(?=', '(?>', '(?i:', '\\\\p{L}',
         '[^\\\\s', '&&[', '{1,3}', '*+', '(?!\\\\S)', '"end_of_word_suffix":"</w>"', '"single_word":true',
         '"parameters":{"weight":{', '"init":{"kind":"', '"consts":{', '"inf"', "false", "null", "GGUF",
         "general.alignment", "tokenizer.ggml.pre", "llama-bpe",
         '"gpunn_blocks:w":"Q4_0"', '"storage":"Q8_0"', '"frozen":true']


def words():
    """WORDS, and every op, key and constant of specs."""
    with open(os.path.join(ROOT, "generator", "model.schema.json"), encoding="ascii") as file:
        schema = json.load(file)["$defs"]
    parts = list(schema["ops"].values()) + list(schema["optimizers"].values())
    names = set(schema["ops"]) | set(schema["optimizers"])
    names.update(key for part in parts for key in part["properties"])
    names.update(value for part in [*schema.values(),
                                    *(p for part in parts for p in part["properties"].values())]
                 for value in part.get("enum", ()) if isinstance(value, str))
    return WORDS + sorted('"%s"' % name for name in names)


def gguf_files():
    """With F32, F16 and Q4_0, and both kinds of tokenizers."""
    tensors = {"a": (0, [2, 2], struct.pack("<4f", 1, 2, 3, 4)), "b": (1, [3], bytes(range(6))),
               "c": (2, [2, 32], bytes(range(36)))}
    pieces = ["<unk>", "<s>", "\u2581", "h", "e", "he", "\u2581he", *(f"<0x{b:02X}>" for b in range(256))]
    yield tensors, {"name": "x", "real": 0.5, "negative": -1, "yes": True, "lists": [[1, 2], [3]]}
    yield {}, {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": pieces,
               "tokenizer.ggml.scores": [-float(i) for i in range(len(pieces))],
               "tokenizer.ggml.token_type": [2, 3] + [1] * 5 + [6] * 256,
               "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.unknown_token_id": 0,
               "tokenizer.ggml.add_space_prefix": False}
    letters = [chr(b) for b in (*range(33, 127), *range(161, 173), *range(174, 256))]
    letters += [chr(256 + i) for i in range(68)]
    yield {}, {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
               "tokenizer.ggml.tokens": letters + ["he"], "tokenizer.ggml.merges": ["h e"],
               "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.add_eos_token": True}


def corpus():
    """The inputs by name."""
    with zipfile.ZipFile(CORPUS) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def adapters():
    """Of rank 2, in PEFT's files."""
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "lora_dropout": 0.0, "bias": "none",
              "use_rslora": False, "target_modules": ["a", "b"]}
    sizes = {"h.a.lora_A": (2, 2), "h.a.lora_B": (3, 2), "h.b.lora_A": (2, 3), "h.b.lora_B": (2, 2)}
    header, at = {}, 0
    for name, shape in sizes.items():
        header["base_model.model.%s.weight" % name] = {
            "dtype": "F32", "shape": list(shape), "data_offsets": [at, at + 4 * shape[0] * shape[1]]}
        at += 4 * shape[0] * shape[1]
    head = json.dumps(header).encode()
    yield json.dumps(config).encode() + b"\0" + struct.pack("<Q", len(head)) + head + bytes(at)


def one_files():
    """Specs with their weights, all zeros."""
    for path in sorted(glob.glob(os.path.join(ROOT, "tests", "generator", "expected", "vectors", "*.json"))):
        model, header, at = spec.load(path), {}, 0
        with open(path, encoding="utf-8") as file:
            header["__metadata__"] = {"format": "pt", "gpunn_spec": file.read()}
        for t in model.tensors:
            if t.kind in ("parameter", "buffer"):
                size = {"f32": 4, "i64": 8, "i32": 4}.get(t.dtype, 1) * math.prod(t.shape)
                header[t.name] = {"dtype": {"bool": "BOOL"}.get(t.dtype, t.dtype.upper()),
                                  "shape": list(t.shape), "data_offsets": [at, at + size]}
                at += size
        head = json.dumps(header).encode()
        if len(head) + at < 8000:
            yield struct.pack("<Q", len(head)) + head + bytes(at)


def seeds(rng, altered_each):
    with tempfile.TemporaryDirectory() as folder:
        for tensors, metadata in gguf_files():
            gguf.write(os.path.join(folder, "seed"), tensors, metadata)
            with open(os.path.join(folder, "seed"), "rb") as file:
                whole = file.read()
            yield b"g" + whole
            yield b"S" + whole
    yield from (b"a" + data for data in adapters())
    yield from (b"o" + data for data in one_files())
    for kind, size in (8, 1), (9, 1), (11, 2), (12, 4), (13, 4), (14, 8):
        data = bytes([0, 0, kind, 2]) + struct.pack(">2I", 2, 3) + bytes(range(6 * size))
        yield b"i" + data
        yield b"i" + gzip.compress(data[:9], mtime=0) + gzip.compress(data[9:], mtime=0)
    for i, (descr, order, shape, size) in enumerate(
            [("<f4", "False", "(2, 3)", 24), (">f8", "True", "(2, 3)", 48), ("|u1", "False", "(6,)", 6),
             ("<i8", "True", "(1, 2, 3)", 48), ("|b1", "False", "()", 1), ("<f2", "True", "(2L, 3L)", 12)]):
        header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
        length = struct.pack("<H", len(header)) if i % 2 else struct.pack("<I", len(header))
        yield b"n\x93NUMPY" + bytes([1 if i % 2 else 2, 0]) + length + header + bytes(range(size))
    yield b"c" + (b"\3" + bytes(3072)) * 2
    yield b"C" + (b"\3\4" + bytes(3072)) * 2
    tensors = (
        '"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"F64","shape":[3],'
        '"data_offsets":[16,40]},"\\u00e9\\ud83d\\ude00.num_batches_tracked":{"dtype":"I64",'
        '"shape":[],"data_offsets":[40,48]},"rest":{"dtype":"U8","shape":[208],"data_offsets":[48,256]}')
    for kind in b"h", b"H":
        yield kind + ("{" + tensors + "}").encode()
        yield kind + ('{"__metadata__":{"format":"pt","x\\n":"\\\\"},' + tensors + "} ").encode()
    header = (b'{"a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},'
              b'"b":{"dtype":"F16","shape":[3],"data_offsets":[8,14]}}')
    for kind in b"s", b"k", b"S":
        yield kind + struct.pack("<Q", len(header)) + header + bytes(range(14))
    for pairs in '"a":"1","b":"2"', '"b":"2"', '"a":"2"', '"a":"1","a":"1","b":"3"', '"a":"../1"', "":
        yield b'w{"metadata":{"total_size":28},"weight_map":{' + pairs.encode() + b"}}"
    for text in ("x * sigmoid(1.702 * x)", "where(x > 0, x, leaky_relu(y, 0.2))",
                 "max(x, -y) / (1e-3 + abs(x0)) == x1", "-(-x)", "((((x))))",
                 "clamp(x, -1, 1) + hardtanh(y, 0, 2)", "pow(x, 2) - K(0.5) * pi"):
        yield b"e" + text.encode()
    for path in sorted(glob.glob(os.path.join(ROOT, "tests", "generator", "expected", "vectors", "*.json"))):
        with open(path, "rb") as file:
            text = file.read()
        yield b"j" + text
        for _ in range(altered_each):
            yield b"j" + alter.of_json(rng, text).encode()
    with open(os.path.join(ROOT, "tests", "generator", "expected", "vectors.txt"), "rb") as file:
        for line in file:
            if line[65:66] == b"{":
                yield b"j" + line[65:]
                for _ in range((altered_each + 4) // 5):
                    yield b"j" + alter.of_json(rng, line[65:]).encode()
    for optimizer in ('"sgd","lr":0.1,"momentum":0.9,"dampening":0.5,"weight_decay":0.1,"maximize":true',
                      '"sgd","momentum":1,"nesterov":true',
                      '"adam","betas":[0.5,0.75],"eps":0,"maximize":true', '"adamw","weight_decay":0',
                      '"adamax","lr":1,"eps":1e-3', '"rmsprop","alpha":0.5,"momentum":0.1,"centered":true',
                      '"adagrad","lr_decay":0.1,"initial_accumulator_value":1',
                      '"lion","betas":[0.5,0.75],"weight_decay":0.1'):
        yield ('j{"gpunn_spec":1,"tensors":[{"op":"input","name":"x","shape":["N",3]},'
               '{"op":"linear","name":"fc","inputs":["x"],"out_features":2}],'
               '"clip_grad_norm":1,"optimizer":{"type":%s}}' % optimizer).encode()
    text = ('{"gpunn_spec":1,"tensors":[{"op":"input","name":"x","shape":["N",1],"dtype":"f64"},'
            '{"op":"linear","name":"fc","inputs":["x"],"out_features":2}]}')
    header = json.dumps({"__metadata__": {"format": "pt", "gpunn_spec": text, "classes": "a\\u00e9\n"},
                         "fc.weight": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
                         "fc.bias": {"dtype": "F16", "shape": [2], "data_offsets": [8, 12]}}).encode()
    yield b"o" + struct.pack("<Q", len(header)) + header + bytes(range(12))
    text = "Hello, wörld! I'm 中文 e\u0301  12½\t한국어 ".encode()
    yield b"t[UNK]\nhe\n##llo\nworld\n##ld\n##l\nw\n##or\n,\n\xe4\xb8\xad\n1\n##2\ne\n\0" + text
    bytes_to_text = {b: chr(b) for b in (*range(33, 127), *range(161, 173), *range(174, 256))}
    for b in range(256):
        bytes_to_text.setdefault(b, chr(256 + len(bytes_to_text) - 188))
    vocabulary = json.dumps(
        {piece: i for i, piece in enumerate([*bytes_to_text.values(), "he", "ll", "llo", "\u0120w"])})
    for merges in "#version: 0.2\nh e\nl l\nll o\n\u0120 w\n", "":
        yield b"T" + vocabulary.encode() + b"\0" + merges.encode() + b"\0" + text
    with open(os.path.join(ROOT, "tests", "examples", "expected_output", "tokenizer_json.json"),
              encoding="utf-8") as file:
        golden = json.load(file)
    golden.pop("texts")
    bytes_ = [[f"<0x{b:02X}>", -20] for b in range(256)]
    pieces = ["<unk>", "<s>", "</s>", "[UNK]", "[CLS]", "[SEP]", "\u2581", "h", "e", "he", "\u2581he", "l",
              "##l", "ll", "llo", "1", "the", "\u00e9"]
    for entry in golden.values():
        model = entry["file"]["model"]
        vocab = [[piece, -2 - i / 8] for i, piece in enumerate(pieces)]
        if isinstance(model["vocab"], list):
            model.update(vocab=vocab + (bytes_ if model.get("byte_fallback") else []), unk_id=0)
        elif "vocab.json" in model["vocab"]:
            model.update(vocab=json.loads(vocabulary), merges=["h e", "l l", "ll o", "\u0120 w"])
        else:
            model.update(vocab={piece: i for i, (piece, _) in enumerate(
                vocab + (bytes_ if model.get("byte_fallback") else []))})
            if "merges" in model:
                model.update(merges=[["h", "e"], ["l", "l"], ["\u2581", "he"]])
        for added in entry["file"]["added_tokens"]:
            added["id"] %= 18
        yield b"y" + json.dumps(entry["file"]).encode() + b"\0" + text + b"<s>the </s> the model <mask>"
        for _ in range(altered_each):
            yield b"y" + alter.of_json(rng, json.dumps(entry["file"])).encode() + b"\0" + text
    with open(os.path.join(ROOT, "tests", "examples", "expected_output", "tokenizer_expressions.json"),
              encoding="utf-8") as file:
        expressions = [expression for expression, _ in json.load(file)["replace"]]
    for i, expression in enumerate(expressions):
        step = {"type": ("Replace", "Split")[i % 2], "pattern": {"Regex": expression}, "content": "<>",
                "behavior": "MergedWithNext", "invert": False}
        model = {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "a": 1}}
        yield (b"y" + json.dumps({("normalizer", "pre_tokenizer")[i % 2]: step, "model": model}).encode() +
               b"\0" + text)
    yield (b'q{"model_type":"bert","hidden_size":16,"num_attention_heads":2,"layer_norm_eps":1e-12,'
           b'"hidden_act":"gelu","classifier_dropout":null,"id2label":{"0":"A","1":"B"},'
           b'"architectures":["X"],"use_cache":true}')
    yield b'r\xef\xbb\xbflabel,text\r\n0,"a, ""b""\r\nc"\r\n\r\n"1",plain\n2,\n3,"x\n,,\n"""",""'
    yield b'R\xef\xbb\xbfb,"c ""d""",a\r\n1,x,2\r\n\r\n" 3e-2 ",,\n,"",nan\n'
    yield b'R"a";"b, c";b\r\n"1,5";x;-2\n" 3";y;,5\r1.5;;'


def written(folder, inputs):
    """The folder, with inputs that have their kind's letter and a hash as names."""
    os.makedirs(folder)
    for data in inputs:
        name = "%02x-%s" % (data[0], hashlib.sha256(data).hexdigest()[:16])
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)
    return folder


def minimize(fuzzer, folders):
    known = corpus()
    inputs = [*seeds(random.Random(1), 0), *known.values()]
    with tempfile.TemporaryDirectory() as folder:
        least = written(os.path.join(folder, "least"), ())
        subprocess.run([fuzzer, "-set_cover_merge=1", "-use_counters=0", "-max_len=8192",
                        "-rss_limit_mb=3000", least, written(os.path.join(folder, "seeds"), inputs),
                        *folders], check=True)
        found = {name: data for name, data in known.items() if name[1] != "/"}
        for path in sorted(glob.glob(least + "/*")):
            with open(path, "rb") as file:
                data = file.read()
            found["%c/%s" % (data[0], hashlib.sha256(data).hexdigest()[:8])] = data
    alter.save_zip(CORPUS, found)


def main():
    if sys.argv[1] == "--minimize":
        return minimize(os.path.abspath(sys.argv[2]), sys.argv[3:])
    fuzzer, seed = os.path.abspath(sys.argv[1]), int(os.environ.get("GPUNN_TEST_SEED", 1))
    runs, altered_each = (int(sys.argv[i]) if len(sys.argv) > i else otherwise
                          for i, otherwise in ((2, 1600), (3, 1)))
    print(f"1..1\n# GPUNN_TEST_SEED={seed}")
    with tempfile.TemporaryDirectory() as folder:
        new, found = (written(os.path.join(folder, name), ()) for name in ("new", "found"))
        inputs = [*corpus().values(), *seeds(random.Random(seed), altered_each)]
        dictionary = os.path.join(folder, "words")
        with open(dictionary, "w") as file:
            for word in words():
                file.write('"' + "".join(f"\\x{b:02x}" for b in word.encode("latin-1")) + '"\n')
        # seeds first, all of them, then the fuzzer's own inputs
        command = [fuzzer, f"-dict={dictionary}", "-max_len=8192", "-timeout=600", "-rss_limit_mb=3000",
                   "-close_fd_mask=2", f"-runs={runs}",
                   f"-seed={seed}", f"-artifact_prefix={found}/", new,
                   written(os.path.join(folder, "seeds"), inputs)]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text = done.stdout.decode(errors="replace")
        bad = done.returncode != 0
        if bad:
            print(text[-6000:])
            for path in glob.glob(found + "/*"):
                print("input:", base64.b64encode(open(path, "rb").read()[:6000]).decode())
        else:
            print("#", [line for line in text.splitlines() if line.startswith("Done")][-1:])
    print("not ok 1 - parsers under the fuzzer" if bad else "ok 1 - parsers under the fuzzer")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())

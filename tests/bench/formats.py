#!/usr/bin/env python3
"""Times a Llama of 123.5M random weights in several formats: examples/llama.c beside llama.cpp, as a table.

    pip install numpy gguf && python3 tests/bench/formats.py LLAMA_CPP BUILD [--rounds 3] [--threads 1,2]
                                      [--formats f32,bf16,f16,q8_0,q4_0,q4_k,q6_k] [--user]

LLAMA_CPP is a checkout or the folder vendor/llama.cpp of llama-cpp-python's sdist. BUILD is where CMake built
its targets llama and ggml-cpu with -DBUILD_SHARED_LIBS=OFF. Both programs read the same .gguf, which
llama.cpp has quantised. They run 512 tokens at once (the least of 4 runs), and then 32 tokens one by one,
greedily, behind 8 others. llama.cpp keeps keys and values in F16, gpunn in F32. They alternate. A figure is
the median over rounds, in ms or MiB; a ratio is llama.cpp's by gpunn's. With --user times are user time,
which other programs change less; threads that wait add to it. `read` is the time to sum as many bytes as the
file has, as fast as numpy can. `logits` is the largest difference of the first logits by their largest size.
`equal` counts the greedy tokens before the first that differs."""
import argparse
import os
import statistics
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WIDTH, INNER, LAYERS, WORDS, HEADS = 768, 2048, 12, 50257, 12
PREFILL, TOKENS, IDS = 512, 32, "1 450 7483 310 3444 338 9 17".split()
# values of llama_ftype, and of gpunn_precision for weights without blocks
TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q4_k": 14, "q5_k": 16,
         "q6_k": 18, "iq4_nl": 25, "bf16": 32}
PRECISIONS = {"bf16": 2, "f16": 3}


def write_model(path):
    """The model in F32, with a vocabulary of made-up pieces."""
    import gguf
    import numpy
    chance = numpy.random.default_rng(1)

    def add(name, rows, columns, size):
        out.add_tensor(name + ".weight", chance.standard_normal((rows, columns), dtype=numpy.float32) * size)

    out = gguf.GGUFWriter(path, "llama")
    out.add_block_count(LAYERS)
    out.add_context_length(2048)
    out.add_embedding_length(WIDTH)
    out.add_feed_forward_length(INNER)
    out.add_head_count(HEADS)
    out.add_head_count_kv(HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_freq_base(10000.0)
    out.add_rope_dimension_count(WIDTH // HEADS)
    out.add_vocab_size(WORDS)
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("default")
    out.add_token_list([f"t{i}" for i in range(WORDS)])
    out.add_token_merges(["t 1"])
    add("token_embd", WORDS, WIDTH, 0.05)
    for i in range(LAYERS):
        for name in "attn_q", "attn_k", "attn_v", "attn_output":
            add(f"blk.{i}.{name}", WIDTH, WIDTH, WIDTH ** -0.5)
        add(f"blk.{i}.ffn_gate", INNER, WIDTH, WIDTH ** -0.5)
        add(f"blk.{i}.ffn_up", INNER, WIDTH, WIDTH ** -0.5)
        add(f"blk.{i}.ffn_down", WIDTH, INNER, INNER ** -0.5)
        for name in "attn_norm", "ffn_norm":
            out.add_tensor(f"blk.{i}.{name}.weight", numpy.ones(WIDTH, numpy.float32))
    out.add_tensor("output_norm.weight", numpy.ones(WIDTH, numpy.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def build(folder, source, built):
    """Both programs."""
    gpunn, ggml = os.path.join(folder, "gpunn"), os.path.join(folder, "ggml")
    here = os.path.join(ROOT, "tests", "bench")
    subprocess.run(["cc", "-O3", "-march=native", "-I" + ROOT, os.path.join(here, "formats.c"), "-o", gpunn,
                    "-lm", "-lpthread"], check=True)
    libraries = [os.path.join(built, path) for path in (
        "src/libllama.a", "ggml/src/libggml.a", "ggml/src/libggml-cpu.a", "ggml/src/libggml-base.a")]
    subprocess.run(["c++", "-O2", "-fopenmp", "-I" + os.path.join(source, "include"),
                    "-I" + os.path.join(source, "ggml", "include"), os.path.join(here, "formats_ggml.cpp"),
                    *libraries, "-o", ggml, "-lpthread", "-ldl"], check=True)
    return gpunn, ggml


def measure(command, logits):
    """What a program prints, by name."""
    done = subprocess.run([*command, str(PREFILL), str(TOKENS), *IDS], stdout=subprocess.PIPE, text=True,
                          check=True, env=dict(os.environ, LOGITS=logits))
    return {words[0]: words[1:] for words in map(str.split, done.stdout.splitlines())}


def read(count):
    import numpy
    numbers, times = numpy.ones(count // 8), []
    for _ in range(5):
        begin = time.perf_counter()
        numbers.sum()
        times.append(time.perf_counter() - begin)
    return 1000 * min(times)


def compare(paths):
    """The largest difference of two files of logits by their largest size."""
    import numpy
    ours, theirs = (numpy.fromfile(path, numpy.float32) for path in paths)
    return float(abs(ours - theirs).max() / abs(theirs).max())


def equal(ours, theirs):
    return next((i for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), len(ours))


def row(programs, model, kind, threads, args):
    """A row of the table."""
    precision = str(PRECISIONS.get(kind, 0))
    commands = [programs[0], model, precision, threads], [programs[1], model, threads]
    logits = [model + ".ours", model + ".theirs"]
    found = [[measure(*pair) for pair in zip(commands, logits)] for _ in range(args.rounds)]
    cells = [kind, threads]
    for what, at in ("prefill", args.user), ("token", args.user), ("peak", 0):
        ours, theirs = (statistics.median(float(pair[i][what][at]) for pair in found) for i in (0, 1))
        ratio = statistics.median(float(b[what][at]) / float(a[what][at]) for a, b in found)
        cells += [f"{ours:.2f}", f"{theirs:.2f}", f"{ratio:.2f}"]
    same = equal(*(one["ids"] for one in found[0]))
    return cells + [f"{read(os.path.getsize(model)):.2f}", f"{compare(logits):.1e}", f"{same} of {TOKENS}"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("built")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--formats", default="f32,bf16,f16,q8_0,q4_0,q4_k,q6_k")
    parser.add_argument("--user", action="store_true")
    args = parser.parse_args()
    print("| format | threads | prefill | llama.cpp | ratio | token | llama.cpp | ratio | peak | llama.cpp | "
          "ratio | read | logits | equal |\n" + "|---" * 14 + "|")
    with tempfile.TemporaryDirectory() as folder:
        programs, wide = build(folder, args.source, args.built), os.path.join(folder, "f32.gguf")
        write_model(wide)
        for kind in args.formats.split(","):
            model = os.path.join(folder, kind + ".gguf")
            if kind != "f32":
                subprocess.run([programs[1], wide, model, str(TYPES[kind])], check=True)
            for threads in args.threads.split(","):
                print("| " + " | ".join(row(programs, model, kind, threads, args)) + " |", flush=True)
            if kind != "f32":
                os.remove(model)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Times a token of GPT-2 124M: examples/gpt2.c beside ggml (llama.cpp) and Hugging Face's generate, as a
table.

    pip install torch transformers gguf && ninja build/gpt2
    python3 tests/bench/tokens.py [--llama-bench llama.cpp/build/bin/llama-bench] [--rounds 5]
                                  [--contexts 64,256,1024] [--threads 1,2]

All three take the same random weights in F32 and generate 24 tokens greedily. The prompt before them fills
the context, and its keys and values are cached. They alternate. A figure is ms per token, the median over
rounds (minimum to maximum). A ratio is the median over rounds of a peer's time divided by gpunn's. `read` is
the time to sum as many bytes as the weights have, as fast as PyTorch can. A token cannot take less. What is
not installed is left out."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOKENS = 24
# the names of a layer's tensors in GGUF and in Hugging Face's file, where a product's weights are [in, out]
LAYER = {"attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj",
         "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}


def write_gguf(model, path):
    """The model as llama.cpp reads it, with a vocabulary of made-up pieces."""
    import gguf
    weights, config = {n: t.numpy() for n, t in model.transformer.state_dict().items()}, model.config
    out = gguf.GGUFWriter(path, "gpt2")
    out.add_block_count(config.n_layer)
    out.add_context_length(config.n_positions)
    out.add_embedding_length(config.n_embd)
    out.add_feed_forward_length(4 * config.n_embd)
    out.add_head_count(config.n_head)
    out.add_layer_norm_eps(config.layer_norm_epsilon)
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_tokenizer_model("gpt2")
    out.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    out.add_token_merges(["t 1"])
    for name, source in [("token_embd.weight", "wte.weight"), ("position_embd.weight", "wpe.weight"),
                         ("output_norm.weight", "ln_f.weight"), ("output_norm.bias", "ln_f.bias")]:
        out.add_tensor(name, weights[source])
    for i in range(config.n_layer):
        for name, source in LAYER.items():
            weight = weights[f"h.{i}.{source}.weight"]
            out.add_tensor(f"blk.{i}.{name}.weight", weight.T.copy() if weight.ndim == 2 else weight)
            out.add_tensor(f"blk.{i}.{name}.bias", weights[f"h.{i}.{source}.bias"])
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def gpunn(folder, context, threads):
    command = [os.path.join(ROOT, "build", "gpt2"), "--config", "124M", "--steps", "0", "--context",
               str(context), "--generate", str(TOKENS), "--temperature", "0", "--times", "--cpu", "--threads",
               str(threads), "--weights", os.path.join(folder, "model.safetensors"), "--prompt",
               ("forty-one, forty-two, " * 64)[:context - TOKENS - 1]]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
    return float(re.search(rb"([\d.]+) ms a token", done.stderr).group(1))


def ggml(program, folder, context, threads):
    command = [program, "-m", os.path.join(folder, "gpt2.gguf"), "-p", "0", "-n", str(TOKENS), "-d",
               str(context - TOKENS - 1), "-t", str(threads), "-r", "1", "-o", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return 1000 / json.loads(done.stdout)[0]["avg_ts"]


def hugging_face(model, context, threads):
    """A run of all tokens, minus one that generates only the first."""
    import torch
    torch.set_num_threads(threads)
    prompt = torch.randint(0, 256, (1, context - TOKENS - 1))

    def took(tokens):
        begin = time.perf_counter()
        model.generate(prompt, attention_mask=torch.ones_like(prompt), min_new_tokens=tokens,
                       max_new_tokens=tokens, do_sample=False, use_cache=True, pad_token_id=0)
        return time.perf_counter() - begin
    first = min(took(1) for _ in range(2))
    return 1000 * (took(TOKENS + 1) - first) / TOKENS


def read(numbers, threads):
    import torch
    torch.set_num_threads(threads)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        numbers.sum()
        times.append(time.perf_counter() - begin)
    return 1000 * min(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--llama-bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contexts", default="64,256,1024")
    parser.add_argument("--threads", default="1,2")
    args = parser.parse_args()
    try:
        import torch
        import transformers
    except ImportError as missing:
        sys.exit(f"{missing.name} is not installed: pip install torch transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    numbers = torch.rand(sum(p.numel() for p in model.parameters()))
    print("| context | threads | read | gpunn | ggml | generate | gpunn by read | ggml by gpunn | generate "
          "by gpunn |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        model.save_pretrained(folder)
        if args.llama_bench:
            write_gguf(model, os.path.join(folder, "gpt2.gguf"))
        for context in map(int, args.contexts.split(",")):
            for threads in map(int, args.threads.split(",")):
                forms = {"read": lambda: read(numbers, threads),
                         "gpunn": lambda: gpunn(folder, context, threads),
                         "ggml": lambda: ggml(args.llama_bench, folder, context, threads) if args.llama_bench
                         else float("nan"), "generate": lambda: hugging_face(model, context, threads)}
                rounds = [{name: form() for name, form in forms.items()} for _ in range(args.rounds)]
                cells = []
                for name in forms:
                    times = [r[name] for r in rounds]
                    cells.append(f"{statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f})")
                for by, of in [("gpunn", "read"), ("ggml", "gpunn"), ("generate", "gpunn")]:
                    cells.append(f"{statistics.median(r[by] / r[of] for r in rounds):.2f}")
                print(f"| {context} | {threads} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

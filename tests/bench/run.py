"""Runs bench.c's workloads alternately with their PyTorch versions and prints the ratios as a table, row by
row.

    python3 tests/bench/run.py BENCH [--python PYTHON] [--threads 1,2] [--rounds 5] [--minutes 14] [NAME ...]

BENCH is the program built from bench.c. PYTHON is an interpreter with torch (default: python3); without torch
gpunn is timed alone. ninja first builds what is timed, or brings it up to date. Each figure comes from a
fresh process. Within a round the peers of a workload run one after another, and the order rotates from round
to round. After the first round, a workload gets only as many rounds as its share of the minutes allows. ms:
the median over rounds of each process's median. ratio: the median over rounds of peer / gpunn within a round;
above 1 gpunn is faster. MiB: peak resident memory of the process. Standard library only."""
import argparse
import os
import platform
import statistics
import subprocess
import sys
import time

# The peers of each workload: names in bench_torch.py or, with a leading "=", programs beside BENCH with their
# argument.
PEERS = {
    "sgemm1024": ["sgemm1024"], "sgemm256": ["sgemm256"], "mlp20": ["mlp20"], "lenet4": ["lenet4"],
    "lenet128": ["lenet128"], "mlp784": ["mlp784"], "lstm": ["lstm"], "gru": ["gru"],
    "resnet_forward": ["resnet_forward", "resnet_forward_jit"],
    "resnet_train": ["resnet_train", "resnet_train_cl"], "bert1": ["bert1", "bert1_fast"],
    "bert8": ["bert8", "bert8_fast"], "bert1_bf16": ["bert1_b16_autocast", "bert1_b16_weights"],
    "bert8_bf16": ["bert8_b16_autocast", "bert8_b16_weights"],
    "gpt": ["gpt"], "gpt_bf16": ["gpt_b16_autocast"], "register48": ["register48"],
    "register96": ["register96"], "register192": ["register192"], "cnn3d": ["cnn3d", "cnn3d_cl"],
    "adam": ["adam", "adam_fused", "=adam_loop"], "attention8192": ["attention8192"],
    "attention4096": ["attention4096"], "attention1500": ["attention1500"],
    "table_sgd": ["table_sgd"], "table_adam": ["table_adam"],
    "fused": ["fused", "=fused hand", "=fused plain"],
}
OWN = {"fused": ["fused", "generated"]}  # workloads with a program of their own beside BENCH
GFLOP = {"sgemm1024": 2 * 1024**3 / 1e9, "sgemm256": 2 * 256**3 / 1e9}


def programs(names):
    """The programs of the workloads, in BENCH's folder."""
    own = {OWN.get(name, ["bench"])[0] for name in names}
    return sorted(own | {peer[1:].split()[0] for name in names
                         for peer in PEERS[name] if peer.startswith("=")})


def build(folder, names):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    targets = [os.path.relpath(os.path.join(folder, program), root) for program in programs(names)]
    try:
        done = subprocess.run(["ninja", "-C", root, *targets], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    except OSError:
        sys.exit("ninja, which builds what is timed, is not installed: apt-get install ninja-build")
    if done.returncode:
        sys.exit(f"{done.stdout}What is timed could not be built.")


def torch_version(python):
    try:
        done = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True,
                              text=True)
    except OSError:
        sys.exit(f"there is no {python}; name an interpreter with torch by --python, or leave that out")
    return done.stdout.strip()


def cpu_info():
    """Linux's description of the processors."""
    try:
        with open("/proc/cpuinfo") as file:
            return file.read()
    except OSError:
        return ""


def processor():
    return next((line.split(":", 1)[1].strip()
                 for line in cpu_info().splitlines() if line.startswith("model name")), platform.machine())


def settings(threads, info):
    """A peer's environment. If OpenBLAS and PyTorch do not know a processor with AVX-512, they are told to
    use AVX-512."""
    env = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    return dict(env, OPENBLAS_CORETYPE="SKYLAKEX", ATEN_CPU_CAPABILITY="avx512") if "avx512f" in info else env


def measure(command, threads):
    """(ms, MiB) of one fresh process, or a sentence when it could not run."""
    done = subprocess.run(command + [str(threads)], env=dict(os.environ, **settings(threads, cpu_info())),
                          capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["failed"])[-1].replace("|", "/")
        print(f"# {' '.join(command)}: {why}", flush=True)
        return why
    fields = done.stdout.split()
    return float(fields[2]), float(fields[4])


def timed(result):
    """Whether measure found figures."""
    return isinstance(result, tuple)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=14)
    parser.add_argument("--built", action="store_true", help="nothing is to be built")
    args = parser.parse_intermixed_args()
    names, threads_of = args.names or list(PEERS), [int(threads) for threads in args.threads.split(",")]
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        sys.exit(f"there is no workload {unknown[0]}, but {', '.join(PEERS)}")
    here = os.path.dirname(os.path.abspath(__file__))
    twin = [args.python, os.path.join(here, "bench_torch.py")]
    version, folder = torch_version(args.python), os.path.dirname(os.path.abspath(args.bench))
    if not args.built:
        build(folder, names)
    print(f"{processor()}, {os.cpu_count()} processors, torch "
          f"{version or 'not found: gpunn alone (apt-get install python3-torch, or --python)'}, at most "
          f"{args.rounds} rounds\n")
    print("| workload | threads | gpunn ms | peer | peer ms | ratio | gpunn MiB | peer MiB | rounds |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    end, rows, status = time.monotonic() + 60 * args.minutes, len(names) * len(threads_of), 0
    for name in names:
        for threads in threads_of:
            begin = time.monotonic()
            share, rows = (end - begin) / rows, rows - 1
            commands = {"gpunn": [os.path.join(folder, word) if i == 0 else word
                                  for i, word in enumerate(OWN.get(name, ["bench", name]))]}
            for peer in PEERS[name]:
                own = peer.startswith("=")
                if own or version:
                    words = peer.lstrip("=").split()
                    commands[" ".join(words) if own else "torch " + peer] = (
                        [os.path.join(folder, words[0]), words[-1]] if own else twin + [peer])
            rounds = []
            for number in range(args.rounds):
                spent = time.monotonic() - begin
                if number and spent + spent / number > share:
                    break
                order = list(commands) if number % 2 == 0 else list(commands)[::-1]
                rounds.append({key: measure(commands[key], threads) for key in order})
            if not any(timed(r["gpunn"]) for r in rounds):
                status = 1  # it said why
                continue
            ours = statistics.median(r["gpunn"][0] for r in rounds if timed(r["gpunn"]))
            extra = f" ({GFLOP[name] / ours * 1e3:.0f} GFLOP/s)" if name in GFLOP else ""
            pairs = {peer: [r for r in rounds if timed(r[peer]) and timed(r["gpunn"])]
                     for peer in list(commands)[1:]}
            if not any(pairs.values()):
                alone = [r["gpunn"][1] for r in rounds if timed(r["gpunn"])]
                print(f"| {name} | {threads} | {ours:.4g}{extra} | - | - | - | {max(alone):.0f} | - | "
                      f"{len(alone)} |", flush=True)
            for peer, both in pairs.items():
                if not both:
                    why = next((r[peer] for r in rounds if not timed(r[peer])), "-")
                    print(f"| {name} | {threads} | {ours:.4g}{extra} | {peer} | {why} | - | - | - | 0 |",
                          flush=True)
                    continue
                ratio = statistics.median(r[peer][0] / r["gpunn"][0] for r in both)
                print(f"| {name} | {threads} | {ours:.4g}{extra} | {peer} | "
                      f"{statistics.median(r[peer][0] for r in both):.4g} | {ratio:.2f} | "
                      f"{max(r['gpunn'][1] for r in both):.0f} | {max(r[peer][1] for r in both):.0f} | "
                      f"{len(both)} |", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())

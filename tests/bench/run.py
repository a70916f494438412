"""Runs bench.c's workloads alternately with their PyTorch twins and prints the ratios as a table.

    python3 tests/bench/run.py BENCH [--python PYTHON] [--threads 1,2] [--rounds 5] [NAME ...]

BENCH is the program built from bench.c, PYTHON an interpreter with torch (default: this one). Each figure is a fresh process;
within a round the peers of a workload run back to back, and the order turns round from one round to the next. ms: the median
over rounds of each process's median. ratio: the median over rounds of peer / gpunn in the same round, so above 1 is faster
than the peer. MiB: peak resident memory of the process. Standard library only.
"""
import argparse
import os
import platform
import statistics
import subprocess

# The peers of each workload: twins in bench_torch.py, or, with a leading "=", programs beside BENCH and their argument.
PEERS = {
    "sgemm1024": ["sgemm1024"], "sgemm256": ["sgemm256"], "mlp20": ["mlp20"], "lenet4": ["lenet4"], "lenet128": ["lenet128"],
    "mlp784": ["mlp784"], "lstm": ["lstm"], "gru": ["gru"], "resnet_forward": ["resnet_forward", "resnet_forward_jit"],
    "resnet_train": ["resnet_train", "resnet_train_cl"], "bert1": ["bert1", "bert1_fast"], "bert8": ["bert8", "bert8_fast"],
    "gpt": ["gpt"], "register48": ["register48"], "register96": ["register96"], "register192": ["register192"],
    "cnn3d": ["cnn3d", "cnn3d_cl"], "adam": ["adam", "adam_fused", "=adam_loop"],
    "fused": ["fused", "=fused hand", "=fused plain"],
}
OWN = {"fused": ["fused", "generated"]}  # workloads with a program of their own beside BENCH
GFLOP = {"sgemm1024": 2 * 1024**3 / 1e9, "sgemm256": 2 * 256**3 / 1e9}


def measure(command, threads):
    """(ms, MiB) of one fresh process, or None when it could not run."""
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads), OPENBLAS_CORETYPE="SKYLAKEX",
               ATEN_CPU_CAPABILITY="avx512")
    done = subprocess.run(command + [str(threads)], env=env, capture_output=True, text=True)
    if done.returncode:
        print(f"# {' '.join(command)}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
        return None
    fields = done.stdout.split()
    return float(fields[2]), float(fields[4])


def processor():
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_intermixed_args()
    here = os.path.dirname(os.path.abspath(__file__))
    twin = [args.python, os.path.join(here, "bench_torch.py")]
    version = subprocess.run([args.python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True).stdout.strip()
    print(f"{processor()}, {os.cpu_count()} processors, torch {version or 'not found'}, {args.rounds} rounds\n")
    print("| workload | threads | gpunn ms | peer | peer ms | ratio | gpunn MiB | peer MiB |")
    print("|---|---|---|---|---|---|---|---|")
    for name in args.names or PEERS:
        for threads in map(int, args.threads.split(",")):
            folder = os.path.dirname(args.bench)
            commands = {"gpunn": [os.path.join(folder, OWN[name][0])] + OWN[name][1:] if name in OWN else [args.bench, name]}
            for peer in PEERS[name]:
                own = peer.startswith("=")
                if own or version:
                    words = peer.lstrip("=").split()
                    commands[" ".join(words) if own else "torch " + peer] = (
                        [os.path.join(folder, words[0]), words[-1]] if own else twin + [peer])
            rounds = []
            for number in range(args.rounds):
                order = list(commands) if number % 2 == 0 else list(commands)[::-1]
                rounds.append({key: measure(commands[key], threads) for key in order})
            ours = statistics.median(r["gpunn"][0] for r in rounds if r["gpunn"])
            extra = f" ({GFLOP[name] / ours * 1e3:.0f} GFLOP/s)" if name in GFLOP else ""
            if len(commands) == 1:
                print(f"| {name} | {threads} | {ours:.4g}{extra} | - | - | - | {max(r['gpunn'][1] for r in rounds):.0f} | - |", flush=True)
            for peer in list(commands)[1:]:
                both = [r for r in rounds if r[peer] and r["gpunn"]]
                if not both:
                    continue
                ratio = statistics.median(r[peer][0] / r["gpunn"][0] for r in both)
                print(f"| {name} | {threads} | {ours:.4g}{extra} | {peer} | {statistics.median(r[peer][0] for r in both):.4g} | "
                      f"{ratio:.2f} | {max(r['gpunn'][1] for r in both):.0f} | {max(r[peer][1] for r in both):.0f} |", flush=True)


main()

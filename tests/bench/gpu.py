"""Times gpunn against PyTorch on a GPU and prints a table: python3 tests/bench/gpu.py PROGRAM [--json FILE] [--seconds 240] [NAME ...]

PROGRAM is built from gpu_bench.c; PyTorch's side is gpu_torch.py under --python, once for each mode: eager, compile, reduce-overhead and
graph (the eager step captured by hand). All peers of a workload stand ready beside each other and are timed in turns, in an order that
turns round from one round to the next, each for about 50 ms a round with a synchronisation at its end. ms: the median over the rounds.
ratio: the median over the rounds of peer / gpunn in the same round, above 1: gpunn is faster. MiB: the peak of memory held in tensors.
Workloads for which the time does not suffice are left out and named. Standard library only.
"""
import argparse
import datetime
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Name: bytes that must be moved (0: no bandwidth is told). copy, PyTorch's, gives the bandwidth that the others are held against.
WORKLOADS = {"mlp20": 0, "lenet4": 0, "lenet4096": 0, "mlp784_f32": 0, "mlp784_tf32": 0, "mlp784_bf16": 0, "resnet18_bf16": 0,
             "copy": 2 << 28, "relu": 2 << 28, "gelu": 2 << 28, "add": 3 << 28, "adamw": 28 * 100000000}
MODES = ("eager", "compile", "reduce-overhead", "graph")
OPENING = 100  # seconds within which a workload must stand ready


class Failure(Exception):
    pass


class Peer:
    """A process that is asked line by line. After a failure it is started anew by the next open."""

    def __init__(self, command):
        self.command, self.process = command, None

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines, self.said = queue.Queue(), []
        threading.Thread(target=self.read, args=(self.process.stdout, self.lines.put), daemon=True).start()
        threading.Thread(target=self.read, args=(self.process.stderr, self.said.append), daemon=True).start()

    @staticmethod
    def read(pipe, take):
        for line in pipe:
            take(line.strip())
        take("")

    def ask(self, text, seconds=20.0):
        if self.process is None:
            self.start()
        try:
            self.process.stdin.write(text + "\n")
            self.process.stdin.flush()
            words = self.lines.get(timeout=max(seconds, 1)).split()
        except (OSError, queue.Empty) as error:
            self.stop()
            raise Failure(f"no answer to {text} within {seconds:.0f} s" if isinstance(error, queue.Empty) else "it ended") from None
        if words[:1] != ["ok"]:
            self.process.wait(5)
            time.sleep(0.1)
            said = [line for line in self.said if line]
            self.stop()
            raise Failure(said[-1] if said else "it ended without a word")
        return words[1:]

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
        self.process = None


def together(peers, question, failures, seconds):
    """Asks all peers at once; those that fail are left out from here on. {name: answer}"""
    answers = {}

    def one(name):
        try:
            answers[name] = peers[name].ask(question, seconds)
        except (Failure, subprocess.TimeoutExpired, OSError) as error:
            failures[name] = str(error)

    threads = [threading.Thread(target=one, args=(name,)) for name in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def measure(name, peers, rounds, seconds):
    """{peer: {"ms": [of each round], "peak", "reserved", "loss"}} and {peer: why it failed}."""
    failures = {}
    ready = [peer for peer in peers if peer in together(peers, "open " + name, failures, seconds)]
    times = {peer: [] for peer in ready}
    for number in range(rounds):
        for peer in ready if number % 2 == 0 else ready[::-1]:
            if peer in failures:
                continue
            try:
                times[peer].append(float(peers[peer].ask("time")[0]))
            except Failure as failure:
                failures[peer] = str(failure)
    results = {}
    for peer, answer in together({peer: peers[peer] for peer in ready if peer not in failures}, "close", failures, 20).items():
        results[peer] = {"ms": times[peer], "peak": int(answer[0]), "reserved": int(answer[1]), "loss": answer[2]}
    return results, failures


def row(name, results, copy):
    """A line of the table for each peer."""
    own = results.get("gpunn")
    for peer, result in results.items():
        ms = statistics.median(result["ms"])
        both = zip(result["ms"], own["ms"]) if own and peer != "gpunn" else []
        ratio = statistics.median([a / b for a, b in both] or [0])
        width = f"{WORKLOADS[name] / ms / 1e6:.0f}" if WORKLOADS[name] else "-"
        if WORKLOADS[name] and copy:
            width += f" ({100 * WORKLOADS[name] / ms / 1e6 / copy:.0f} %)"
        yield (f"| {name} | {peer} | {ms:.4g} | {min(result['ms']):.4g} to {max(result['ms']):.4g} | {f'{ratio:.2f}' if ratio else '-'} | {width} | "
               f"{result['peak'] / 2**20:.1f} | {result['reserved'] / 2**20:.0f} | {result['loss']} |")


def machine(peers):
    try:
        gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], capture_output=True,
                             text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        gpu = ""
    versions = together({name: peers[name] for name in peers if name == "eager"}, "version", {}, 60).get("eager", ["not found"])
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout.strip()
    return {"date": datetime.date.today().isoformat(), "gpu": gpu or "no GPU", "torch, CUDA, cuDNN": " ".join(versions), "commit": commit}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cpu", action="store_true", help="to try this where there is no GPU")
    options = parser.parse_intermixed_args()
    end = time.monotonic() + options.seconds
    cpu = ["--cpu"] if options.cpu else []
    peers = {"gpunn": Peer([options.program] + cpu)}
    if subprocess.run([options.python, "-c", "import torch"], capture_output=True).returncode == 0:
        peers.update({mode: Peer([options.python, "-B", os.path.join(HERE, "gpu_torch.py"), mode] + cpu) for mode in MODES
                      if not (options.cpu and mode == "graph")})
    else:
        print(f"# {options.python} has no torch: gpunn alone")
    report = {"machine": machine(peers), "rounds": options.rounds, "workloads": {}, "failures": {}, "left out": []}
    print(", ".join(f"{key} {value}" for key, value in report["machine"].items()) + f", {options.rounds} rounds\n")
    print("| workload | peer | ms | range | ratio | GB/s (of copy) | peak MiB | reserved MiB | loss |\n|---|---|---|---|---|---|---|---|---|", flush=True)
    copy, failed = 0, False
    for name in options.names or WORKLOADS:
        left = end - time.monotonic()
        if left < 15:
            report["left out"].append(name)
            continue
        takes_part = {peer: process for peer, process in peers.items() if name != "copy" or peer == "eager"}
        results, failures = measure(name, takes_part, options.rounds, min(left - 10, OPENING))
        if name == "copy" and results:
            copy = WORKLOADS[name] / statistics.median(results["eager"]["ms"]) / 1e6
        for line in row(name, results, copy):
            print(line, flush=True)
        for peer, why in failures.items():
            print(f"# {name}, {peer}: {why}", flush=True)
        failed = failed or "gpunn" in failures
        report["workloads"][name], report["failures"][name] = results, failures
        if options.json:
            with open(options.json, "w") as file:
                json.dump(report, file, indent=1)
    if report["left out"]:
        print("# no time was left for " + ", ".join(report["left out"]))
    for peer in peers.values():
        peer.stop()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

"""Times gpunn against PyTorch on a GPU and prints a table.

    python3 tests/bench/gpu.py PROGRAM [--json FILE] [--seconds 240] [NAME ...]

PROGRAM is built from gpu_bench.c. With --kernels, a second program of gpu_kernels.py uses generated kernels.
PyTorch's side is gpu_torch.py under --python, once for each mode: eager, compile, reduce-overhead, graph (the
eager step captured by hand) and, for the large models, max-autotune. --alone leaves PyTorch out. The peers of
a workload open one after another, so that one that chooses kernels by their times has the GPU to itself. Then
they are timed alternately, in an order that rotates from round to round. Each runs for about 50 ms per round,
with a synchronisation at the end.

ms: the median over the rounds. ratio: the median over the rounds of peer / gpunn within a round; above 1
gpunn is faster. rate: bytes compared with a copy's, or samples and, in 16 bits, the model's operations
compared with the GPU's dense peak. Memory is taken on both sides while they are timed, after everything has
been chosen, compiled and warmed up. It is the most held in tensors (with the libraries' workspaces from the
allocator), what the allocator has taken from the GPU, and what nvidia-smi reports for the process (with its
context and code). result: the loss of the eighth step or a sum over the output, from the same weights and
inputs. Peers that disagree are named, which is a failure. What the time does not suffice for is reported as
cut off.

PyTorch's compiler takes minutes. --compile MODE --ready FILE only compiles, workload by workload, into the
compiler's cache. It adds the workloads that are ready to FILE. With --ready FILE and without --compile,
workloads that are not in FILE are not measured in that mode. --cpu runs all of this in small sizes without a
GPU. Standard library only."""
import argparse
import collections
import contextlib
import datetime
import json
import math
import os
import queue
import re
import statistics
import subprocess
import sys
import threading
import time

from gpu_kernels import NAMES as GENERATED

HERE = os.path.dirname(os.path.abspath(__file__))
# bytes that a run must move, or its samples and the model's floating-point operations
Work = collections.namedtuple("Work", "bytes samples unit operations", defaults=(0, 0, "", 0))


def transformer(rows, width=768, layers=12, table=0):
    """Operations of a token, forward: two for each weight, and attention's products (not halved where it is
    causal)."""
    return 2 * (12 * layers * width * width + width * table) + 4 * layers * width * rows


# The most important first, for which the time is certainly enough. copy, PyTorch's, gives the bandwidth with
# which others are compared.
WORKLOADS = {
    "mlp20": Work(), "lenet4": Work(),
    "resnet18_bf16": Work(samples=64, unit="images", operations=3 * 64 * 2 * 1814073344),
    "bert8_f16": Work(samples=8, unit="sequences", operations=8 * 128 * transformer(128)),
    "bert32_f16": Work(samples=32, unit="sequences", operations=32 * 128 * transformer(128)),
    "gpt2_bf16": Work(samples=8192, unit="tokens", operations=3 * 8192 * transformer(1024, table=50304)),
    "copy": Work(2 << 28),
    "mlp784_bf16": Work(samples=512, unit="samples", operations=6 * 512 * (784 * 1024 + 1024 * 1024 + 10240)),
    "relu": Work(2 << 28), "adamw": Work(28 * 100000000), "gelu": Work(2 << 28), "add": Work(3 << 28),
    "register48": Work(), "register192": Work(), "mlp784_f32": Work(), "mlp784_tf32": Work(),
    "lenet4096": Work(),
}
MODES = ("eager", "compile", "reduce-overhead", "graph", "max-autotune")
OWN = ("gpunn", "gpunn kernels")
AUTOTUNED = ("resnet18_bf16", "gpt2_bf16", "bert8_f16", "bert32_f16")
CUT_OFF, LATE = 124, "cut off"  # timeout's status, and the begin of its sentence
# TFLOP/s in 16 bits, dense
PROMISED = {"B200": 2250, "H200": 989, "H100": 989, "A100": 312, "L40": 181, "L4": 121, "T4": 65}


class Failure(Exception):
    pass


class Peer:
    """A process that answers line by line. After a failure the next open restarts it."""

    def __init__(self, command):
        self.command, self.process = command, None

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, errors="replace")
        self.lines, self.said = queue.Queue(), []
        threading.Thread(target=self.read, args=(self.process.stdout, self.lines.put), daemon=True).start()
        self.listener = threading.Thread(target=self.read, args=(self.process.stderr, self.said.append),
                                         daemon=True)
        self.listener.start()

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
        except queue.Empty:
            self.stop()
            raise Failure(f"{LATE}: no answer to {text} within {seconds:.0f} s") from None
        except OSError:
            words = []
        if words[:1] != ["ok"]:
            self.listener.join(1)  # it ends when the process has said its last word
            said = [line for line in self.said if line]
            # PyTorch goes on after these errors
            errors = [line for line in said if re.match(r"[\w.]*(Error|Exception)\b", line)]
            self.stop()
            raise Failure((errors or said or ["it ended without a word"])[-1])
        return words[1:]

    def stop(self):
        """Waits for a while, but not for a process that cannot be killed."""
        if self.process:
            self.process.kill()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                pass
        self.process = None


def process_mib():
    """{process id: MiB on the GPU}, from nvidia-smi; {} if that fails."""
    try:
        said = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_gpu_memory",
                               "--format=csv,noheader,nounits"], timeout=10,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    pairs = [line.split(",") for line in said.splitlines()]
    return {int(pair[0]): int(pair[1])
            for pair in pairs if len(pair) == 2 and all(one.strip().isdigit() for one in pair)}


def measure(name, peers, rounds, seconds, spare=20.0):
    """Returns {peer: {"ms": [of each round], "ratio", "peak", "reserved", "process", "result"}} and {peer:
    why it failed}. All peers open within `seconds`. `spare` more seconds are for rounds; a round that hangs
    takes a quarter of them."""
    failures, times, closed, end = {}, {}, {}, time.monotonic() + seconds

    def ask(peer, text, limit):
        left = min(limit, end + spare - time.monotonic())
        if peer in failures:
            return None
        if left < 1:
            failures[peer] = f"cut off: no time was left to {text}"
            peers[peer].stop()
            return None
        try:
            return peers[peer].ask(text, left)
        except (Failure, OSError) as failure:
            failures[peer] = str(failure)
            return None

    for peer in peers:
        left = end - time.monotonic()
        # one that hangs leaves time for the others
        if ask(peer, "open " + name, min(left, max(20, left / 2))) is not None:
            times[peer] = []
    for number in range(rounds):
        for peer in list(times) if number % 2 == 0 else list(times)[::-1]:
            answer = ask(peer, "time", spare / 4)
            if answer:
                times[peer].append(float(answer[0]))
    mib = process_mib()
    of_process = {peer: mib.get(peers[peer].process.pid) for peer in times if peer not in failures}
    for peer in times:
        closed[peer] = ask(peer, "close", spare / 2)
    results = {peer: {"ms": times[peer], "peak": int(answer[0]), "reserved": int(answer[1]),
                      "process": of_process[peer], "result": answer[2]}
               for peer, answer in closed.items() if answer}
    own = results.get("gpunn")
    for peer, result in results.items():
        result["ratio"] = (statistics.median(a / b for a, b in zip(result["ms"], own["ms"])) if own and
                           peer != "gpunn" else None)
        if own and not agree(float(result["result"]), float(own["result"]), tolerance(name)):
            failures[peer] = f"its result is {result['result']}, gpunn's {own['result']}"
    return results, failures


def agree(a, b, most):
    return math.isnan(a) and math.isnan(b) or abs(a - b) <= most * max(1, abs(b))


def tolerance(name):
    return 3e-2 if "16" in name.rpartition("_")[2] else 1e-2 if name.endswith("_tf32") else 1e-3


def rate(work, ms, copy, promised):
    if work.bytes:
        return f"{work.bytes / ms / 1e6:.0f} GB/s" + (
            f" ({100 * work.bytes / ms / 1e6 / copy:.0f} % of copy)" if copy else "")
    if work.samples == 0:
        return "-"
    share = f" ({work.operations / ms / 1e7 / promised:.1f} % of {promised} TFLOP/s)" if promised else ""
    return f"{1e3 * work.samples / ms:.0f} {work.unit}/s{share}"


def rows(name, work, results, copy, promised):
    """A line of the table for each peer."""
    for peer, result in results.items():
        ms = statistics.median(result["ms"])
        yield (f"| {name} | {peer} | {ms:.4g} | {min(result['ms']):.4g} to {max(result['ms']):.4g} | "
               f"{'-' if result['ratio'] is None else format(result['ratio'], '.2f')} | "
               f"{rate(work, ms, copy, promised)} | {result['peak'] / 2**20:.1f} | "
               f"{result['reserved'] / 2**20:.0f} | "
               f"{'-' if result['process'] is None else result['process']} | {result['result']} |")


def best(workloads):
    """A table of gpunn beside the fastest of PyTorch's modes, and beside the one with the least memory."""
    yield ("\n| workload | | ms | fastest of PyTorch | its ms | ratio | MiB | least of PyTorch "
           "|\n|---|---|---|---|---|---|---|---|")
    for name, results in workloads.items():
        others = {peer: result for peer, result in results.items() if peer not in OWN}
        ms = {peer: statistics.median(result["ms"]) for peer, result in results.items()}
        for own in OWN if others else ():
            if own not in results:
                continue
            peer = min(others, key=ms.get)
            ratio = statistics.median(a / b for a, b in zip(others[peer]["ms"], results[own]["ms"]))
            yield (f"| {name} | {own} | {ms[own]:.4g} | {peer} | {ms[peer]:.4g} | {ratio:.2f} | "
                   f"{results[own]['peak'] / 2**20:.1f} | "
                   f"{min(result['peak'] for result in others.values()) / 2**20:.1f} |")


def said_by(*command):
    """A program's output in one line; "" if it is missing, fails or hangs."""
    try:
        return subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def machine(peers):
    gpu = said_by("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    try:
        versions = peers["eager"].ask("version", 60) if "eager" in peers else ["not measured"]
    except (Failure, OSError) as failure:
        versions = [str(failure)]
    commit = os.environ.get("GPUNN_COMMIT") or said_by("git", "rev-parse", "--short", "HEAD") or "unknown"
    return {"date": datetime.date.today().isoformat(), "gpu": gpu or "no GPU",
            "torch, CUDA, cuDNN": " ".join(versions), "commit": commit}


def is_meant(mode, name):
    if name == "copy":
        return mode == "eager"
    return name in {"max-autotune": AUTOTUNED, "gpunn kernels": GENERATED}.get(mode, WORKLOADS)


def is_ready(mode, name, ready):
    """ready: the lines of what was compiled ahead, or None."""
    return ready is None or mode in OWN + ("eager", "graph") or f"{mode} {name}" in ready


def read_ready(path):
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return file.read().splitlines()


def compile_ahead(mode, peer, names, seconds, path):
    """The exit status: 0: all are ready. CUT_OFF: the time was not enough. 1: PyTorch failed."""
    end, before, codes = time.monotonic() + seconds, read_ready(path), {0}
    for name in names:
        if name == "copy" or not is_meant(mode, name) or f"{mode} {name}" in before:
            continue
        begin = time.monotonic()
        try:
            if begin > end:
                raise Failure(f"{LATE}, no time was left")
            peer.ask("open " + name, end - begin)
            peer.ask("close")
        except (Failure, OSError) as failure:
            print(f"{mode} {name}: {failure}", flush=True)
            codes.add(CUT_OFF if str(failure).startswith(LATE) else 1)
            continue
        print(f"{mode} {name}: {time.monotonic() - begin:.0f} s", flush=True)
        with open(path, "a") as file:
            file.write(f"{mode} {name}\n")
    peer.stop()
    return 1 if 1 in codes else max(codes)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--kernels", metavar="PROGRAM")
    parser.add_argument("--compile", metavar="MODE")
    parser.add_argument("--ready", metavar="FILE")
    parser.add_argument("--opening", type=float, default=100,
                        help="seconds within which a workload must stand ready")
    parser.add_argument("--alone", action="store_true", help="without PyTorch")
    parser.add_argument("--cpu", action="store_true",
                        help="to try this where there is no GPU, in small sizes")
    options = parser.parse_intermixed_args()
    end = time.monotonic() + options.seconds
    cpu = ["--cpu", "--small"] if options.cpu else []
    twin = [options.python, "-B", os.path.join(HERE, "gpu_torch.py")]
    if options.compile:
        return compile_ahead(options.compile, Peer(twin + [options.compile] + cpu),
                             options.names or WORKLOADS, options.seconds, options.ready)
    peers = {"gpunn": Peer([options.program] + cpu)}
    if options.kernels:
        peers["gpunn kernels"] = Peer([options.kernels] + cpu)
    if not options.alone and said_by(options.python, "-c", "import torch; print(torch.__version__)"):
        peers.update({mode: Peer(twin + [mode] + cpu)
                      for mode in MODES if not (options.cpu and mode == "graph")})
    else:
        print("# gpunn alone" + ("" if options.alone else f": {options.python} has no torch"))
    for peer in peers.values():  # they import torch at the same time
        with contextlib.suppress(OSError):  # which measure() reports
            peer.start()
    ready = read_ready(options.ready) if options.ready else None
    report = {"machine": machine(peers), "rounds": options.rounds, "workloads": {}, "failures": {},
              "left out": []}
    print(", ".join(f"{key} {value}"
                    for key, value in report["machine"].items()) + f", {options.rounds} rounds\n")
    print("| workload | peer | ms | range | ratio | rate | tensors MiB | reserved MiB | process MiB | result "
          "|\n"
          "|---|---|---|---|---|---|---|---|---|---|", flush=True)
    promised = next((rate for gpu, rate in PROMISED.items() if gpu in report["machine"]["gpu"]), 0)
    copy, failed = 0, False
    for name in options.names or WORKLOADS:
        left = end - time.monotonic()
        if left < 12:
            report["left out"].append(name)
            print(f"# {name}: cut off, no time was left", flush=True)
            continue
        meant = {mode: peer for mode, peer in peers.items() if is_meant(mode, name)}
        present = {mode: peer for mode, peer in meant.items() if is_ready(mode, name, ready)}
        spare = min(20, left / 3)
        results, failures = measure(name, present, options.rounds, min(left - spare, options.opening), spare)
        failed = failed or bool(failures.keys() & (results.keys() | set(OWN)))
        failures.update({mode: "cut off: it was not compiled in time"
                         for mode in meant if mode not in present})
        if name == "copy" and results:
            copy = WORKLOADS[name].bytes / statistics.median(results["eager"]["ms"]) / 1e6
        for line in rows(name, Work() if options.cpu else WORKLOADS[name], results, copy, promised):
            print(line, flush=True)
        for peer, why in failures.items():
            print(f"# {name}, {peer}: {why}", flush=True)
        report["workloads"][name], report["failures"][name] = results, failures
        if options.json:
            with open(options.json, "w") as file:
                json.dump(report, file, indent=1)
    print("\n".join(best(report["workloads"])))
    for peer in peers.values():
        peer.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

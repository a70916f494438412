#!/usr/bin/env python3
"""Lets cuDNN plan every graph that gpunn_cuda.cu can build: python3 tests/cudnn_plans/check.py [libraries]
[quick] [CARD...]

cuDNN plans for a card from its description (the .json files, with values of the data sheets). This uses the
same code as a run, without a GPU or a driver. It needs nvcc and cuDNN 9.8 or later; without them it is a
skip. `libraries`: attention is planned where the loader knows no folder of CUDA, as with Python's wheels.
This needs root, for private mounts. `quick`: attention in one type per pass. Without arguments: all of it.
TAP lines, for tests/run.py."""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(ROOT, "build", "cudnn_plans")
PROGRAM = os.path.join(BUILD, "plans")
CARDS = ["t4", "a100", "rtx4090", "h200", "b200", "rtx5090"]
LIMIT = 3600  # seconds for one card, which takes half a minute: against hangs
LAYOUTS = os.path.join(BUILD, "layouts")
SITE = "lib/python3.13/site-packages/nvidia/"
# The libraries' folder, the environment variables for it, and whether NVRTC finds its builtins.
PLACES = [
    ("wheels of CUDA 13", {"cudnn": SITE + "cudnn/lib", "other": SITE + "cu13/lib"}, {"VIRTUAL_ENV": "."},
     True),
    ("wheels of CUDA 12", {"cudnn": SITE + "cudnn/lib", "other": SITE + "cuda_nvrtc/lib"},
     {"VIRTUAL_ENV": "."}, True),
    ("toolkit", {"cudnn": "lib64", "other": "lib64"}, {"CUDA_HOME": "."}, True),
    ("folders", {"cudnn": "a", "other": "b"}, {"GPUNN_CUDNN_PATH": "a", "GPUNN_CUDA_PATH": "b"}, True),
    ("no builtins", {"cudnn": "lib64", "other": "lib64"}, {"CUDA_HOME": "."}, False),
]
# a file that is no library, in place of each
BROKEN = ["libcublasLt.so.", "libcudnn.so.9", "libcudnn_graph.so.9"]


def build(nvcc):
    """The program, and the stub of the driver library that it sees; or a failure's text."""
    plans, driver = os.path.join(HERE, "plans.cu"), os.path.join(HERE, "libcuda.c")
    companion, header = os.path.join(ROOT, "gpunn_cuda.cu"), os.path.join(ROOT, "gpunn.h")
    library, core = os.path.join(BUILD, "libcuda.so.1"), os.path.join(BUILD, "gpunn.o")
    compiler = os.environ.get("CC", "cc")
    steps = [
        (library, [driver],
         [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", driver, "-o", library]),
        (core, [header], [compiler, "-O0", "-DGPUNN_IMPLEMENTATION", "-x", "c", "-c", header, "-o", core]),
        # no kernel runs: they stay PTX
        (PROGRAM, [plans, companion, header], [nvcc, "-std=c++17", "-gencode",
                                               "arch=compute_75,code=compute_75", "-O0", "-Xcicc", "-O0",
                                               "-diag-suppress", "177", plans, core, "-o", PROGRAM]),
    ]
    os.makedirs(BUILD, exist_ok=True)
    for made, sources, command in steps:
        if (os.path.exists(made) and
            os.path.getmtime(made) > max(os.path.getmtime(source) for source in sources)):
            continue
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            return f"$ {' '.join(command)}\n{done.stdout.decode(errors='replace')}"
    return ""


def plan(card, extent):
    """The program's output for a card, and its status. extent: the arguments after the card."""
    folders = [BUILD] + os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    environment = dict(os.environ, LD_LIBRARY_PATH=os.pathsep.join(f for f in folders if f))
    try:
        done = subprocess.run([PROGRAM, os.path.join(HERE, card + ".json"), *extent], env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT)
        return done.stdout.decode(errors="replace"), done.returncode
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(errors="replace"), f"no end within {LIMIT} s"


def known(name):
    """The folder in which the loader finds a library; None: it does not."""
    ldconfig = shutil.which("ldconfig", path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin")
    if ldconfig is None:
        return None
    listed = subprocess.run([ldconfig, "-p"], stdout=subprocess.PIPE, universal_newlines=True).stdout
    found = re.search(rf"^\s*{name} .*=> (.*)/[^/]*$", listed, re.MULTILINE)
    return found and found[1]


def lay_out(name, folders, builtins, real):
    """A folder with links to the libraries, which the namespace shows at real[...]."""
    root = os.path.join(LAYOUTS, name)
    shutil.rmtree(root, ignore_errors=True)
    for kind, pattern in (("cudnn", r"libcudnn.*\.so\.9"),
                          ("other", r"lib(nvrtc|cublas|cublasLt)(-builtins)?\.so\.[0-9]+(\.[0-9]+)?")):
        folder = os.path.join(root, folders[kind])
        os.makedirs(folder, exist_ok=True)
        for file in os.listdir(real[kind][0]):
            if re.fullmatch(pattern, file) and (builtins or "builtins" not in file):
                os.symlink(os.path.join(real[kind][1], file), os.path.join(folder, file))
    return root


def hidden():
    """Attention where only gpunn_cuda.cu's own search finds the libraries: (ok, text) for each place, or a
    str with the reason why not."""
    real = {"cudnn": (known(r"libcudnn\.so\.9"), os.path.join(LAYOUTS, "real cudnn")),
            "other": (known(r"libnvrtc\.so\.[0-9]+"), os.path.join(LAYOUTS, "real other"))}
    if not all(folder for folder, _ in real.values()):
        return "the loader knows no cuDNN or NVRTC that could be hidden from it"
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    for folder in [shown for _, shown in real.values()] + [os.path.join(LAYOUTS, "nothing")]:
        os.makedirs(folder, exist_ok=True)
    mounts = [f"mount --bind '{folder}' '{shown}'" for folder, shown in real.values()]
    if os.path.isdir("/usr/local/cuda"):
        mounts += [f"mount --bind '{LAYOUTS}/nothing' /usr/local/cuda"]
    mounts += ["mount --bind /dev/null /etc/ld.so.cache"]
    enter = ["unshare", "--mount", "sh", "-c", " && ".join(mounts) + ' && exec "$@"', "sh"]
    tried = subprocess.run(enter + ["true"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if tried.returncode != 0:
        return f"no mounts of its own: {tried.stdout.decode(errors='replace').strip()}"
    results = []

    def said(root, variables):
        environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LD_LIBRARY_PATH": BUILD}
        environment.update((variable, os.path.normpath(os.path.join(root, folder)))
                           for variable, folder in variables.items())
        return subprocess.run(enter + [PROGRAM, os.path.join(HERE, "h200.json"), "attention"],
                              env=environment, timeout=LIMIT, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT).stdout.decode(errors="replace")

    for file in BROKEN:
        root = lay_out("broken", {"cudnn": "lib64", "other": "lib64"}, True, real)
        path = next(os.path.join(root, "lib64", one)
                    for one in os.listdir(os.path.join(root, "lib64")) if one.startswith(file))
        os.remove(path)
        with open(path, "w", encoding="utf-8") as out:
            out.write("no library\n" * 100)
        text = said(root, {"CUDA_HOME": "."})
        results.append((f"does not load: {path}: " in text, f"{file} is no library", text))
    for name, folders, variables, builtins in PLACES:
        root = lay_out(name, folders, builtins, real)
        text = said(root, variables)
        if builtins:
            good = re.search(rf"^ok 1 .*attention by {re.escape(root)}/", text, re.MULTILINE)
        else:  # else nothing is hidden, and the other cases show nothing
            good = re.search(r"^not ok 1 ", text, re.MULTILINE) and "NVRTC_SUCCESS" in text
        results.append((bool(good), f"libraries of {name}", text))
    return results


def main():
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        print("ok 1 - cuDNN plans # SKIP nvcc is not installed\n1..1")
        return 0
    failure = build(nvcc)
    if failure:
        print("".join(f"# {line}\n" for line in failure.splitlines()) + "not ok 1 - plans.cu compiles\n1..1")
        return 1
    tests, bad, asked = 0, 0, sys.argv[1:] or ["libraries", *CARDS]
    if "libraries" in asked:
        places = hidden()
        if isinstance(places, str):
            tests += 1
            print(f"ok {tests} - hidden libraries # SKIP {places}")
            places = []
        for good, name, text in places:
            tests, bad = tests + 1, bad + (not good)
            if not good:
                print("".join(f"# {line}\n" for line in text.splitlines()), end="")
            print(f"{'ok' if good else 'not ok'} {tests} - {name}", flush=True)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        cards = [word for word in asked if word not in ("libraries", "quick")]
        extent = [word for word in asked if word == "quick"]
        for card, (text, code) in zip(cards, pool.map(lambda card: plan(card, extent), cards)):
            skip = re.match(r"skip: (.*)", text)
            if skip:
                print(f"ok {tests + 1} - cuDNN plans # SKIP {skip[1]}\n1..{tests + 1}")
                return bad > 0
            planned, seen = re.search(r"^1\.\.(\d+)$", text, re.MULTILINE), 0
            for line in text.splitlines():
                result = re.match(r"(not ok|ok) \d+ (.*)", line)
                if result:
                    tests, seen, bad = tests + 1, seen + 1, bad + (result[1] != "ok")
                    line = f"{result[1]} {tests} {result[2]}"
                if not line.startswith("1.."):
                    print(line, flush=True)
            if planned is None or int(planned[1]) != seen or seen == 0:
                tests, bad = tests + 1, bad + 1
                print(f"not ok {tests} - {card}: ended early after {seen} tests ({code})")
    print(f"1..{tests}")
    return bad > 0


sys.exit(main())

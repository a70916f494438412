#!/usr/bin/env python3
"""Checks of gpunn.h that need compilers, not runs: python3 tests/compile/check.py

Every language and compiler under strict warnings, with and without the options; included twice; two files linked; exported names; the
sections named by the table of contents. A compiler that is not installed is a skip. TAP lines, for tests/run.py.
"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEADER = os.path.join(ROOT, "gpunn.h")
STRICT = "-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
STRICT_CXX = "-Wall -Wextra -Werror -Wno-missing-field-initializers"  # named arguments leave fields out by design

# A program that touches every kind of call, in the common part of C99 and C++17.
PROGRAM = """
{before}
#include "gpunn.h"
#include "gpunn.h"
int use(void);
int {name}(void)
{{
    gpunn_device *dev = gpunn_device_open(.seed = 1, .threads = 1);
    gpunn_model *model = gpunn_model_create(dev);
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, 8, 8));
    gpunn_tensor *t = gpunn_input(model, "t", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *h = gpunn_relu(gpunn_batch_norm2d(gpunn_conv2d(x, "conv", .out_channels = 2, .kernel_size = 3), "bn"));
    gpunn_tensor *y = gpunn_linear(gpunn_flatten(gpunn_max_pool2d(h, .kernel_size = 2)), "fc", .out_features = 3);
    gpunn_tensor *loss = gpunn_add(gpunn_cross_entropy(y, t), gpunn_mean(y, GPUNN_AXES(0, 1), false));
    gpunn_optimizer *opt = gpunn_adamw(model);
    static const float images[2 * 64] = {{1.0f}};
    static const int64_t labels[2] = {{1, 2}};
    bool good = gpunn_write(x, images, sizeof images) == GPUNN_OK && gpunn_write(t, labels, sizeof labels) == GPUNN_OK &&
                gpunn_train_step(opt, loss) == GPUNN_OK && gpunn_forward(&y, 1) == GPUNN_OK && gpunn_item(loss) > 0;
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    return good ? 0 : 1;
}}
"""
IMPLEMENTATION = "#define GPUNN_IMPLEMENTATION"
STATIC = "#define GPUNN_STATIC"


class Failure(Exception):
    pass


class Skip(Exception):
    pass


def call(command, folder):
    done = subprocess.run(command.split(), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise Failure(f"$ {command}\n{done.stdout.decode(errors='replace')[:4000]}")
    return done.stdout.decode(errors="replace")


def need(tool):
    if shutil.which(tool) is None:
        raise Skip(f"{tool} is not installed")
    return tool


def source(folder, file, before="", name="main", after=""):
    with open(os.path.join(folder, file), "w") as out:
        out.write(PROGRAM.format(before=before, name=name) + after)
    return file


def compiled(compiler, flags, ending=".c", before=IMPLEMENTATION, link="", run=True, extra=""):
    """Compiles and links the program, and runs it where it can run."""
    def check(folder):
        need(compiler.split()[0])
        file = source(folder, "app" + ending, before)
        start = time.monotonic()
        call(f"{compiler} {flags} -I{ROOT} {extra} {file} -o app.out {link}", folder)
        took = time.monotonic() - start
        if run:
            call("./app.out", folder)
        return f"{took:.1f} s"
    return check


def two_units(compiler, flags, ending, defines):
    """Two files of one program, linked."""
    def check(folder):
        need(compiler)
        # the first holds main; with GPUNN_STATIC each has a copy of its own
        first = source(folder, "one" + ending, defines[0], "main")
        second = source(folder, "two" + ending, defines[1], "use")
        call(f"{compiler} {flags} -I{ROOT} {first} {second} -o app.out -lm -lpthread", folder)
        call("./app.out", folder)
    return check


def exported(folder):
    need("nm")
    source(folder, "app.c", IMPLEMENTATION, "gpunn_main_of_the_test")
    call(f"gcc -std=c99 -O1 -I{ROOT} -c app.c -o app.o", folder)
    names = [line.split()[-1] for line in call("nm -g --defined-only app.o", folder).splitlines()]
    bad = [name for name in names if not name.startswith("gpunn_")]
    if bad or len(names) < 50:
        raise Failure(f"exported: {bad}, {len(names)} names in all")
    private = [name for name in names if name.startswith("gpunn__")]
    if private:
        raise Failure(f"private names exported: {private}")
    # nothing global that can be written, but what belongs to one thread
    data = [line for line in call("nm app.o", folder).splitlines() if re.search(r" [BbDdCc] ", line)]
    thread = call("objdump -t app.o", folder)
    shared = [line for line in data if not re.search(r"\.tbss\s.*\s" + re.escape(line.split()[-1]) + "$", thread, re.M) and "images" not in line]
    if shared:
        raise Failure("global state: " + "; ".join(shared))
    for function in ("abort", "exit", "_exit", "__assert_fail", "printf", "puts"):
        if re.search(rf" U {function}$", call("nm app.o", folder), re.M):
            raise Failure(f"the library calls {function}")


def sections(folder):
    text = open(HEADER).read()
    begin, end = text.index(">>toc"), text.index(">>doc", text.index(">>toc") + 10)
    listed = []
    in_implementation = False
    for line in text[begin:end].splitlines()[1:]:
        line = line.strip().lstrip("*").strip()
        if line.startswith("and under"):
            in_implementation = True
        elif in_implementation:
            listed += line.split()
        elif line:
            listed.append(line.split()[0])
    marks = re.findall(r"^(?:/\*| \*) (?:==== )?>>(\w+)", text, re.M)
    marks = [m for m in marks if m != "toc"]
    found = [m for m in marks if m in listed]
    if sorted(set(marks)) != sorted(marks):
        raise Failure("twice: " + ", ".join(sorted({m for m in marks if marks.count(m) > 1})))
    if set(marks) != set(listed):
        raise Failure(f"in the toc only: {sorted(set(listed) - set(marks))}; in the file only: {sorted(set(marks) - set(listed))}")
    if found != listed:
        raise Failure(f"the toc has them in another order: {listed}, the file {found}")


def lines(folder):
    for number, line in enumerate(open(HEADER), 1):
        if len(line.rstrip("\n")) > 130 or "\t" in line or line.rstrip("\n") != line.rstrip("\n").rstrip():
            raise Failure(f"gpunn.h:{number}: longer than 130 columns, a tab, or blanks at the end")


def declarations_only(folder):
    """Without the implementation the header needs no library and defines nothing."""
    with open(os.path.join(folder, "app.c"), "w") as out:
        out.write('#include "gpunn.h"\nint main(void) { return GPUNN_OK; }\n')
    call(f"gcc -std=c99 {STRICT} -I{ROOT} app.c -o app.out", folder)
    call("./app.out", folder)


def compile_time(folder):
    file = source(folder, "app.c", IMPLEMENTATION)
    seconds = min(timed(f"gcc -std=c99 -O2 -I{ROOT} -c {file} -o app.o", folder) for _ in range(2))
    return f"cc -O2 took {seconds:.1f} s (8 s is the aim)"


def timed(command, folder):
    start = time.monotonic()
    call(command, folder)
    return time.monotonic() - start


def checks():
    yield "table of contents", sections
    yield "lines", lines
    yield "exported names and global state", exported
    yield "declarations alone", declarations_only
    for compiler in "gcc", "clang":
        for standard in "c99", "c11":
            yield f"{compiler} {standard}", compiled(compiler, f"-std={standard} -O1 {STRICT}", link="-lm -lpthread")
        yield f"{compiler} c99 -O2 -march=native -fopenmp", compiled(compiler, f"-std=c99 -O2 -march=native -fopenmp {STRICT}",
                                                                    link="-lm -lpthread") if openmp(compiler) else missing("OpenMP's library")
        options = "-DGPUNN_NO_SIMD -DGPUNN_NO_THREADS" + (" -DGPUNN_ZLIB" if header("zlib.h") else "")
        yield f"{compiler} c99 {options}", compiled(compiler, f"-std=c99 -O1 {options} {STRICT}", link="-lm" + (" -lz" if "ZLIB" in options else ""))
        cxx = {"gcc": "g++", "clang": "clang++"}[compiler]
        # C++17 takes named arguments as an extension of C++20; -Wpedantic would only say so
        yield f"{cxx} c++17", compiled(cxx, f"-std=c++17 -O1 {STRICT_CXX}" + (" -Wno-c++20-designator" if compiler == "clang" else ""), ".cpp",
                                       link="-lm -lpthread")
        yield f"{cxx} c++20", compiled(cxx, f"-std=c++20 -O0 {STRICT_CXX}", ".cpp", link="-lm -lpthread")
    yield "C99 without POSIX declarations", compiled("gcc", "-std=c99 -O0 -Wall -Werror=implicit-function-declaration", link="-lm -lpthread")
    yield "GPUNN_CBLAS", compiled("gcc", f"-std=c99 -O1 -DGPUNN_CBLAS {STRICT}", link="-lopenblas -lm -lpthread") if header("cblas.h") else missing(
        "cblas.h (libopenblas-dev)")
    yield "32 bits of size_t", compiled("gcc", f"-std=c99 -m32 -O1 {STRICT}", link="-lm -lpthread") if works("gcc -m32") else missing("gcc -m32 (gcc-multilib)")
    yield "one implementation, two units", two_units("gcc", "-std=c99 -O0", ".c", (IMPLEMENTATION, ""))
    yield "two static copies", two_units("gcc", f"-std=c99 -O0 {STRICT}", ".c", (f"{STATIC}\n{IMPLEMENTATION}", f"{STATIC}\n{IMPLEMENTATION}"))
    yield "two static copies in C++", two_units("g++", f"-std=c++17 -O0 {STRICT_CXX}", ".cpp",
                                                (f"{STATIC}\n{IMPLEMENTATION}", f"{STATIC}\n{IMPLEMENTATION}"))
    yield "nvcc's host compiler", compiled("nvcc", "-std=c++17 -O1", ".cu", link="-lm -lpthread")
    yield "mingw-w64", compiled("x86_64-w64-mingw32-gcc", f"-std=c99 -O1 {STRICT}", run=False)
    yield "mingw-w64 C++", compiled("x86_64-w64-mingw32-g++", f"-std=c++17 -O1 {STRICT_CXX}", ".cpp", run=False)
    yield "aarch64", compiled("aarch64-linux-gnu-gcc", f"-std=c99 -O1 {STRICT}", link="-lm -lpthread", run=False)
    yield "compile time", compile_time


def missing(what):
    def check(folder):
        raise Skip(f"{what} is not installed")
    return check


def works(command, text="int main(void) { return 0; }", link=""):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "x.c"), "w") as out:
            out.write(text)
        try:
            return subprocess.run((command + " x.c -o x " + link).split(), cwd=folder, stderr=subprocess.DEVNULL).returncode == 0
        except OSError:
            return False


def header(name):
    return works("gcc", f"#include <{name}>\nint main(void) {{ return 0; }}")


def openmp(compiler):
    return works(compiler + " -fopenmp", "#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }")


def one(named):
    name, check = named
    with tempfile.TemporaryDirectory() as folder:
        try:
            return name, "ok", check(folder) or ""
        except Failure as failure:
            return name, "not ok", str(failure)
        except Skip as skip:
            return name, "skip", str(skip)


def main():
    every = list(checks())
    print(f"1..{len(every)}")
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "1"))) as pool:
        for number, (name, verdict, text) in enumerate(pool.map(one, every), 1):
            if verdict == "skip":
                print(f"ok {number} - {name} # SKIP {text}")
                continue
            if verdict == "not ok":
                failed += 1
                print(text)
            elif text:
                print(f"# {name}: {text}")
            print(f"{verdict} {number} - {name}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Checks of gpunn.h that need compilers, not runs: python3 tests/compile/check.py OBJECT

OBJECT is gpunn.h as ninja compiles it under strict warnings. Programs that need the library, not its text,
are linked with it. The checks: every language and compiler under strict warnings, with and without the
options; included twice; two files linked; exported names; the contents of a static program; a plug-in that is
closed; the sections named by the table of contents. A missing compiler is a skip. TAP lines, for
tests/run.py."""
import concurrent.futures
import ctypes
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

from generator import table  # noqa: E402
from tests.gpu import toolkit  # noqa: E402

HEADER = os.path.join(ROOT, "gpunn.h")
EXAMPLES = os.path.join(ROOT, "examples")
OBJECT, OBJECT_NEEDS = (os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else
                                        os.path.join(ROOT, "build", "gpunn.o")), "-lz -lm -lpthread")
STRICT = "-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
# GPUNN__WARN: warnings also apply to the header's own text. Named arguments always cause the last ones.
STRICT_CXX = "-Wall -Wextra -Wpedantic -Werror -DGPUNN__WARN -Wno-missing-field-initializers"
# options that a program may define
USERS_CXX = "-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wold-style-cast -Werror"

# A program that uses every kind of call, in the common part of C99 and C++17.
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
    gpunn_tensor *h = gpunn_relu(
        gpunn_batch_norm2d(gpunn_conv2d(x, "conv", .out_channels = 2, .kernel_size = 3), "bn"));
    gpunn_tensor *y = gpunn_linear(gpunn_flatten(gpunn_max_pool2d(h, .kernel_size = 2)), "fc",
                                   .out_features = 3);
    gpunn_tensor *loss = gpunn_add(gpunn_cross_entropy(y, t), gpunn_mean(y, GPUNN_AXES(0, 1), false));
    gpunn_optimizer *opt = gpunn_adamw(model);
    static const float images[2 * 64] = {{1.0f}};
    static const int64_t labels[2] = {{1, 2}};
    bool good = gpunn_write(x, images, sizeof images) == GPUNN_OK &&
                gpunn_write(t, labels, sizeof labels) == GPUNN_OK &&
                gpunn_train_step(opt, loss) == GPUNN_OK && gpunn_item(loss) > 0 &&
                gpunn_forward(&y, 1) == GPUNN_OK;
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


def compiled(compiler, flags, ending=".c", link="-lm -lpthread", before=IMPLEMENTATION):
    """Compiles, links and runs the program."""
    def check(folder):
        need(compiler)
        file = source(folder, "app" + ending, before)
        call(f"{compiler} {flags} -I{ROOT} {file} -o app.out {link}", folder)
        call("./app.out", folder)
    return check


def warned(compiler, flags, ending=".c"):
    """Only the front end: these warnings need no more, and it takes a second."""
    def check(folder):
        need(compiler)
        call(f"{compiler} {flags} -fsyntax-only -I{ROOT} {source(folder, 'app' + ending, IMPLEMENTATION)}",
             folder)
    return check


def named_calls():
    """C++ functions that call each macro with named arguments: with none, with its second field and its last,
    and with all."""
    with open(HEADER) as file:
        text = re.sub(r"/\*.*?\*/|\\\n", " ", file.read(), flags=re.S)
    structs = dict(re.findall(r"typedef struct (gpunn_\w+_args) \{(.*?)\n\}", text, re.S))
    for row in table.optimizers().values():  # the table makes their structs and prototypes
        structs[f"gpunn_{row.name}_args"] = "".join(
            f" {key};" for key in ["args_"] + [setting[0] for setting in row.settings])
        text += f"gpunn_optimizer *gpunn_{row.name}_(gpunn_model *model, gpunn_{row.name}_args args);\n"
    for name, struct in re.findall(r"#define (gpunn_\w+)\([^)]*\.\.\.\) "
                                   r"[^\n]*GPUNN_(?:NAMED|ARGS)\((gpunn_\w+)", text):
        taken = " ".join(re.search(rf"\b{name}_\(([^;]*?){struct} args\);", text)[1].split()).rstrip(",")
        fields = re.findall(r"\(\*(\w+)\)\(|(\w+)(?:\[\w+\])*\s*[,;]",
                            re.sub(r"\)\([^;]*;", ")(;", structs[struct]))
        fields = ["".join(field) for field in fields][1:]
        given = ", ".join(re.findall(r"(\w+)(?:, |$)", taken))
        calls = [[], sorted({0, len(fields) - 1}), range(len(fields))]
        calls = [", ".join(filter(None, [given, *(f".{fields[i]} = {{}}" for i in call)])) for call in calls]
        yield (f"void use_{name}({taken});\nvoid use_{name}({taken})\n{{\n" +
               "".join(f"    (void){name}({call});\n" for call in calls) + "}\n")


def named(compiler, flags):
    """A C++ program gets no warning for calls with named arguments, but does for its own faults in one, and
    in its own structs."""
    def check(folder):
        need(compiler)
        calls = list(named_calls())
        if len(calls) < 60:
            raise Failure(f"only {len(calls)} macros with named arguments")
        bad = ("gpunn_device *bad(double x);\ngpunn_device *bad(double x) { return "
               "gpunn_device_open(.threads = 1 + (x == 1 & 3)); }\n"
               "struct own { int a, b; };\nextern const own mine;\nconst own mine = {1};\n")
        for file, text in ("good.cpp", "".join(calls)), ("bad.cpp", bad):
            with open(os.path.join(folder, file), "w") as out:
                out.write('#include "gpunn.h"\n' + text)
        command = f"{compiler} {flags} {USERS_CXX} -fsyntax-only -I{ROOT}"
        call(f"{command} good.cpp", folder)
        try:
            said = call(f"{command} bad.cpp", folder)
        except Failure as failure:
            said = str(failure)
        if "parentheses]" not in said or "missing-field-initializers]" not in said:
            raise Failure(f"a program's own faults are not warned of:\n{said}")
        return f"{len(calls)} macros"
    return check


# C++ programs have their sizes as size_t.
SIZES = """
#include <vector>
#include "gpunn.h"
gpunn_tensor *sizes(gpunn_model *model, const std::vector<size_t> &size, const std::vector<float> &data);
gpunn_tensor *sizes(gpunn_model *model, const std::vector<size_t> &size, const std::vector<float> &data)
{
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, size[0], 2 * size.size()));
    gpunn_tensor *h = gpunn_linear(gpunn_mean(x, GPUNN_AXES(size[1], -2), false), "fc",
                                   .out_features = size[0]);
    gpunn_loader_destroy(gpunn_loader_create(model, .fields = {{.input = x, .samples = data.data()}},
                                             .count = data.size(), .batch_size = size[2]));
    return gpunn_forward(&h, size.size()) == GPUNN_OK
               ? gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, size[0] / 2, 2)) : nullptr;
}
constexpr gpunn_shape fixed = GPUNN_SHAPE(GPUNN_BATCH, 3);
static_assert(fixed.dim[0] == GPUNN_BATCH && fixed.dim[1] == 3 && fixed.dim[2] == 0, "as in C");
"""


def sizes(compiler, flags):
    def check(folder):
        need(compiler)
        with open(os.path.join(folder, "sizes.cpp"), "w") as out:
            out.write(SIZES)
        call(f"{compiler} {flags} -fsyntax-only -I{ROOT} sizes.cpp", folder)
    return check


TYPED = """#include "gpunn.h"
#include <assert.h>
#include <stdlib.h>
#ifdef __cplusplus
#define AS(function) function
#define TYPED(pointer) pointer
#else
#define AS(function) function##_as
#define TYPED(pointer) GPUNN_TYPED(pointer)
#endif
int main(void)
{
    double cells[4][2] = {{1, 2}, {3, 4}}, out[4][2];
    const float flat[2] = {1, 2};
    int labels[3] = {1, 2, 0};
    unsigned long long wide[3];
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU);
    gpunn_model *model = gpunn_model_create(dev);
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    gpunn_tensor *t = gpunn_input(model, "t", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    assert(AS(gpunn_write)(x, TYPED(cells), sizeof cells) == GPUNN_OK && gpunn_tensor_sizes(x).dim[0] == 4);
    assert(AS(gpunn_read)(x, TYPED(&out[0][0]), sizeof out) == GPUNN_OK && out[1][1] == 4);
    assert(AS(gpunn_write)(x, TYPED(flat), sizeof flat) == GPUNN_OK && gpunn_tensor_sizes(x).dim[0] == 1);
    assert(AS(gpunn_write)(t, TYPED(labels), sizeof labels) == GPUNN_OK && gpunn_tensor_sizes(t).dim[0] == 3);
    assert(AS(gpunn_read)(t, TYPED(wide), sizeof wide) == GPUNN_OK && wide[1] == 2);
    assert(AS(gpunn_bind)(x, TYPED(cells), sizeof cells) == GPUNN_ERR_DTYPE);
    assert(gpunn_write(x, (const void *)flat, sizeof flat) == GPUNN_OK);
    assert(GPUNN_DTYPE_OF(flat) == GPUNN_F32 && GPUNN_DTYPE_OF(cells) == GPUNN_F64);
    %s
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    return 0;
}
"""


def typed(compiler, flags, ending=".c"):
    """Pointers know their dtype; a pointer to no number is refused."""
    def check(folder):
        need(compiler)
        command = f"{compiler} {flags} -I{ROOT} typed{ending} -o typed.out"
        for line, sound in ("", True), ("gpunn_write_as(x, GPUNN_TYPED((void *)cells), 8);", False):
            with open(os.path.join(folder, "typed" + ending), "w") as out:
                out.write(TYPED % line)
            if sound:
                call(f"{command} {OBJECT} {OBJECT_NEEDS}", folder)
                call("./typed.out", folder)
            elif subprocess.run(command + " -fsyntax-only", shell=True, cwd=folder,
                                capture_output=True).returncode == 0:
                raise Failure(f"{compiler} accepts a pointer to void")
    return check


def foreign_macros():
    """Lines #define of tests/compile/macros.txt that break any program that expands them, and their words."""
    with open(os.path.join(ROOT, "tests", "compile", "macros.txt")) as file:
        words = " ".join(line.split(":")[1] for line in file if not line.startswith("#")).split()
    plain = [word.replace("()", "") for word in words]
    return ("".join(f"#undef {name}\n#define {name}{'(...)' if word.endswith('()') else ''} @\n"
                    for name, word in zip(plain, words)), plain)


def behind_macros(compiler, flags, ending):
    """The header compiles in a program with other libraries' macros, and leaves them as they were."""
    def check(folder):
        need(compiler)
        with open(HEADER) as file:
            system = sorted(set(re.findall(
                r"^#include <((?!arm_neon|windows|io\.h|direct|process|mpi|cblas)\S+)>", file.read(), re.M)))
        macros, names = foreign_macros()
        if len(names) < 300:
            raise Failure(f"only {len(names)} macros")
        # a definition that differs is an error, too
        again = re.sub(r"#undef (\w+)", r"#ifndef \1\n#error \1 is lost\n#endif", macros)
        text = ("".join(f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n"
                        for name in system) + macros)
        with open(os.path.join(folder, "app" + ending), "w") as out:
            out.write(f'{text}{IMPLEMENTATION}\n#include "gpunn.h"\n{again}')
        call(f"{compiler} {flags} -DGPUNN_ZLIB -Werror -fsyntax-only -I{ROOT} app{ending}", folder)
        return f"{len(names)} macros"
    return check


def two_units(compiler, flags, ending, define):
    """A second file of a program beside the one with the implementation. With GPUNN_STATIC it has a copy of
    its own."""
    def check(folder):
        need(compiler)
        first, second = (source(folder, "one" + ending, define, "main"),
                         source(folder, "two" + ending, "", "use"))
        call(f"{compiler} {flags} -I{ROOT} {first} {second} {OBJECT} -o app.out {OBJECT_NEEDS}", folder)
        call("./app.out", folder)
    return check


PLUGIN = """
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
__attribute__((visibility("default"))) int plugin_run(void);
int plugin_run(void)
{
    static float values[1 << 18];
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = 2);
    gpunn_model *model = gpunn_model_create(dev);
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1 << 10));
    gpunn_tensor *y = gpunn_relu(x);
    bool good = gpunn_write(x, values, sizeof values) == GPUNN_OK && gpunn_forward(&y, 1) == GPUNN_OK;
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    return good ? 0 : 1;
}
"""
HOST = """
#include <dlfcn.h>
#include <unistd.h>
int main(void)
{
    for (int i = 0; i < 3; i++) {
        void *plugin = dlopen("./plugin.so", RTLD_NOW);
        int (*run)(void) = plugin ? (int (*)(void))dlsym(plugin, "plugin_run") : 0;
        if (run == 0 || run() != 0 || dlclose(plugin) != 0 ||
            dlopen("./plugin.so", RTLD_NOW | RTLD_NOLOAD)) return 1;
        usleep(2000);
    }
    return 0;
}
"""


def plugin(folder):
    """A shared library that hides its other names exports gpunn. It can be closed once its device is closed,
    since no thread remains."""
    need("nm")
    for name, text in ("plugin.c", PLUGIN), ("host.c", HOST):
        with open(os.path.join(folder, name), "w") as out:
            out.write(text)
    call(f"{need('clang')} -std=gnu99 -O0 -fPIC -fvisibility=hidden -I{ROOT} -shared plugin.c -o plugin.so "
         "-lm -lpthread", folder)
    if "gpunn_device_open_" not in call("nm -D --defined-only plugin.so", folder):
        raise Failure("gpunn_device_open_ is not exported")
    call("gcc -std=gnu99 host.c -o host -ldl", folder)
    call("./host", folder)


def exported(folder):
    need("nm")
    names = [line.split()[-1] for line in call(f"nm -g --defined-only {OBJECT}", folder).splitlines()]
    bad = [name for name in names if not name.startswith("gpunn_")]
    if bad or len(names) < 50:
        raise Failure(f"exported: {bad}, {len(names)} names in all")
    private = [name for name in names if name.startswith("gpunn__")]
    if private:
        raise Failure(f"private names exported: {private}")
    # no global variable that can be written, except thread-local ones
    symbols = call(f"objdump -t {OBJECT}", folder)
    written = re.findall(r"^\S+ .{7} (?:\.data|\.bss|\.(?:data|bss)\.(?!rel\.ro)\S*|\*COM\*)\t\S+ (\S+)$",
                         symbols, re.M)
    written = [name for name in written if not name.startswith(".")]
    if written:
        raise Failure(f"global state: {written}")
    for function in ("abort", "exit", "_exit", "__assert_fail", "printf", "puts"):
        if re.search(rf" U {function}$", call(f"nm {OBJECT}", folder), re.M):
            raise Failure(f"the library calls {function}")


def sections(folder):
    """The sections are those of the table of contents, in its order; those of the implementation are grouped
    by folder."""
    text = open(HEADER).read()
    marks = [mark or
             other for mark, other in re.findall(r"^(?:/\* ==== >>([\w/]+)| \* >>(toc|doc)\b)", text, re.M)]
    public, private = text[text.index(">>toc"):text.index(" * >>doc")].split("Under GPUNN_IMPLEMENTATION")
    listed, room = ["toc"] + re.findall(r"^ \* {5}(\w+) ", public, re.M), None
    for line in re.findall(r"^ \* {5,}(.*)", private, re.M):
        words = line.split()
        if words[0].endswith("/"):
            room = words.pop(0)
        listed += [room + word for word in words]

    def by_room(names):
        return sorted(names, key=lambda name: name.rpartition("/")[0])

    if by_room(listed + ["licence"]) != by_room(marks):
        raise Failure(f"the toc says {by_room(listed)}\nthe file    {by_room(marks)}")


def companions_sections(folder):
    """The same for gpunn_cuda.cu, with one line for each."""
    text = open(os.path.join(ROOT, "gpunn_cuda.cu")).read()
    marks, listed = (re.findall(r"^/\* ==== >>([\w/]+)", text, re.M),
                     re.findall(r"^ \* {5}(\w+/\w+) ", text[:text.index("*/")], re.M))
    if marks != listed:
        raise Failure(f"the toc says {listed}\nthe file    {marks}")


def parts_are_whole(folder):
    """gpunn.h is what its parts say."""
    call(f"{sys.executable} -m generator.amalgamate --check", ROOT)


def names_are_found(folder):
    """A search in templates/ finds the names that macros paste for each op."""
    files = glob.glob(os.path.join(ROOT, "templates", "**", "*.*"), recursive=True)
    words = set().union(*(re.findall(r"\bgpunn__\w+", open(file).read()) for file in files))
    names = {f"gpunn__{kind}_{op.name}" for op in table.ops().values()
             for kind in ("operation", "cpu", "cuda")}
    lost = names - words - {f"gpunn__cuda_{op.name}" for op in table.ops().values() if op.arity}
    lost -= {f"gpunn__cuda_{name}" for name in table.having("INTEGER")}  # no GPU computes them
    if lost != {"gpunn__cpu_reshape", "gpunn__cuda_reshape"}:
        raise Failure(f"a search does not find {sorted(lost)}")


def parts_alone(name, ending, command):
    """Each part of that file compiles by itself, with the parts that it includes."""
    def check(folder):
        need(command.split()[0])
        parts = sorted(glob.glob(os.path.join(ROOT, "templates", name, "*", "*" + ending)))
        assert len(parts) > 15, parts
        for part in parts:
            with open(os.path.join(folder, "part" + ending), "w") as out:
                out.write(f'#include "{part}"\ntypedef int part;\n')
            call(f"{command} -DGPUNN__PARTS -I{ROOT}/templates/{name} -I{ROOT} -fsyntax-only part{ending}",
                 folder)
    return check


LEFT_OUT = {"RANKS": "gpunn_group_open_",
            "LOADERS": "gpunn_loader_create_ gpunn_fit_ gpunn_evaluate gpunn_read_idx",
            "SPECS": "gpunn_spec_save_ gpunn_spec_load_", "GGUF": "gpunn_read_header",
            "DERIVATIVES": "gpunn_grad_ gpunn_jvp gpunn_laplacian_", "PROFILE": "gpunn_profile_"}

USES_BLOCKS = """#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
static void told(gpunn_device *dev)
{
    puts(gpunn_error(dev));
    gpunn_clear_error(dev);
}
int main(void)
{
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU);
    gpunn_model  *model = gpunn_model_create(dev, .inference = true);
    gpunn_tensor *w = gpunn_parameter(model, "w", GPUNN_SHAPE(256), (gpunn_init){GPUNN_INIT_CONSTANT, 7, 0});
    float         memory[256] = {0};
    (void)gpunn_load(model, "weights.gguf");
    told(dev);
    (void)gpunn_load(model, "blocks.safetensors");
    told(dev);
    (void)gpunn_set_storage(w, GPUNN_Q8_0);
    told(dev);
    (void)gpunn_bind_as(w, GPUNN_Q4_K, memory, 144);
    told(dev);
    (void)gpunn_write_as(w, GPUNN_NF4, memory, 144);
    told(dev);
    (void)gpunn_model_create(dev, .inference = true, .weights = GPUNN_Q4_0);
    told(dev);
    (void)gpunn_spec_load(dev, "model.json");
    told(dev);
    (void)gpunn_read(w, memory, sizeof memory);
    printf("%g\\n", (double)memory[31]);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}
"""


def left_out(folder):
    """The macros that leave functions out, each by itself under strict warnings, and all at once in a
    program that trains."""
    strict = f"{need('clang')} -std=c99 {STRICT} -O0"
    for macro in LEFT_OUT:
        call(f"{strict} -fsyntax-only -DGPUNN_NO_{macro} -I{ROOT} {source(folder, 'app.c', IMPLEMENTATION)}",
             folder)
    call(f"{strict} {' '.join(f'-DGPUNN_NO_{macro}' for macro in LEFT_OUT)} -I{ROOT} app.c -o app.out "
         "-lm -lpthread", folder)
    call("./app.out", folder)
    call(f"{need('gcc')} -std=c99 {STRICT} {' '.join(f'-DGPUNN_NO_{macro}' for macro in LEFT_OUT)} "
         f"-DGPUNN_IMPLEMENTATION -fsyntax-only -x c {HEADER}", folder)
    names = set(re.findall(r" [Tt] (gpunn_\w+)", call("nm app.out", folder)))
    found = names & set(" ".join(LEFT_OUT.values()).split())
    if found or "gpunn_linear_" not in names:
        raise Failure(f"not left out: {sorted(found)}")
    header = ('{"__metadata__":{"gpunn_blocks:w":"Q8_0"},'
              '"w":{"dtype":"U8","shape":[34],"data_offsets":[0,34]}}')
    spec = ('{"gpunn_spec":1,"tensors":[{"op":"input","name":"x","shape":["N",32]},'
            '{"op":"linear","name":"fc","inputs":["x"],"out_features":2,'
            '"parameters":{"weight":{"storage":"Q8_0"}}}],"outputs":["fc"]}')
    for name, text in (("weights.gguf", "GGUF" + "\0" * 20), ("blocks.c", USES_BLOCKS), ("model.json", spec),
                       ("blocks.safetensors", chr(len(header)) + "\0" * 7 + header + "\0" * 34)):
        with open(os.path.join(folder, name), "w") as out:
            out.write(text)
    call(f"{strict} -DGPUNN_NO_GGUF -I{ROOT} blocks.c -o blocks.out -lm -lpthread", folder)
    lines = call("./blocks.out", folder).splitlines()
    if lines[-1] != "7" or len(lines) != 8 or \
            not all(line.endswith("compile it without GPUNN_NO_GGUF") for line in lines[:-1]):
        raise Failure("a program without GGUF and blocks says\n" + "\n".join(lines))


def own_ops(folder):
    """A static program contains the ops that it builds, those that its plans may add, and no others."""
    with open(os.path.join(folder, "app.c"), "w") as out:
        out.write(f"{STATIC}\n{IMPLEMENTATION}\n" + """#include "gpunn.h"
int main(void)
{
    gpunn_model  *model = gpunn_model_create(gpunn_device_open(.threads = 1));
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 20));
    gpunn_tensor *y = gpunn_linear(gpunn_tanh(x), "fc", .out_features = 3);
    return gpunn_forward(&y, 1) == GPUNN_OK;
}
""")
    call(f"gcc -std=c99 -O1 -march=native -I{ROOT} app.c -o app.out -lm -lpthread", folder)
    symbols = call("nm app.out", folder)
    found = set(re.findall(r" t gpunn__cpu_(\w+)", symbols)) & set(table.ops())
    wanted = {"linear", "tanh"}
    if not wanted <= found <= wanted | {"relu", "gelu_tanh", "cast", "integer", "permute", "relayout",
                                        "fusion"}:
        raise Failure(f"the ops of linear and tanh are {sorted(found)}")
    rules = re.findall(r" t gpunn__((?:attention|recurrent|slice|window)_rule)", symbols)
    if rules:
        raise Failure(f"the shape rules of linear and tanh have {rules}")


def declarations_only(folder):
    """Without the implementation the header needs no library and defines nothing."""
    with open(os.path.join(folder, "app.c"), "w") as out:
        out.write('#include "gpunn.h"\nint main(void) { return GPUNN_OK; }\n')
    call(f"gcc -std=c99 {STRICT} -I{ROOT} app.c -o app.out", folder)
    call("./app.out", folder)
    found = re.findall(r"\bgpunn__\w+\(.*\n\{", call(f"gcc -std=c99 -E -P -I{ROOT} app.c", folder))
    if found:
        raise Failure(f"functions without GPUNN_IMPLEMENTATION: {found}")


def alone(example):
    """An example, by the cc line of its opening comment (ninja links it with the header compiled before)."""
    def check(folder):
        with open(os.path.join(EXAMPLES, example)) as file:
            line = re.search(r"^ \* Build: (cc .*?)(?:  .*)?$", file.read(), re.M)
        if not line:
            raise Failure("the opening comment has no line `Build: cc ...`")
        # it parses the header in a quarter of the time
        quick = re.sub(r"^cc\b", "clang" if shutil.which("clang") else "cc", line[1])
        call(quick + " -Wall -Wextra -Werror -Wno-unused-command-line-argument -fsyntax-only", ROOT)
    return check


PATHS = """
#include "gpunn.h"
#include <stdio.h>
int main(void)
{
    const char      *paths[] = {"\\xc3\\xa4\\xe4\\xb8\\xad\\xf0\\x9f\\x98\\x80", "\\xe4-latin"};
    const gpunn_init init = {GPUNN_INIT_CONSTANT, 1, 0};
    gpunn_device    *dev = gpunn_device_open(.seed = 1, .threads = 1);
    gpunn_model     *model = gpunn_model_create(dev);
    (void)gpunn_parameter(model, "a", GPUNN_SHAPE(3), init);
    for (int i = 0; i < 2; i++)
        for (int again = 0; again < 2; again++)
            if (gpunn_save(model, paths[i]) != GPUNN_OK || gpunn_load(model, paths[i]) != GPUNN_OK)
                puts(gpunn_error(dev));
    return gpunn_last_status(dev) != GPUNN_OK;
}
"""


def windows_paths(folder):
    """Programs that mingw builds, under Wine: one trains, one saves and loads under names in UTF-8 and in the
    code page of Western Europe."""
    mingw, wine = need("x86_64-w64-mingw32-gcc"), shutil.which("wine") or "/usr/lib/wine/wine64"
    # its isfinite() converts
    flags = f"{mingw} -std=c99 -O0 -Wall -Wextra -Wshadow -Werror -I{ROOT}"
    with open(os.path.join(folder, "paths.c"), "w") as out:
        out.write(PATHS)
    source(folder, "app.c")
    call(f"{flags} -DGPUNN_IMPLEMENTATION -x c -c {HEADER} -o gpunn.o", folder)
    for name in "app", "paths":
        call(f"{flags} {name}.c gpunn.o -o {name}.exe", folder)
        if not os.path.exists(wine):
            raise Skip("it links, but Wine is not installed (wine64)")
        call(f"env TMPDIR={folder} WINEPREFIX={folder}/wine WINEDEBUG=-all LC_ALL=C.UTF-8 {wine} {name}.exe",
             folder)
    for name in "\u00e4\u4e2d\U0001f600", "\u00e4-latin":
        if not os.path.exists(os.path.join(folder, name)):
            raise Failure(f"no file {name!r} beside {sorted(os.listdir(folder))}")


def without_elf(folder):
    """As macOS compiles it: its linker has no weak references, and fsync is not enough."""
    compiled("clang", f"-std=c99 -O0 -U__ELF__ -U__linux__ -D__APPLE__ -DF_FULLFSYNC=51 {STRICT}")(folder)
    weak = re.findall(r" w (gpunn_\w+)", call("nm app.out", folder))
    if weak:
        raise Failure(f"weak references: {weak}")


def fused_benchmark(folder):
    """tests/bench/fused.c, which calls the header's private functions, with the kernels that it times: no
    warnings, right numbers in each of its ways, of which one needs AVX-512 and says so."""
    call(f"{sys.executable} -m generator tests/bench/fused.json -o {folder}/fused", ROOT)
    call(f"gcc -std=c11 -O1 -march=native -Wall -Wextra -Wconversion -Werror -fsyntax-only -I{ROOT} "
         f"-I{folder} {ROOT}/tests/bench/fused.c", folder)
    call(f"{need('clang')} -std=c11 -O0 -march=native -DFUSED_BATCH=1 -I{ROOT} -I{folder} "
         f"{ROOT}/tests/bench/fused.c -o run -lm", folder)
    for way in "generated", "plain":
        call(f"env BENCH_BRIEF=1 ./run {way} 2", folder)
    try:
        call("env BENCH_BRIEF=1 ./run hand 2", folder)
    except Failure as failure:
        if " __AVX512F__ " in call("clang -march=native -dM -E -x c /dev/null", folder) or \
                "fused: hand needs AVX-512" not in str(failure):
            raise


def nccl(folder):
    """gpunn_cuda.cu's declarations of NCCL against NCCL's own header, and each function in its library."""
    found = toolkit.Toolkit()
    path, library = found.headers["nccl.h"], found.libraries["libnccl"]
    if not (path and library):
        raise Skip("NCCL is not installed (nvidia-nccl-cu13 of PyPI)")
    with open(os.path.join(ROOT, "gpunn_cuda.cu")) as file:
        text = file.read()
    ours = "".join(re.search(pattern, text, re.S | re.M)[0] for pattern in (
        r"^enum \{[^}]*GPUNN__NCCL_.*?(?=^/\*)",
        r"^typedef struct gpunn__nccl_id \{.*?(?=^struct gpunn__nccl \{)"))
    for name, text in (("ours.h", ours),
                       ("cuda_runtime.h", "typedef struct CUstream_st *cudaStream_t;\ntypedef struct "
                        "CUevent_st *cudaEvent_t;\n"), ("cuda_fp16.h", "")):
        with open(os.path.join(folder, name), "w") as out:
            out.write(text)
    call(f"{need('g++')} -std=c++17 {STRICT} -fsyntax-only -I{folder} -isystem {os.path.dirname(path)} "
         f"{ROOT}/tests/compile/nccl.cpp", folder)
    names = re.findall(r"^ +X\([^,]+, (\w+)", ours, re.M)
    try:
        real = ctypes.CDLL(library)
    except OSError as error:
        raise Skip(str(error)) from error
    lacking = [name for name in names if not hasattr(real, name)]
    if lacking or len(names) < 10:
        raise Failure(f"{library} lacks {lacking} of {names}")
    return library


GNU = re.compile(r"__attribute__|__asm__|\basm\b|__typeof|__extension__|__builtin_(?!offsetof)\w+|\(\{")


def without_gnu(folder):
    """The generator's C uses no GNU extensions for compilers other than GNU's, such as MSVC."""
    clang, spec = need("clang"), os.path.join(EXAMPLES, "kernels", "simple_nn.json")
    for option in "--emit-model", "--inference":
        call(f"{sys.executable} -m generator {spec} -o {folder}/net {option}", ROOT)
    for part in "kernels", "model", "inference":
        text = call(f"{clang} -E -std=c99 -fgnuc-version=0 -I{ROOT} -DNET_{part.upper()}_IMPLEMENTATION -x c "
                    f"net_{part}.h", folder)
        own = [lines for name, lines in re.findall(r'^# \d+ "([^"]*)".*\n((?:(?!# \d).*\n)*)', text, re.M)
               if name == f"net_{part}.h"]
        found = GNU.search("".join(own))
        if found or not own:
            raise Failure(f"net_{part}.h: {found.group() if found else 'nothing was compiled'}")


def checks():
    yield "table of contents", sections
    yield "table of contents of gpunn_cuda.cu", companions_sections
    yield "gpunn.h and gpunn_cuda.cu are what their parts say", parts_are_whole
    yield "names that macros paste", names_are_found
    emulated = (f"g++ -std=c++17 -Wall -Wextra -Werror -Wno-unknown-pragmas -DGPUNN__EMULATOR "
                f"-I{ROOT}/tests/emulator -xc++")
    yield "headers of gpunn.h's parts alone", parts_alone("gpunn", ".h", f"gcc -std=c99 {STRICT} -xc")
    yield "gpunn.h's parts alone, in C++", parts_alone("gpunn", ".c",
                                                       f"clang++ -std=c++17 {STRICT_CXX} -xc++")
    yield "headers of gpunn_cuda.cu's parts alone", parts_alone("gpunn_cuda", ".h", emulated)
    yield "NCCL's header and library", nccl
    yield "exported names and global state", exported
    yield "declarations alone", declarations_only
    yield "the ops that a static program has", own_ops
    yield "what macros leave out", left_out
    zlib = "-DGPUNN_ZLIB" if header("zlib.h") else ""
    for compiler, cxx in ("gcc", "g++"), ("clang", "clang++"):
        yield f"{compiler} c99", warned(compiler, f"-std=c99 {STRICT}")
        yield (f"{compiler} c11 -march=native {zlib}",
               warned(compiler, f"-std=c11 -march=native {zlib} {STRICT}"))
        yield (f"{compiler} c99, no SIMD, no threads",
               warned(compiler, f"-std=c99 -DGPUNN_NO_SIMD -DGPUNN_NO_THREADS {STRICT}"))
        yield f"{cxx} c++17", warned(cxx, f"-std=c++17 {STRICT_CXX}", ".cpp")
        yield f"{cxx} c++20", warned(cxx, f"-std=c++20 -march=native {STRICT_CXX}", ".cpp")
        for standard in "c++17", "c++20":
            yield f"{cxx} {standard}, named arguments", named(cxx, f"-std={standard}")
            # only for a size_t in a named argument
            narrowing = "-Wno-narrowing" if cxx == "g++" else ""
            yield (f"{cxx} {standard}, size_t",
                   sizes(cxx, f"-std={standard} -Wall -Wextra -Wpedantic -Werror {narrowing}"))
    yield ("as ninja compiles it, linked and run",
           compiled("gcc", f"-std=c99 {STRICT}", link=f"{OBJECT} {OBJECT_NEEDS}", before=""))
    for compiler, flags, ending in (("gcc", f"-std=c99 {STRICT}", ".c"),
                                    ("clang", f"-std=c11 {STRICT}", ".c"),
                                    ("g++", f"-std=c++17 {STRICT_CXX}", ".cpp"),
                                    ("clang++", f"-std=c++20 {STRICT_CXX}", ".cpp")):
        yield f"{compiler}, dtypes of pointers", typed(compiler, flags, ending)
    yield "clang c99 -march=native, linked and run", compiled("clang", f"-std=c99 -O0 -march=native {STRICT}")
    yield "g++ c++17 -O0, linked and run", compiled("g++", f"-std=c++17 -O0 {STRICT_CXX}", ".cpp")
    yield ("GPUNN_CBLAS, linked and run",
           compiled("clang", f"-std=c99 -O0 -DGPUNN_CBLAS {STRICT}", link="-lopenblas -lm -lpthread")
           if header("cblas.h") else missing("cblas.h (libopenblas-dev)"))
    yield "other libraries' macros", behind_macros("gcc", "-std=gnu99 -march=native", ".c")
    yield "other libraries' macros in C++", behind_macros("clang++", "-std=c++17", ".cpp")
    yield "one implementation, two units", two_units("gcc", "-std=c99 -O0", ".c", "")
    static = f"{STATIC}\n{IMPLEMENTATION}"
    yield "a static copy beside it", two_units("clang", f"-std=c99 -O0 {STRICT}", ".c", static)
    yield ("a static copy beside it in C++",
           two_units("clang++", f"-std=c++17 -O0 {STRICT_CXX}", ".cpp", static))
    yield "a plug-in, closed", plugin
    yield "nvcc's host compiler, linked and run", compiled("nvcc", "-std=c++17 -O0", ".cu")
    yield "mingw-w64 C++", warned("x86_64-w64-mingw32-g++", f"-std=c++17 {STRICT_CXX}", ".cpp")
    yield "mingw-w64 C99, run under Wine", windows_paths
    yield "what macOS compiles, linked and run", without_elf
    yield "what MSVC compiles, without GNU C", without_gnu
    yield "tests/bench/fused.c", fused_benchmark
    for example in sorted(name for name in os.listdir(EXAMPLES) if name.endswith(".c")):
        yield f"{example} alone", alone(example)


def missing(what):
    def check(folder):
        raise Skip(f"{what} is not installed")
    return check


def works(command, text="int main(void) { return 0; }", link=""):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "x.c"), "w") as out:
            out.write(text)
        try:
            return (subprocess.run((command + " x.c -o x " + link).split(), cwd=folder,
                                   stderr=subprocess.DEVNULL).returncode == 0)
        except OSError:
            return False


def header(name):
    return works("gcc", f"#include <{name}>\nint main(void) {{ return 0; }}")


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

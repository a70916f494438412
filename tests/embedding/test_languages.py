"""gpunn from Fortran and from Python, by the modules that the generator writes. They have the constants and
structs of C; the examples learn, built as their comments say."""
import ctypes
import importlib.util
import os
import re
import tempfile
from array import array
from functools import lru_cache

from generator.fortran import __main__ as fortran
from generator.python import __main__ as python
from generator.reference import api
from tests.embedding import FILES, ROOT, Case, need

HERE = os.path.dirname(os.path.abspath(__file__))
OPTIMIZED = r"-O[23]( -march=native)?"
GFORTRAN = "gfortran -std=f2018 -Wall -Wextra -pedantic -Werror"
SIZES = (2, 3, 4, 5)


def text_of(name):
    with open(os.path.join(FILES, name), encoding="utf-8") as file:
        return file.read()


def commands(name):
    """The commands in the first comment of an example in Fortran."""
    return re.findall(r"^!     (.*)$", text_of(name), re.M)


def printed(values):
    """Lines of C that print "name value"."""
    return [f'printf("%s %lld\\n", "{name}", (long long)({value}));' for name, value in values]


def layout():
    """(name, C's expression) of all sizes and offsets."""
    for struct in api.structs().values():
        yield struct.name, f"sizeof({struct.name})"
        yield from ((f"{struct.name}.{field.name}", f"offsetof({struct.name}, {field.name})")
                    for field in struct.fields)


def numbers():
    return [one.name for one in api.constants().values() if isinstance(one.value, int)]


def fortran_layout():
    """A program that prints the same in Fortran, and the constants."""
    structs = list(enumerate(api.structs().values()))
    declared = [f"type({struct.name}), target, save :: v{i}" for i, struct in structs]
    lines = [f"print format, '{struct.name}', c_sizeof(v{i})" for i, struct in structs]
    lines += [f"print format, '{struct.name}.{field.name}', place(c_loc(v{i}%{field.name})) - &\n"
              f"    place(c_loc(v{i}))" for i, struct in structs for field in struct.fields]
    lines += [f"print format, '{name}', {name}{'_VALUE' * (name in fortran.renamed())}" for name in numbers()]
    return "\n".join(["program layout", "use gpunn", "implicit none",
                      "character(*), parameter :: format = '(a, 1x, i0)'", *declared, *lines, "contains",
                      "integer(c_intptr_t) function place(pointer)", "type(c_ptr), intent(in) :: pointer",
                      "place = transfer(pointer, place)", "end function", "end program"])


def fortran_arrays():
    """A program that passes arrays of each type and rank, and sums them along Fortran's last dimension."""
    return "\n".join(["program arrays", "use gpunn", "implicit none", "type(c_ptr) :: dev, model, x, y",
                      "integer :: i", "dev = gpunn_device_open()", "model = gpunn_model_create(dev)",
                      *(array_block(*row[:2], rank) for row in fortran.ARRAYS for rank in fortran.RANKS),
                      "contains", "subroutine expect(is_so)", "logical, intent(in) :: is_so",
                      "if (.not. is_so) error stop gpunn_error(dev)", "end subroutine", "end program"])


def array_block(dtype, kind, rank):
    sizes, number = SIZES[:rank], re.match(r"\w+", kind)[0].replace("integer", "int")
    listed, rest = ", ".join(map(str, sizes)), ", ".join(map(str, sizes[:-1] or (1,)))
    return f"""block
    {kind}, target :: a({listed}), b({listed}), s({rest})
    x = gpunn_input(model, '{dtype}{rank}', GPUNN_{dtype}, gpunn_shape([{', '.join(map(str, sizes[::-1]))}]))
    y = gpunn_sum(x, gpunn_axes([0]), .false.)
    a = reshape({number}([(i, i = 1, size(a))], kind(a)), [{listed}])
    call expect(gpunn_write(x, a) == GPUNN_OK)
    call expect(gpunn_read(x, b) == GPUNN_OK)
    call expect(maxval(abs(a - b)) < 1)
    call expect(gpunn_forward([y]) == GPUNN_OK)
    call expect(gpunn_read(y, s) == GPUNN_OK)
    call expect(maxval(abs(s - sum(a, dim={rank}))) < 1)
    b = 2 * a
    call expect(gpunn_bind(x, b) == GPUNN_OK)
    call expect(gpunn_forward([y]) == GPUNN_OK)
    call expect(gpunn_read(y, s) == GPUNN_OK)
    call expect(maxval(abs(s - 2 * sum(a, dim={rank}))) < 1)
    call expect(gpunn_bind(x, c_null_ptr, 0_c_size_t) == GPUNN_OK)
end block"""


@lru_cache(maxsize=None)
def shared(name):
    """A folder for all tests of a language, so that the library is compiled once."""
    folder = tempfile.TemporaryDirectory(prefix=name)
    for each in "gpunn.h", "examples", "generator":
        os.symlink(os.path.join(ROOT, each), os.path.join(folder.name, each))
    return folder


@lru_cache(maxsize=None)
def loaded(path):
    """A module of Python in a file."""
    spec = importlib.util.spec_from_file_location("gpunn", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Language(Case):
    language = ""

    def setUp(self):
        self.folder = shared(self.language).name

    def pairs(self, command):
        """{name: number} of what a command prints."""
        found = (line.split() for line in self.call(command).splitlines())
        return {name: int(value) for name, value in found}

    def c_values(self):
        """{name: value} of all sizes, offsets and constants by C."""
        values = list(layout()) + [(name, name) for name in numbers()]
        self.assertGreater(len(values), 1000)
        self.write("values.c", '#include "gpunn.h"\n#include <stdio.h>\nint main(void) {\n' +
                   "\n".join(printed(values)) + "\nreturn 0; }\n")
        return self.pairs("cc values.c -o values && ./values")


class Fortran(Language):
    language = "fortran"

    def setUp(self):
        super().setUp()
        need("gfortran")
        self.write_module, self.compile_library, _ = commands("sine.f90")
        if not os.path.exists(os.path.join(self.folder, "module.o")):
            self.call(f"{self.write_module} && {GFORTRAN} -c gpunn.f90 -o module.o")
            self.call(re.sub(OPTIMIZED, "-O0", self.compile_library))

    def runs(self, text, name):
        """What a program on the module prints."""
        self.write(name + ".f90", text)
        return f"{GFORTRAN} -fcheck=all {name}.f90 module.o library.o -lm -lpthread -o {name} && ./{name}"

    def test_functions(self):
        """The table has all functions of the library."""
        symbols = self.call("nm --defined-only --extern-only library.o")
        self.assertEqual(sorted(re.findall(r" [TW] (gpunn_(?!_)\w+)$", symbols, re.M)),
                         sorted([one.symbol for one in api.functions()] + list(api.C_ONLY)))

    def test_lines(self):
        """They are not longer than free form allows, and in ASCII."""
        with open(os.path.join(self.folder, "gpunn.f90"), encoding="ascii") as file:
            self.assertLessEqual(max(map(len, file.read().splitlines())), 132)

    def test_layout(self):
        self.assertEqual(self.pairs(self.runs(fortran_layout(), "layout")), self.c_values())

    def test_arrays(self):
        self.assertEqual(self.call(self.runs(fortran_arrays(), "arrays")), "")

    def test_bound(self):
        """gpunn_bind of memory that the compiler could copy does not compile."""
        for array in "plain", "strided(::2, :)":
            self.write("bound.f90", "\n".join(["program bound", "use gpunn", "real(c_float) :: plain(3, 2)",
                                               "real(c_float), target :: strided(6, 2)",
                                               f"print *, gpunn_bind(c_null_ptr, {array})", "end program"]))
            self.assertIn("no specific function", self.call("! gfortran -c bound.f90"))

    def test_wrappers(self):
        with open(os.path.join(HERE, "wrappers.f90"), encoding="ascii") as file:
            self.assertEqual(self.call(self.runs(file.read(), "wrappers")), "")

    def example(self, name):
        """The output of an example, built as its comment says."""
        *before, line = commands(name)
        self.assertEqual(before, [self.write_module, self.compile_library])
        return self.call(line.replace("gfortran -O2", GFORTRAN))

    def test_sine(self):
        said = self.example("sine.f90")
        self.assertLess(float(re.match(r"largest error\s+([\d.]+)", said)[1]), 0.05)

    def test_training(self):
        """FTorch's own check: each element to a thousandth."""
        said = re.search(r"output(.*)", self.example("training.f90"))[1]
        for value, wanted in zip(map(float, said.split()), (5, 1, 2, 3, 4), strict=True):
            self.assertLessEqual(abs(value - wanted), 1e-3 * wanted)


class PythonModule(Language):
    """The module, and the shared library by the manual's command."""
    language = "python"

    def setUp(self):
        super().setUp()
        with open(os.path.join(ROOT, "gpunn.h"), encoding="utf-8") as file:
            line = re.search(r"^ \*\s+(cc .*-shared .*-o libgpunn\.so.*)$", file.read(), re.M)[1]
        self.commands = re.findall(r"^    ((?:\w+=\S+ )?(?:python3|cc) .*)$", text_of("xor.py"), re.M)
        self.assertEqual(self.commands[1], line)
        if not os.path.exists(os.path.join(self.folder, "libgpunn.so")):
            self.call(f"{self.commands[0]} && " + re.sub(OPTIMIZED, "-O0", line))
        self.gpunn = loaded(os.path.join(self.folder, "gpunn.py"))


class Python(PythonModule):
    def test_example(self):
        self.learns(self.commands[2])

    def test_layout(self):
        found = {name: getattr(self.gpunn, name[len("GPUNN_"):]) for name in numbers()}
        for struct in api.structs().values():
            kind = getattr(self.gpunn, python.class_name(struct.name))
            found[struct.name] = ctypes.sizeof(kind)
            found.update((f"{struct.name}.{field.name}", getattr(kind, python.safe(field.name)).offset)
                         for field in struct.fields)
        self.assertEqual(found, self.c_values())


class PythonCalls(PythonModule):
    def setUp(self):
        super().setUp()
        self.dev = self.gpunn.device_open(type=self.gpunn.DEVICE_CPU, seed=4, threads=1)
        self.addCleanup(self.dev.close)
        self.model = self.gpunn.model_create(self.dev)

    def input(self, name, *shape):
        return self.gpunn.input(self.model, name, self.gpunn.F32, shape)

    def test_values(self):
        """Training gives C's numbers, bit for bit."""
        said = self.call(f"cc {HERE}/values.c -I. -L. -lgpunn -Wl,-rpath,. -lm -o trained && ./trained")
        gpunn = self.gpunn
        x, t = self.input("x", gpunn.BATCH, 3), self.input("t", gpunn.BATCH, 2)
        hidden = gpunn.dropout(gpunn.gelu(gpunn.linear(x, "fc1", 5)), 0.25)
        output = gpunn.linear(hidden, "fc2", out_features=2, no_bias=True)
        loss = gpunn.huber_loss(output, t, delta=0.5)
        adamw = gpunn.adamw(self.model, lr=0.02, weight_decay=0.1)
        values = array("f", [i * 7 % 11 / 4 - 1 for i in range(24)])
        gpunn.write(x, values)
        gpunn.write(t, array("f", [number for a, b, c in zip(*[iter(values)] * 3) for number in (a * b, c)]))
        for _ in range(50):
            gpunn.train_step(adamw, loss)
        gpunn.forward([output])
        found = [number for one in (output, gpunn.find(self.model, "fc1.weight"))
                 for row in gpunn.read(one).tolist() for number in row]
        self.assertEqual(found, list(array("f", map(float, said.split()))))

    def test_arrays(self):
        """Each type in and out, memory of the program, and DLPack."""
        gpunn, x = self.gpunn, self.input("x", self.gpunn.BATCH, 2)
        total = gpunn.sum(x, 1, False)
        for code in "fdiqB":
            gpunn.write(x, array(code, range(6)))
            gpunn.forward([total])
            self.assertEqual(gpunn.read(total).tolist(), [1, 5, 9])
        self.assertEqual(gpunn.tensor_sizes(x), (3, 2))
        for dtype in gpunn.F64, gpunn.I64, gpunn.I32, gpunn.U8:
            self.assertEqual(gpunn.read(x, dtype).tolist(), [[0, 1], [2, 3], [4, 5]])
        table = memoryview(array("d", range(12))).cast("B").cast("d", (6, 2))
        gpunn.write(x, table[::3])  # read-only or with gaps, it is copied
        self.assertEqual(gpunn.read(x).tolist(), [[0, 1], [6, 7]])
        memory = array("f", range(4))
        gpunn.bind(x, memory)
        memory[0] = 10
        gpunn.forward([total])
        self.assertEqual(gpunn.read(total).tolist(), [11, 5])
        gpunn.bind(x, None)
        other = self.input("other", gpunn.BATCH)
        gpunn.write(x, memory)
        gpunn.forward([total])
        gpunn.write(other, total)  # a tensor is an array of DLPack
        self.assertEqual(gpunn.read(other).tolist(), [11, 5])
        self.assertEqual(total.__dlpack_device__(), (gpunn.DLPACK_CPU, 0))
        for wrong in array("h", range(4)), [1, 2], None:
            self.assertRaises(TypeError, gpunn.write, x, wrong)
        for shape in (2, 6), (3, 2, 2):
            wrong = table.cast("B").cast("d", shape)
            self.assertRaisesRegex(ValueError, "the array has the shape", gpunn.write, x, wrong)
        self.assertRaisesRegex(ValueError, "writable", gpunn.bind, x, memoryview(bytes(16)).cast("f"))

    def test_results(self):
        """What C writes through pointers, lists, files in memory, settings and texts."""
        gpunn, x = self.gpunn, self.input("x", self.gpunn.BATCH, 3)
        values, indices = gpunn.topk(x, 2, 1, True)
        parts = gpunn.split(x, 2, 1)
        c_n = gpunn.Out()
        cell = gpunn.lstm_cell(x, "cell", hidden_size=4, c_n=c_n)
        self.assertEqual([gpunn.tensor_shape(one)[1] for one in [*parts, cell, c_n.value]], [2, 1, 4, 4])
        gpunn.write(x, array("f", [1, 3, 2, 6, 4, 5]))
        gpunn.forward([values, indices, gpunn.concat(parts, 1)])
        self.assertEqual(gpunn.read(indices).tolist(), [[1, 2], [0, 2]])
        gpunn.backward(gpunn.sum(cell, gpunn.ALL, False))
        self.assertGreater(gpunn.clip_grad_norm(self.model, 1), 0)
        saved = bytes(gpunn.save_memory(self.model))
        gpunn.load_memory(self.model, saved)
        gpunn.set_metadata(self.model, "classes", "cat dog")
        self.assertEqual(gpunn.get_metadata(self.model, "classes"), "cat dog")
        gpunn.set_metadata(self.model, "classes")
        self.assertIsNone(gpunn.get_metadata(self.model, "classes"))
        self.assertIsNone(gpunn.find(self.model, "classes"))
        self.assertEqual(gpunn.find(self.model, "x"), x)
        path = os.path.join(self.folder, "two.safetensors")
        gpunn.write_safetensors(self.dev, path, {"a": array("f", [1, 2]), "b": array("q", [3])})
        self.assertEqual(gpunn.read_safetensors(self.dev, path, "a").tolist(), [1, 2])
        self.assertEqual(gpunn.read_safetensors_as(self.dev, path, "b", gpunn.F64).tolist(), [3])

    def test_callbacks(self):
        """Loaders over arrays, callbacks, and exceptions in them."""
        gpunn, x, t = self.gpunn, self.input("x", -1, 2), self.input("t", -1, 1)
        loss = gpunn.mse_loss(gpunn.linear(x, "fc", 1), t)
        sgd = gpunn.sgd(self.model, lr=0.01, parameters=[gpunn.find(self.model, "fc.weight")])
        table = memoryview(array("d", range(8))).cast("B").cast("d", (4, 2))
        loader = gpunn.loader_create(self.model, [(x, table), (t, array("f", range(4)))], batch_size=2)
        seen, epochs = [], gpunn.Out()
        gpunn.fit(sgd, loss=loss, train=loader, epochs=2, epochs_run=epochs,
                  on_progress=lambda progress: seen.append((progress.epoch, progress.batch)) or True)
        self.assertEqual((len(seen), seen[0], epochs.value), (6, (1, 1), 2))
        self.assertRaises(ZeroDivisionError, gpunn.fit, sgd, loss=loss, train=loader, epochs=1,
                          on_progress=lambda progress: 1 / 0)
        self.assertGreater(gpunn.evaluate(loader, loss)[0], 0)
        lines = []
        gpunn.model_summary(self.model, write=lines.append)
        self.assertIn("fc", "".join(lines))
        gpunn.fit(sgd, loss=loss, train=loader, epochs=1, on_progress=lambda progress: None)
        with self.assertRaisesRegex(ctypes.ArgumentError, "the loader has 5 samples"):
            gpunn.loader_create(self.model, [(x, table)], count=5)
        with self.assertRaisesRegex(ctypes.ArgumentError, "samples have the shape"):
            gpunn.loader_create(self.model, [(t, table)])
        validation = gpunn.Out()
        gpunn.loader_create(self.model, [(x, table)], validation_share=0.5, validation=validation)
        self.assertEqual(gpunn.loader_batches(validation.value), 1)

    def test_classes(self):
        """Scores with their table, and sizes that vary."""
        gpunn, x = self.gpunn, self.input("x", self.gpunn.BATCH, 2)
        labels = gpunn.input(self.model, "labels", gpunn.I64, (gpunn.BATCH,))
        table = memoryview(array("f", [1, 0, 0, 1, 1, 0])).cast("B").cast("f", (3, 2))
        loader = gpunn.loader_create(self.model, [(x, table), (labels, array("q", [0, 1, 1]))])
        logits = gpunn.mul_scalar(x, 2)
        scores, counts = gpunn.evaluate_classes(loader, logits, labels, confusion=True)
        self.assertEqual((scores.samples, counts.tolist()), (3, [[1, 0], [1, 1]]))
        length = gpunn.size(self.model, "T")
        steps = self.input("steps", gpunn.BATCH, length)
        gpunn.write(steps, table)
        self.assertEqual(gpunn.tensor_sizes(steps), (3, 2))
        self.assertRaisesRegex(TypeError, "the tensor's dtype", gpunn.write, steps,
                               memoryview(array("d", range(4))).cast("B").cast("d", (2, 2)))

    def test_errors(self):
        """The library's sentence, once; wrong types and closed objects never reach it."""
        gpunn, x = self.gpunn, self.input("x", self.gpunn.BATCH, 2)
        with self.assertRaisesRegex(gpunn.Error, "reshape: ") as failure:
            gpunn.reshape(x, (7,))
        self.assertEqual(failure.exception.status, gpunn.ERR_SHAPE)
        gpunn.relu(x)
        self.assertRaisesRegex(gpunn.Error, "unique|taken|already", self.input, "x", 2)
        with self.assertRaises(gpunn.Error) as failure:
            gpunn.device_open(type=7)
        self.assertEqual(failure.exception.status, gpunn.ERR_ARGUMENT)
        self.assertRaisesRegex(TypeError, "no field|unexpected", gpunn.linear, x, "fc", out=3)
        self.assertRaisesRegex(ctypes.ArgumentError, "expected a Tensor, not Model", gpunn.relu, self.model)
        self.model.close()
        self.assertRaisesRegex(ctypes.ArgumentError, "the Model is closed", gpunn.relu, x)

    def test_numpy(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("NumPy is not installed")
        gpunn, x = self.gpunn, self.input("x", self.gpunn.BATCH, 3)
        values = numpy.arange(12.0).reshape(4, 3)
        for given in values, numpy.asfortranarray(values), values.astype("f4")[::1]:
            gpunn.write(x, given)
            self.assertTrue((gpunn.read(x) == values).all())
        self.assertEqual(gpunn.read(x).dtype, numpy.float32)
        y = gpunn.relu(x)
        gpunn.forward([y])
        if numpy.lib.NumpyVersion(numpy.__version__) >= "2.1.0":
            self.assertTrue((numpy.from_dlpack(y) == values).all())
        else:  # it asks for DLPack before 1.0
            self.assertRaisesRegex(BufferError, "gpunn.read copies", numpy.from_dlpack, y)
        self.assertEqual(gpunn.tensor_shape(gpunn.constant(self.model, numpy.ones((2, 2), "f4"))), (2, 2))

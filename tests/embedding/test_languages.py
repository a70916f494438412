"""gpunn from Fortran and from Python, by the modules that the generator writes. They have the constants and
structs of C; the examples learn, built as their comments say."""
import os
import re
import tempfile
from functools import lru_cache

from generator.fortran import __main__ as fortran
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
    lines += [f"print format, '{struct.name}.{field.name}', &\n place(c_loc(v{i}%{field.name})) - place(c_loc(v{i}))"
              for i, struct in structs for field in struct.fields]
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


class Language(Case):
    def setUp(self):
        self.folder = shared(type(self).__name__).name

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
        return f"{GFORTRAN} -fcheck=all {name}.f90 module.o gpunn_c.o -lm -lpthread -o {name} && ./{name}"

    def test_functions(self):
        """The table has all functions of the library."""
        symbols = self.call("nm --defined-only --extern-only gpunn_c.o")
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


class Python(Language):
    def test_example(self):
        """With the shared library, built by the manual's command."""
        with open(os.path.join(ROOT, "gpunn.h"), encoding="utf-8") as file:
            line = re.search(r"^ \*\s+(cc .*-shared .*-o libgpunn\.so.*)$", file.read(), re.M)[1]
        self.assertIn(line, text_of("xor.py"))
        self.call(re.sub(OPTIMIZED, "-O0", line))
        self.learns(re.search(r"^    (python3 .*)$", text_of("xor.py"), re.M)[1])

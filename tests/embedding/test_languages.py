"""gpunn from Python by ctypes and from Fortran. Both examples learn, built as their comments say, and declare
gpunn.h's structs."""
import ctypes
import importlib.util
import os
import re

from tests.embedding import FILES, ROOT, Case, need

OPTIMIZED = r"-O[23]( -march=native)?"


def text_of(name):
    with open(os.path.join(FILES, name), encoding="utf-8") as file:
        return file.read()


def python_structs():
    """{C's name: [fields]}, and their classes."""
    spec = importlib.util.spec_from_file_location("xor", os.path.join(FILES, "xor.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = {}
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, ctypes.Structure) and kind is not ctypes.Structure:
            found["gpunn" + re.sub(r"([A-Z])", lambda letter: "_" + letter[1].lower(), kind.__name__)] = kind
    return found


def fortran_structs():
    """{C's name: [fields]}"""
    found = {}
    for name, body in re.findall(r"type, bind\(C\) :: (\w+)\n(.*?)end type", text_of("sine.f90"), re.S):
        declared = " , ".join(line.split("::", 1)[1] for line in body.splitlines() if "::" in line)
        found[name] = [re.match(r"\w+", field.strip())[0] for field in declared.split(",")]
    return found


class Languages(Case):
    def setUp(self):
        super().setUp()
        for name in "gpunn.h", "examples":
            os.symlink(os.path.join(ROOT, name), os.path.join(self.folder, name))

    def c_layout(self, structs):
        """{struct: (size, [(field, offset)])} by C."""
        lines = []
        for struct, fields in structs.items():
            lines.append(f'printf("{struct} %zu\\n", sizeof({struct}));')
            lines += [f'printf("{struct}.{field} %zu\\n", offsetof({struct}, {field}));' for field in fields]
        self.write("layout.c", '#include "gpunn.h"\n#include <stdio.h>\nint main(void) {\n' +
                   "\n".join(lines) + "\nreturn 0; }\n")
        return dict(line.split() for line in self.call("cc layout.c -o layout && ./layout").splitlines())

    def test_python_structs(self):
        structs = python_structs()
        self.assertGreater(len(structs), 5)
        said = self.c_layout({name: [field[0] for field in kind._fields_] for name, kind in structs.items()})
        for name, kind in structs.items():
            self.assertEqual(int(said[name]), ctypes.sizeof(kind), name)
            for field in kind._fields_:
                self.assertEqual(int(said[f"{name}.{field[0]}"]), getattr(kind, field[0]).offset,
                                 f"{name}.{field[0]}")

    def test_fortran_structs(self):
        """They have C's sizes, and the fields have C's order."""
        need("gfortran")
        structs = fortran_structs()
        self.assertGreater(len(structs), 4)
        said = self.c_layout(structs)
        module = text_of("sine.f90").split("contains")[0] + "end module\n"
        lines = [f"print '(a, i0)', '{name} ', storage_size({name}()) / 8" for name in structs]
        self.write("sizes.f90", module + "program sizes\n use gpunn\n" + "\n".join(lines) + "\nend program\n")
        for line in self.call("gfortran sizes.f90 -o sizes && ./sizes").splitlines():
            name, size = line.split()
            self.assertEqual(said[name], size, name)
            offsets = [int(said[f"{name}.{field}"]) for field in structs[name]]
            self.assertEqual(offsets, sorted(offsets), name)

    def test_python(self):
        """With the shared library, built by the manual's command."""
        with open(os.path.join(ROOT, "gpunn.h"), encoding="utf-8") as file:
            line = re.search(r"^ \*\s+(cc .*-shared .*-o libgpunn\.so.*)$", file.read(), re.M)[1]
        self.assertIn(line, text_of("xor.py"))
        self.call(re.sub(OPTIMIZED, "-O0", line))
        self.learns(re.search(r"^    (python3 .*)$", text_of("xor.py"), re.M)[1])

    def test_fortran(self):
        need("gfortran")
        for line in re.findall(r"^!     (.*)$", text_of("sine.f90"), re.M):
            said = self.call(re.sub(OPTIMIZED, "-O0",
                                    line).replace("gfortran", "gfortran -std=f2003 -Wall -Wextra -Werror"))
        self.assertLess(float(re.match(r"largest error\s+([\d.]+)", said)[1]), 0.05)

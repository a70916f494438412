"""examples/embedding's files for CMake, make, pkg-config and Meson. Each is used as its opening comment says,
with and without the companion."""
import os
import re
import shutil

from tests.embedding import COMPANION, FILES, ROOT, Case, need, program

QUICK = "-O0"
QUICK_CUDA = "-Xcicc -O0 -Xptxas -O0"
CUDA_APP = """
#include "gpunn.h"
#include <stdio.h>
int main(void)
{
    (void)printf("%d GPUs\\n", gpunn_cuda_device_count());
    return gpunn_device_open(.type = GPUNN_DEVICE_CPU) == NULL;
}
"""


def comment(name):
    with open(os.path.join(FILES, name), encoding="utf-8") as file:
        return "\n".join(re.findall(r"^# {5}(.*)", file.read(), re.M))


class Build(Case):
    def setUp(self):
        """clone: the repository as a build sees it, with a small companion. app.c: a stranger's program."""
        super().setUp()
        os.makedirs(os.path.join(self.folder, "clone", "examples"))
        os.symlink(os.path.join(ROOT, "gpunn.h"), os.path.join(self.folder, "clone", "gpunn.h"))
        shutil.copytree(FILES, os.path.join(self.folder, "clone", "examples", "embedding"))
        self.write("clone/gpunn_cuda.cu", COMPANION)
        self.write("app.c", program())
        self.write("cuda.c", CUDA_APP)


class CMake(Build):
    ADDED = "add_subdirectory(clone/examples/embedding gpunn)"

    def build(self, source, how, options=""):
        need("cmake", "make")
        self.write("CMakeLists.txt",
                   f"cmake_minimum_required(VERSION 3.18)\nproject(app LANGUAGES C)\n{how}\n"
                   f"add_executable(app {source})\ntarget_link_libraries(app gpunn::gpunn)\n")
        return self.call(f"cmake -G 'Unix Makefiles' -S . -B build -DGPUNN_FLAGS={QUICK} {options} && cmake "
                         f"--build build")

    def test_added(self):
        self.assertIn(self.ADDED.replace("clone", "path/to/gpunn"), comment("CMakeLists.txt"))
        self.build("app.c", self.ADDED)
        self.learns("build/app")

    def test_fetched(self):
        """From a local path in place of the comment's repository."""
        how = comment("CMakeLists.txt").split("\n",
                                              1)[1].replace("GIT_REPOSITORY URL", f"URL {self.folder}/clone")
        self.assertIn("FetchContent_MakeAvailable", how)
        self.build("app.c", how)
        self.learns("build/app")

    def test_shared_by_a_library(self):
        """Its objects may become part of a shared library."""
        self.build("app.c",
                   self.ADDED + "\nadd_library(part SHARED cuda.c)\ntarget_link_libraries(part gpunn::gpunn)")

    def test_cuda(self):
        need("nvcc")
        self.build("cuda.c", self.ADDED, f"-DGPUNN_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90 "
                   f"-DCMAKE_CUDA_FLAGS='{QUICK_CUDA}' -DCMAKE_CUDA_COMPILER=$(command -v nvcc)")
        self.assertEqual(self.call("build/app"), "7 GPUs\n")


class Make(Build):
    MAKE = f"make -f clone/examples/embedding/Makefile CFLAGS={QUICK} PREFIX=$PWD/installed"
    FOUND = "PKG_CONFIG_PATH=$PWD/installed/lib/pkgconfig"

    def test_shared(self):
        need("make", "pkg-config")
        self.call(self.MAKE + " install")
        line = re.search(r"^cc .*-o app", comment("Makefile"), re.M)[0]
        self.call(
            f"export {self.FOUND}; {line}; pkg-config --exact-version=$(pkg-config --modversion gpunn) gpunn")
        self.learns("LD_LIBRARY_PATH=$PWD/installed/lib ./app")
        self.assertRegex(self.call("readelf -d app"), r"NEEDED.*libgpunn\.so\.0\.2\b")

    def test_static(self):
        need("make", "pkg-config")
        self.call(self.MAKE + " install && rm installed/lib/libgpunn.so*")
        self.call(f"export {self.FOUND}; cc app.c $(pkg-config --static --cflags --libs gpunn) -o app")
        self.learns("./app")

    def test_cuda(self):
        need("make", "pkg-config", "nvcc")
        self.call(self.MAKE + f" install CUDA=1 NVCCFLAGS='-arch=sm_90 {QUICK_CUDA}'")
        self.call(f"export {self.FOUND}; cc cuda.c $(pkg-config --cflags --libs gpunn) -o shared; rm "
                  f"installed/lib/libgpunn.so;"
                  "cc cuda.c $(pkg-config --static --cflags --libs gpunn) -o static")
        self.assertEqual(self.call("LD_LIBRARY_PATH=$PWD/installed/lib ./shared && ./static"),
                         "7 GPUs\n7 GPUs\n")


class Meson(Build):
    def build(self, source, *files):
        need("meson", "ninja")
        os.makedirs(os.path.join(self.folder, "subprojects", "gpunn"))
        for name in ("gpunn.h", "examples/embedding/gpunn.c", "examples/embedding/meson.build", *files):
            shutil.copy(os.path.join(self.folder, "clone", name),
                        os.path.join(self.folder, "subprojects", "gpunn"))
        with open(os.path.join(FILES, "meson.build"), encoding="utf-8") as file:
            text = file.read()
        self.assertIn("flags = ['-O3', '-march=native']", text)
        self.write("subprojects/gpunn/meson.build",
                   text.replace("'-O3', '-march=native'",
                                f"'{QUICK}'").replace("-arch=native", "-arch=sm_90"))
        self.write("meson.build", "project('app', 'c')\n" + comment("meson.build").replace("app.c", source))
        self.call("meson setup build && ninja -C build")

    def test_subproject(self):
        self.build("app.c")
        self.learns("build/app")

    def test_cuda(self):
        need("nvcc")
        self.build("cuda.c", "gpunn_cuda.cu")
        self.assertEqual(self.call("build/app"), "7 GPUs\n")

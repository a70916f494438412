"""tests/gpu/toolkit.py in artificial folders: wheels, wrappers of nvcc, drivers that the loader does not
know."""
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "gpu"))
import toolkit

NVCC = """#!/bin/sh
case $1 in
--dryrun) echo '#$ _HERE_={top}/bin'; echo '#$ TOP={top}/bin/..' ;;
--version) echo 'Cuda compilation tools, release 13.0, V13.0.88' ;;
--list-gpu-arch) printf 'compute_75\\ncompute_80\\ncompute_90\\n' ;;
esac
"""
DRIVER = """ /* of the name by which the loader finds a library that is open */
int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
int cuDeviceGetName(char *name, int size, int device) { name[0] = 'G'; name[1] = 0; return size * device; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = attribute == 75 ? MAJOR : device;
    return 0;
}
"""


class Toolkit(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.realpath(folder.name)
        for name in "NVCC", "CUDA_PATH", "CUDA_HOME", "LD_LIBRARY_PATH":
            self.addCleanup(os.environ.__setitem__, name,
                            os.environ[name]) if name in os.environ else self.addCleanup(
                                os.environ.pop, name, None)
            os.environ.pop(name, None)
        path, mounts, wheels = os.environ["PATH"], toolkit.MOUNTS, toolkit.wheels
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        self.addCleanup(self.mount, *mounts)
        self.addCleanup(setattr, toolkit, "wheels", wheels)
        toolkit.wheels = lambda: []

    @staticmethod
    def mount(*folders):
        toolkit.MOUNTS = folders
        toolkit.driver.cache_clear()

    def write(self, name, text="", mode=0o644):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def make_wheels(self):
        top = os.path.join(self.folder, "nvidia", "cu13")
        nvcc = self.write("nvidia/cu13/bin/nvcc", NVCC.format(top=top), 0o755)
        for name in ("cu13/include/cuda_runtime.h", "cu13/include/cublasLt.h", "cudnn/include/cudnn.h",
                     "cu13/lib/libcublasLt.so.13", "cu13/lib/libcudart_static.a", "cudnn/lib/libcudnn.so.9"):
            self.write("nvidia/" + name)
        toolkit.wheels = lambda: [os.path.join(self.folder, "nvidia", one) for one in ("cu13", "cudnn")]
        return top, nvcc

    def test_a_wrapper_that_points_into_wheels(self):
        top, nvcc = self.make_wheels()
        wrapper = self.write("bin/nvcc", f'#!/bin/sh\nexec {nvcc} "$@"\n', 0o755)
        os.environ["PATH"] = os.path.dirname(wrapper) + ":" + os.environ["PATH"]
        found = toolkit.Toolkit()
        self.assertEqual((found.nvcc, found.folder), (wrapper, top))
        self.assertIn("-L" + os.path.join(top, "lib"), found.flags)
        self.assertIn("-I" + os.path.join(self.folder, "nvidia/cudnn/include"), found.flags)
        self.assertEqual(found.libraries["libcudnn"],
                         os.path.join(self.folder, "nvidia/cudnn/lib/libcudnn.so.9"))
        self.assertEqual(found.headers["cuda_runtime.h"], os.path.join(top, "include/cuda_runtime.h"))

    def test_the_sanitizer_of_wheels(self):
        self.make_wheels()
        os.environ["PATH"] = self.folder
        tool = self.write("nvidia/cu13/bin/compute-sanitizer", "", 0o755)
        self.assertEqual(toolkit.Toolkit().sanitizer, tool)
        tool = self.write("compute-sanitizer", "", 0o755)  # it comes first
        self.assertEqual(toolkit.Toolkit().sanitizer, tool)

    def test_the_named_compiler_comes_first(self):
        top, nvcc = self.make_wheels()
        os.environ["NVCC"] = nvcc
        self.assertEqual((toolkit.Toolkit().nvcc, toolkit.Toolkit().folder), (nvcc, top))

    def test_a_compiler_that_does_not_run_is_passed_over(self):
        os.environ["NVCC"] = self.write("broken/nvcc", "#!/bin/sh\nexit 1\n", 0o755)
        self.assertNotEqual(toolkit.Toolkit().nvcc, os.environ["NVCC"])

    def test_a_toolkit_with_lib64_needs_no_flag(self):
        top, nvcc = self.make_wheels()
        self.write("nvidia/cu13/lib64/libcudart_static.a")
        os.environ["NVCC"] = nvcc
        self.assertEqual([flag for flag in toolkit.Toolkit().flags if flag.startswith("-L")], [])

    def driver(self, folder, count=1, major=9):
        path = os.path.join(self.folder, folder)
        os.makedirs(path)
        subprocess.run(["cc", "-shared", "-fPIC", f"-DCOUNT={count}", f"-DMAJOR={major}", "-x", "c", "-",
                        "-o", os.path.join(path, "libcuda.so.1")], input=DRIVER, text=True, check=True)
        return path

    def test_a_driver_that_the_loader_does_not_know(self):
        path = self.driver("mounted")
        self.mount("/nowhere", path)
        self.assertEqual(toolkit.driver()[1], path)
        self.assertEqual(toolkit.gpu(), ("1 x G, sm_90", 90))

    def test_a_driver_in_the_loaders_path(self):
        os.environ["LD_LIBRARY_PATH"] = "/nowhere:" + self.driver("named")
        self.mount()
        self.assertEqual(toolkit.driver()[1], os.path.join(self.folder, "named"))

    def test_no_driver_and_no_gpu(self):
        self.mount("/nowhere")
        self.assertEqual(toolkit.gpu(), ("no driver (libcuda.so.1)", None))
        self.mount(self.driver("none", count=0))
        self.assertEqual(toolkit.gpu(), ("a driver, but no GPU (code 0)", None))

    def test_the_architecture_is_the_cards(self):
        os.environ["NVCC"] = self.make_wheels()[1]
        for major, arch in (8, "sm_80"), (9, "sm_90"), (12, "compute_90"):
            self.mount(self.driver(f"sm{major}", major=major))
            self.assertEqual(toolkit.Toolkit().arch(), arch)
            self.assertIn("-arch=" + arch, toolkit.Toolkit().target()[0])

    def test_the_card_is_named_without_a_compiler(self):
        compilers = toolkit.compilers
        self.addCleanup(setattr, toolkit, "compilers", compilers)
        toolkit.compilers = lambda: []
        self.mount(self.driver("driver"))
        self.assertEqual((toolkit.Toolkit().nvcc, toolkit.Toolkit().arch()), (None, "sm_90"))

    def test_an_archive_is_for_no_machine_in_particular(self):
        self.mount(self.driver("other", major=8))
        os.environ["NVCC"] = self.make_wheels()[1]
        os.environ["GPUNN_GPU_BUNDLE"] = "1"
        self.addCleanup(os.environ.pop, "GPUNN_GPU_BUNDLE")
        for_nvcc, for_cc = toolkit.Toolkit().target()
        self.assertIn("-gencode=arch=compute_90,code=sm_90", for_nvcc)
        self.assertNotIn("native", " ".join(for_nvcc + for_cc))
        # a static libstdc++ asks for the builder's glibc
        self.assertNotIn("static", " ".join(for_nvcc + for_cc))
        self.assertEqual(for_cc, ["-march=x86-64-v3"])


if __name__ == "__main__":
    unittest.main()

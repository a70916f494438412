"""gpunn_cuda.cu in a static library: linkers do not pull it for a weak reference. The library says so, and
its advice works."""
from tests.embedding import COMPANION, ROOT, Case, need

APP = """
#include "gpunn.h"
#include <stdio.h>
#include <stdlib.h>
static void log_line(void *user, gpunn_log_level level, const char *message)
{
    (void)user, (void)printf("log %d: %s\\n", level, message);
}
int main(int argc, char **argv)
{
    gpunn_device_args args = {.type = (gpunn_device_type)atoi(argv[1]), .log_fn = argc > 2 ? log_line : NULL};
    gpunn_device     *dev = gpunn_device_open_(args);
    (void)printf("%d GPUs, device %d, %s\\n", gpunn_cuda_device_count(), gpunn_device_type(dev),
                 gpunn_error(NULL));
    gpunn_device_close(dev);
}
"""
AUTO, CPU, CUDA = "0", "1", "2"
REMEDIES = "-Wl,-u,gpunn_cuda_backend", "-DGPUNN_CUDA"


class Archive(Case):
    def build(self, implementation="", link=""):
        """libgpunn.a of both files, and an app that links it. The driver's file exists."""
        need("ar")
        for name, text in (("companion.c", COMPANION), ("app.c", APP),
                           ("gpunn.c", '#define GPUNN_IMPLEMENTATION\n#include "gpunn.h"\n')):
            self.write(name, text)
        self.call(f"""${{CC:-cc}} -I{ROOT} -c -O0 -DGPUNN__DRIVER_FILES='"/nowhere", "driver"' \\
                      {implementation} gpunn.c &&
                      cc -I{ROOT} -c companion.c && ar rcs libgpunn.a gpunn.o companion.o &&
                      cc -I{ROOT} app.c -L. {link} -lgpunn -lm -lpthread -o app""")

    def run_app(self, *arguments, visible="0"):
        return self.call(" ".join(["./app", *arguments]), CUDA_VISIBLE_DEVICES=visible)

    def test_forgotten(self):
        self.build()
        self.assertEqual(self.run_app(AUTO, "log"), "0 GPUs, device 1, \n", "there is no driver")
        self.write("driver", "")
        said = self.run_app(AUTO, "log")
        self.assertRegex(said, r"\Alog 1: gpunn computes on the CPU: there is an NVIDIA driver, but "
                         r"gpunn_cuda.cu is not linked")
        self.assertTrue(said.endswith("\n0 GPUs, device 1, \n") and said.count("\n") == 2, said)
        for remedy in REMEDIES:
            self.assertIn(remedy, said)
        for quiet in (AUTO,), (CPU,), (CPU, "log"):
            self.assertEqual(self.run_app(*quiet), "0 GPUs, device 1, \n")
        for hidden in "", "-1":
            self.assertEqual(self.run_app(AUTO, visible=hidden), "0 GPUs, device 1, \n")

    def test_asked_for(self):
        self.build()
        said = self.run_app(CUDA, "log")
        self.assertRegex(said, r"\Alog 0: gpunn_device_open: [^\n]*without gpunn_cuda.cu[^\n]*\n0 GPUs, "
                         r"device 0, gpunn_device_open: ")
        for remedy in REMEDIES:
            self.assertIn(remedy, said)

    def test_linked(self):
        for how in ({"link": REMEDIES[0]}, {"implementation": REMEDIES[1]}):
            with self.subTest(**how):
                self.build(**how)
                self.write("driver", "")
                self.assertEqual(self.run_app(AUTO, "log"), "log 2: gpunn computes on the CPU: the companion "
                                 "sees no GPU\n7 GPUs, device 1, \n")
                self.assertEqual(self.run_app(AUTO), "7 GPUs, device 1, \n")
                self.assertIn("device 0, gpunn_device_open: the companion sees no GPU",
                              self.run_app(CUDA, "log"))

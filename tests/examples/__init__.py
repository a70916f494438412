"""What the tests of the examples share: where the expected values lie, and where the programs."""
import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(ROOT, "tests", "examples", "golden")
if "GPUNN_EXAMPLES" not in os.environ:  # built without gpunn_cuda.cu, which they would tell where there is a driver
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def program(name):
    """build/NAME, or NAME in the folder that GPUNN_EXAMPLES names, as tests/gpu/run.sh does for those built for the GPU."""
    return os.path.join(os.environ.get("GPUNN_EXAMPLES", os.path.join(ROOT, "build")), name)

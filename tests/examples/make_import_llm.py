"""Writes expected_output/llama2c.json: what run.c of llama2.c (https://github.com/karpathy/llama2.c) computes
of the small model that test_import_llm.py writes.

    python3 tests/examples/make_import_llm.py FOLDER      FOLDER: llama2.c's sources"""
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

from tests.examples import EXPECTED  # noqa: E402
from tests.examples.test_import_llm import PROMPT, SIZES, llama_file  # noqa: E402

PROGRAM = r"""
#define TESTING
#include "run.c"

int main(int argc, char **argv)
{
    Transformer t;
    build_transformer(&t, argv[1]);
    for (int i = 2; i < argc; i++) {
        float *logits = forward(&t, atoi(argv[i]), i - 2);
        for (int k = 0; k < t.config.vocab_size; k++) printf("%.9g\n", logits[k]);
    }
}
"""


def main():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "make.c"), "w", encoding="ascii") as file:
            file.write(PROGRAM)
        subprocess.run(["cc", "-O1", "-w", "-I", os.path.abspath(sys.argv[1]), "make.c", "-o", "make", "-lm"],
                       cwd=folder, check=True)
        results = {}
        for tied in (False, True):
            with open(os.path.join(folder, "net.bin"), "wb") as file:
                file.write(llama_file(0, tied))
            done = subprocess.run(["./make", "net.bin"] + [str(token) for token in PROMPT], cwd=folder,
                                  check=True, stdout=subprocess.PIPE)
            results["tied" if tied else "untied"] = [float(line) for line in done.stdout.split()]
            assert len(results["tied" if tied else "untied"]) == len(PROMPT) * SIZES[5]
    with open(os.path.join(EXPECTED, "llama2c.json"), "w", encoding="ascii") as file:
        json.dump(results, file)
        file.write("\n")


if __name__ == "__main__":
    main()

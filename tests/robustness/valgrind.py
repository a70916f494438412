#!/usr/bin/env python3
"""Runs a test program under valgrind: python3 tests/robustness/valgrind.py PROGRAM. Its TAP lines pass
through. A finding fails it."""
import os
import shutil
import subprocess
import sys

if shutil.which("valgrind") is None:
    print("1..1\nok 1 - valgrind # SKIP valgrind is not installed")
    sys.exit(0)
sys.exit(subprocess.run(["valgrind", "--quiet", "--error-exitcode=99", "--leak-check=full",
                         "--errors-for-leak-kinds=definite,possible",
                         "--track-fds=no", os.path.abspath(sys.argv[1])]).returncode)

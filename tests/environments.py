#!/usr/bin/env python3
"""Runs test programs on machines unlike a developer's: python3 tests/environments.py PROGRAM...

In each condition each program passes, or skips tests by name, and leaves nothing behind. So does tests/run.py
with the first of them. The last condition is a clone under a name with spaces and umlauts, in which ninja
builds the programs. A condition that this machine does not allow is a skip. GPUNN_TEST_FILTER chooses
conditions, such as '*network*'."""
import fnmatch
import os
import shlex
import shutil
import subprocess
import sys
import tempfile

from run import ROOT, Verdicts

sys.path.insert(0, ROOT)
from tests.examples import comma_locale  # noqa: E402

NOBODY = 65534
CLOCK = "build/robustness/clock.so"  # from ROOT: a space would end an absolute path


def mounts(*commands):
    """The start of a command that sees these mounts."""
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *own, "--mount", "sh", "-c", " && ".join(commands) + ' && exec "$@"', "sh"]


def temporary(folder, options):
    """The same, with such file systems in place of temporary folders."""
    usual = [one for one in ("/tmp", "/var/tmp", "/dev/shm")
             if not any(path.startswith(one + "/") for path in (ROOT, folder))]
    return mounts(*(f"mount -t tmpfs -o {options} none {shlex.quote(one)}" for one in [folder, *usual]))


def conditions(folder, own):
    """(name, the start of a command, variables). own: the programs' TMPDIR. folder: for what is needed."""
    plain = os.path.join(folder, "null")
    with open(plain, "w", encoding="ascii"):
        os.chmod(plain, 0o666)
    yield "/dev/null is a file", mounts(f"mount --bind {shlex.quote(plain)} /dev/null"), {}
    yield "a full TMPDIR", temporary(own, "size=4k"), {}
    yield "no inode in TMPDIR", temporary(own, "nr_inodes=1"), {}
    yield "a read-only TMPDIR", temporary(own, "ro"), {}
    yield "a TMPDIR that is missing", [], {"TMPDIR": os.path.join(folder, "missing")}
    network = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    yield "no network", ["unshare", *network, "--net"], {}
    yield "one processor", ["taskset", "-c", str(min(os.sched_getaffinity(0)))], {}
    locale = comma_locale(folder)
    yield ("numbers with a comma", [] if locale else ["localedef"],
           {key: locale[key] for key in ("LOCPATH", "LC_ALL")} if locale else {})
    os.chown(own, NOBODY, NOBODY) if os.geteuid() == 0 else None
    yield "not root", (["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
                       if os.geteuid() == 0 else []), {"HOME": "/nonexistent"}
    yield "a clock that jumps", [], {"LD_PRELOAD": CLOCK}


def refused(start):
    """Why a command cannot begin like that, or ""."""
    try:
        tried = subprocess.run([*start, "true"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except FileNotFoundError:
        return start[0] + " is not installed"
    return " ".join(tried.stdout.split()) or "not allowed here" if tried.returncode else ""


def files():
    """The repository's files, and those that do not belong to it."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                            stdout=subprocess.PIPE, check=True).stdout
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]


def clone(folder, programs):
    """The repository's files in that folder, with the programs that ninja builds there."""
    for name in files():
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        shutil.copy(os.path.join(ROOT, name), os.path.join(folder, name))
    targets = [program for program in programs if program.startswith("build/")]
    done = subprocess.run(["ninja", "-j1", CLOCK, *targets], cwd=folder, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace")
    return done.stdout if done.returncode else ""


def left(own):
    """What a program may have left behind."""
    return os.listdir(own) + files()


def report(start, program, variables, own, root=ROOT):
    """(whether the program stands there, what it says)"""
    words, before = shlex.split(program), left(own)
    python = [sys.executable, "-B"] if words[0].endswith(".py") else []
    environment = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP", **{"TMPDIR": own, **variables})
    environment.pop("GPUNN_TEST_FILTER", None)
    done = subprocess.run([*start, *python, *words], cwd=root, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if words[0] == "tests/run.py":
        return done.returncode == 0, done.stdout.splitlines()[-1:]
    found = Verdicts(done.stdout, done.returncode)
    if left(own) != before:
        found.fail(f"it left {sorted(set(left(own)) - set(before))}")
    said = [f"{found.passed} passed, {len(found.skips)} skipped", *sorted({why for _, why in found.skips})]
    return not found.failures, found.failures + said


def main():
    programs = [f"tests/run.py {shlex.quote(sys.argv[1])}", *sys.argv[1:]]
    wanted, count = os.environ.get("GPUNN_TEST_FILTER", "*"), 0

    def line(condition, program, good, text=(), skip=""):
        nonlocal count
        count += 1
        print("".join(f"# {line}\n" for part in text for line in part.splitlines()) +
              f"{'ok' if good else 'not ok'} {count} - {condition}: {program}" + (skip and f" # SKIP {skip}"),
              flush=True)

    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        own, other = os.path.join(folder, "own für ä"), os.path.join(folder, "clone für ä")
        os.mkdir(own)
        for name, start, variables in conditions(folder, own):
            if fnmatch.fnmatch(name, wanted):
                why = refused(start)
                for program in programs:
                    line(name, program, *((True, (), why) if why else
                                          report(start, program, variables, own)))
        name = "a path with spaces and umlauts"
        if fnmatch.fnmatch(name, wanted):
            fault = clone(other, programs)
            line(name, "ninja", not fault, fault.splitlines()[-40:])
            for program in programs:
                line(name, program, *report([], program, {}, own, other))
    print(f"1..{count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

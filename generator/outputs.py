"""Writes output files completely or not at all. Symbolic links are followed. A device or a pipe is written
directly."""
import contextlib
import os
import secrets
import shutil


def is_special(path):
    """Whether the path exists and is neither a regular file nor a folder."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def begin(path, chunks):
    """Writes a new file beside the one that path leads to, with its mode. Returns the new file and the one
    that it will replace."""
    target = os.path.realpath(path)
    part = "%s.%s.part" % (target, secrets.token_hex(4))
    try:
        with open(part, "xb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(target):
            shutil.copymode(target, part)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(part)
        raise
    return part, target


def replace(part, target):
    """Puts the new file in the target's place, for good: a loss of power later does not take it back."""
    os.replace(part, target)
    with contextlib.suppress(OSError):  # not every system opens or syncs folders
        folder = os.open(os.path.dirname(target), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_special(path, chunks):
    with open(path, "wb") as file:
        file.writelines(chunks)


def write(path, chunks):
    """Writes all of the files or none."""
    if is_special(path):
        return write_special(path, chunks)
    part, target = begin(path, chunks)
    try:
        replace(part, target)
    except OSError:
        os.remove(part)
        raise

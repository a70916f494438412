"""Output files: written whole or not at all, where symbolic links lead to. A device or a pipe is written itself."""
import contextlib
import os
import secrets
import shutil


def is_special(path):
    """Whether something is there that is no regular file and no folder."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def begin(path, chunks):
    """Writes a new file beside the one that path leads to, with its mode; the new file and the one that it is to replace."""
    target = os.path.realpath(path)
    part = "%s.%s.part" % (target, secrets.token_hex(4))
    try:
        with open(part, "xb") as file:
            for chunk in chunks:
                file.write(chunk)
        if os.path.exists(target):
            shutil.copymode(target, part)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(part)
        raise
    return part, target


def write_special(path, chunks):
    with open(path, "wb") as file:
        file.writelines(chunks)


def write(path, chunks):
    """All of them or nothing."""
    if is_special(path):
        return write_special(path, chunks)
    part, target = begin(path, chunks)
    try:
        os.replace(part, target)
    except OSError:
        os.remove(part)
        raise

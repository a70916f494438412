"""The command that writes a module for another language."""

import argparse

from .. import outputs


def run(arguments, package, language, name, module):
    """Writes the text of module() as -o says, by default as `name`."""
    parser = argparse.ArgumentParser(
        prog=f"python3 -m generator.{package}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"Writes the module gpunn for {language}, with everything that gpunn.h declares.\n"
        "The comment at its top says how to use it.",
        epilog=f"example:\n  python3 -m generator.{package} -o {name}",
    )
    parser.add_argument(
        "-o", dest="output", metavar="FILE", default=name, help=f"the file to write; default: {name}"
    )
    outputs.write(parser.parse_args(arguments).output, [module().encode("ascii")])

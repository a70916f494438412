"""Writes the reference of gpunn.h as HTML pages, which need no server and no network:

python3 -m generator.reference [-o build/docs]      then open index.html in a browser
"""

import argparse
import os

from .examples import ROOT
from .pages import pages


def main():
    parser = argparse.ArgumentParser(prog="generator.reference", description=__doc__.splitlines()[0])
    parser.add_argument(
        "-o", "--output", default=os.path.join(ROOT, "build", "docs"), help="the folder to write to"
    )
    folder = parser.parse_args().output
    os.makedirs(folder, exist_ok=True)
    for name, text in pages().items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    print(f"{os.path.join(folder, 'index.html')} is the first page")


if __name__ == "__main__":
    main()

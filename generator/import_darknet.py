#!/usr/bin/env python3
"""Converts a network of darknet to a spec and its weights.

    python3 -m generator.import_darknet F.cfg F.weights -o NAME

This writes NAME.json and NAME.safetensors. It reads the layers of YOLO 2 and 3, YOLO 4 tiny and darknet's
classifiers. The input is [N, channels, height, width] with values from 0 to 1. The outputs are those of the
layers [yolo] or [region], as darknet's detections read them, or the last layer's."""
from .exchange import command, darknet


def main(arguments=None):
    command.run(arguments, "import_darknet", "yolov3-tiny.cfg yolov3-tiny.weights -o yolo",
                "Converts a network of darknet to a spec and its weights.",
                {"config": {"metavar": "F.cfg", "help": "the layers"},
                 "weights": {"metavar": "F.weights", "help": "their weights"}}, darknet.converted)


if __name__ == "__main__":
    main()

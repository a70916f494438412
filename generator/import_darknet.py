#!/usr/bin/env python3
"""Converts a network of darknet to a spec and its weights.

    python3 -m generator.import_darknet F.cfg F.weights -o NAME

This writes NAME.json and NAME.safetensors. It reads the layers of YOLO 2 and 3, YOLO 4 tiny and darknet's
classifiers. The input is [N, channels, height, width] with values from 0 to 1. The outputs are those of the
layers [yolo] or [region], as darknet's detections read them, or the last layer's."""
import sys

from .exchange import command, darknet


def main(arguments=None):
    parser = command.parser("import_darknet", "Converts a network of darknet to a spec and its weights.",
                            "yolov3-tiny.cfg yolov3-tiny.weights -o yolo")
    parser.add_argument("config", metavar="F.cfg", help="the layers")
    parser.add_argument("weights", metavar="F.weights", help="their weights")
    options = parser.parse_args(arguments)
    command.run(options.name, [options.config, options.weights],
                lambda title: darknet.converted(options.config, options.weights, title))


if __name__ == "__main__":
    main(sys.argv[1:])

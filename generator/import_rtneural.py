#!/usr/bin/env python3
"""Converts a model of RTNeural's JSON files, which come from Keras, to a spec and its weights.

    python3 -m generator.import_rtneural model.json -o NAME [--length 64]

This writes NAME.json and NAME.safetensors. The input is [N, T, features]. It reads dense, conv1d, conv2d, GRU
and LSTM layers, PReLU, batch norm and activations. As in RTNeural convolutions are causal in time, with zeros
before the first step. T varies between runs unless --length is given. A JSON file of a PyTorch state_dict()
is read by import_torch."""
from .exchange import command, keras_json


def main(arguments=None):
    command.run(arguments, "import_rtneural", "model.json -o net",
                "Converts a model of RTNeural's JSON files to a spec and its weights.",
                {"file": {"metavar": "F.json", "help": "the model"},
                 "--length": {"type": int, "choices": range(1, 1 << 20), "metavar": "STEPS",
                              "help": "fix the number of steps"}}, keras_json.converted)


if __name__ == "__main__":
    main()

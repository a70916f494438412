#!/usr/bin/env python3
"""Converts a model of KANN to a spec and its weights.

    python3 -m generator.import_kann F.kann -o NAME [--steps 20]

It reads what kann_save writes (r557) and writes NAME.json and NAME.safetensors. The output's values are
kann_apply1's, for any number of samples, and the spec's loss is KANN's cost. Inputs are "input" and "truth".
Of a recurrent network it takes one step from the initial state, as kann_apply1 does, or with --steps as many
as kann_unroll would: sequences then have these as their first axis."""
from .exchange import command, kann


def main(arguments=None):
    command.run(arguments, "import_kann", "F.kann -o net",
                "Converts a model of KANN to a spec and its weights.",
                {"file": {"metavar": "F.kann", "help": "file of kann_save"},
                 "--steps": {"type": int, "choices": range(1, 1001), "metavar": "STEPS",
                             "help": "unroll a recurrent network to so many steps, at most 1000"}},
                kann.converted)


if __name__ == "__main__":
    main()

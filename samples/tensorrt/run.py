"""Run a bundle by its engine and by the alternative without TensorRT, and compare; needs only packager and numpy.

    python samples/tensorrt/run.py ./final.so

Exits 1 if the outputs differ; reports if no GPU of this machine runs the bundle.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import packager

TOLERANCE = 0.02  # of values that are about 1 large and computed in half precision


def main() -> int:
    """Compare the outputs of all alternatives of the bundle's choices."""
    parser = argparse.ArgumentParser(description="Run a BERT encoder with and without TensorRT.")
    parser.add_argument("bundle", type=Path, help="as packager finalize wrote it")
    bundle = packager.load(parser.parse_args().bundle)
    inputs = {"input_ids": np.random.default_rng(0).integers(0, 1000, bundle.inputs[0].shape)}
    outputs = []
    for way in ("tensorrt", "another"):
        selection = {}
        for choice in bundle.manifest.choices:
            names = [one.name for one in choice.alternatives if ("tensorrt" in one.backends) == (way == "tensorrt")]
            selection[choice.name] = names[0]
        try:
            with bundle.session(selection=selection) as session:
                outputs.append(session.run(inputs)["hidden"])
        except packager.PackagerError as error:
            print(f"this machine does not run the bundle: {error.message}", file=sys.stderr)
            return error.exit_code
    difference = float(np.abs(outputs[0] - outputs[1]).max())
    print(
        f"hidden: {outputs[0].shape}, {outputs[0].std():.3f} large; with TensorRT and without within {difference:.1e}"
    )
    return 0 if np.isfinite(outputs[0]).all() and difference < TOLERANCE else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except packager.PackagerError as error:
        print(error.render(), file=sys.stderr)
        sys.exit(error.exit_code)

"""Run the encoder on random sentences; needs only packager and numpy.

    python samples/bert_cutlass/run.py ./bert.so

Runs each sentence alone and in a batch. Exits 1 if the outputs differ; reports if no GPU of this machine runs the
bundle.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import packager

SENTENCES = 4
VOCABULARY = 1000
TOLERANCE = 0.02  # of values that are about 1 large and computed in half precision


def main() -> int:
    """Compare the outputs of sentences alone and in a batch."""
    parser = argparse.ArgumentParser(description="Run the BERT encoder on random sentences.")
    parser.add_argument("bundle", type=Path, help="built from bert.onnx with --dim n=1:8")
    bundle = packager.load(parser.parse_args().bundle)
    try:
        session = bundle.session()
    except packager.PackagerError as error:
        print(f"no GPU of this machine runs the bundle: {error.message}", file=sys.stderr)
        return error.exit_code

    (tokens,) = bundle.inputs
    length = tokens.shape[1]
    sentences = np.random.default_rng(0).integers(0, VOCABULARY, (SENTENCES, length))
    together = session.run({"input_ids": sentences})["hidden"]
    alone = [session.run({"input_ids": sentences[i : i + 1]})["hidden"] for i in range(SENTENCES)]
    difference = float(np.abs(together - np.concatenate(alone)).max())
    print(f"hidden: {together.shape}, {together.std():.3f} large; alone and in a batch within {difference:.1e}")
    return 0 if np.isfinite(together).all() and difference < TOLERANCE else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except packager.PackagerError as error:
        print(error.render(), file=sys.stderr)
        sys.exit(error.exit_code)

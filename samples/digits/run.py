"""Classify the held-out digits with a bundle and print the accuracy; needs only packager and numpy.

    packager build samples/digits/digits.onnx -o digits.so --dim n=1:64
    python samples/digits/run.py ./digits.so

Exits 1 if the accuracy is below 97 %.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import packager

BATCH = 32
REQUIRED_ACCURACY = 0.97


def main() -> int:
    """Run the test set in batches of at most 32."""
    parser = argparse.ArgumentParser(description="Classify the held-out digits with a bundle.")
    parser.add_argument("bundle", type=Path, help="built from digits.onnx with --dim n=1:64")
    bundle = packager.load(parser.parse_args().bundle)

    with np.load(Path(__file__).with_name("digits_test.npz")) as test:
        images, labels = test["images"].astype(np.float32) / 16, test["labels"]
    logits = [bundle.run({"image": images[i : i + BATCH]})["logits"] for i in range(0, len(images), BATCH)]
    right = int((np.concatenate(logits).argmax(axis=1) == labels).sum())

    accuracy = right / len(labels)
    print(f"accuracy: {100 * accuracy:.1f} % ({right} of {len(labels)})")
    return 0 if accuracy >= REQUIRED_ACCURACY else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except packager.PackagerError as error:
        print(error.render(), file=sys.stderr)
        sys.exit(error.exit_code)

"""Run the noise gate on a loud and a quiet tone; needs only packager and numpy.

python samples/custom_op/run.py ./gate.so
"""

from __future__ import annotations

import sys

import numpy as np

import packager


def main() -> int:
    """Print the level of both tones before and after; exit with 1 unless the gate attenuates the quiet one."""
    time = np.arange(256) / 256
    tone = np.sin(2 * np.pi * 8 * time)
    signal = np.stack([tone, 0.01 * tone]).astype(np.float32)
    gated = packager.load(sys.argv[1]).run({"signal": signal})["gated"]
    for name, before, after in zip(("loud", "quiet"), signal, gated, strict=True):
        print(f"{name}: {np.abs(before).max():.3f} -> {np.abs(after).max():.6f}")
    return 0 if np.abs(gated[0]).max() > 0.9 and np.abs(gated[1]).max() < 1e-6 else 1


if __name__ == "__main__":
    sys.exit(main())

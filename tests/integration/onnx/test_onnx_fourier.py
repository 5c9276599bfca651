"""Fourier transforms of ONNX against numpy in double precision: by one matrix, and in two steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from one_cpu import targets_here

import packager
from packager.bundle.reader import inspect

pytestmark = pytest.mark.slow

TRANSFORMS = """<ir_version: 10, opset_import: ["": 20]>
g (float[n,1200,2] x, float[n,1035,1] r, float[n,5000,1] s, float[n,900,1] t) => (
  float[n,1200,2] forward, float[n,1200,2] inverse, float[n,518,2] half, float[n,16,513,2] frames, float[n,2,201,2] few)
{ forward = DFT(x, none, axis) inverse = DFT<inverse = 1>(x, none, axis) half = DFT<onesided = 1>(r, none, axis)
  frames = STFT(s, step, long, length) few = STFT(t, step, short, short_length) }"""
RNG = np.random.default_rng(0)
LONG, SHORT = RNG.random(1024, np.float32), RNG.random(400, np.float32)


def frames_of(signal: np.ndarray, window: np.ndarray, step: int) -> np.ndarray:
    starts = range(0, signal.shape[1] - len(window) + 1, step)
    rows = np.stack([signal[:, start : start + len(window), 0] * window for start in starts], 1)
    return np.fft.rfft(rows.astype(np.float64))


def as_complex(x: np.ndarray) -> np.ndarray:
    return x[..., 0].astype(np.float64) + 1j * x[..., 1]


WANTED: dict[str, Callable[[dict[str, np.ndarray]], np.ndarray]] = {
    "forward": lambda given: np.fft.fft(as_complex(given["x"])),
    "inverse": lambda given: np.fft.ifft(as_complex(given["x"])),
    "half": lambda given: np.fft.rfft(given["r"][..., 0].astype(np.float64)),
    "frames": lambda given: frames_of(given["s"], LONG, 256),
    "few": lambda given: frames_of(given["t"], SHORT, 256),
}


def test_transforms(tmp_path: Path) -> None:
    """Their matrices are constants that backends pack: no product is given back."""
    model = onnx.parser.parse_model(TRANSFORMS.replace("none", ""))
    numbers = {"axis": 1, "step": 256, "length": 1024, "short_length": 400}
    arrays = {**{name: np.array(number) for name, number in numbers.items()}, "long": LONG, "short": SHORT}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    path = tmp_path / "fourier.onnx"
    path.write_bytes(model.SerializeToString())
    bundle = packager.build(path, tmp_path / "fourier.so", targets=targets_here(), dims={"n": (1, 3)})
    primitives = inspect(bundle).manifest.primitives()
    assert {backend for backend, primitive in primitives if "matmul" in primitive.ops} == {"ccompiler"}
    with packager.load(bundle) as loaded:
        for n in (1, 3):
            given = {spec.name: RNG.standard_normal((n, *spec.shape[1:]), np.float32) for spec in loaded.inputs}
            results = loaded.run(given)
            for name, compute in WANTED.items():
                wanted = compute(given)
                difference = np.abs(as_complex(results[name]) - wanted).max() / np.abs(wanted).max()
                assert difference < 2e-6, name

"""Libraries of custom operators, compiled from C here, and models that use them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from graphs import Arrays, DimBounds, save
from one_cpu import targets_here

import packager

ROOT = Path(__file__).parents[2]
FLAGS = ("-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'runtime_stub' / 'include'}")
UNARY = """
[[operator]]
domain = "com.acme"
op_type = "{name}"
symbol = "{symbol}"
signature = "pointers"
inputs = [{{ name = "x", dtype = "float32" }}]
outputs = [{{ name = "y", dtype = "float32", shape = "like:x" }}]
arguments = ["x", "y", "numel(x)"]
"""
SWISH_C = """
#include <math.h>
#include <stdint.h>
int32_t acme_swish(const float *x, float *y, int64_t n, float beta) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] / (1 + expf(-beta * x[i]));
  return 0;
}
"""
SWISH = """
[[operator]]
domain = "com.acme"
op_type = "Swish"
symbol = "acme_swish"
signature = "pointers"
inputs = [{ name = "x", dtype = "float32" }]
outputs = [{ name = "y", dtype = "float32", shape = "like:x" }]
attributes = { beta = { type = "float", default = 1.0 } }
arguments = ["x", "y", "numel(x)", "beta"]
"""


def compile_objects(folder: Path, sources: Mapping[str, str], *, cc: str, flags: Sequence[str]) -> list[Path]:
    """Write and compile C (or C++) sources, and return the objects."""
    folder.mkdir(parents=True, exist_ok=True)
    objects = []
    for name, text in sources.items():
        source = folder / name
        source.write_text(text)
        objects.append(source.with_suffix(".o"))
        subprocess.run([cc, *flags, "-c", source, "-o", objects[-1]], check=True)
    return objects


def archive(path: Path, objects: Sequence[Path], *, ar: str = "ar") -> Path:
    """Make an archive of objects and return its path."""
    path.unlink(missing_ok=True)
    subprocess.run([ar, "rcsD", path, *objects], check=True)
    return path


def describe(folder: Path, operators: str, *, name: str = "acme", keys: str = "", files: str | None = None) -> Path:
    """Write the description of a library and return its path."""
    path = folder / f"{name}.toml"
    files = files or f'"lib{name}.a"'
    path.write_text(f'[library]\nname = "{name}"\narchive = {files}\nlicense = "MIT"\n{keys}\n{operators}')
    return path


def make_library(
    folder: Path,
    sources: Mapping[str, str],
    operators: str,
    *,
    name: str = "acme",
    keys: str = "",
    tools: str = "",
    cc: str = "gcc",
    flags: Sequence[str] = FLAGS,
) -> Path:
    """Compile a library with its description beside it; return the description. ``tools`` is the tools' prefix."""
    objects = compile_objects(folder / f"{name}-objects", sources, cc=f"{tools}{cc}", flags=flags)
    archive(folder / f"lib{name}.a", objects, ar=f"{tools}ar")
    return describe(folder, operators, name=name, keys=keys)


def model(
    text: str, weights: Mapping[str, np.ndarray] | None = None, domains: str = '"com.acme": 1'
) -> onnx.ModelProto:
    """Return a model from ONNX's text form of a graph; ``com.acme.Swish(x)`` calls a custom operator."""
    parsed = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, {domains}]>\n{text}')
    for name, array in (weights or {}).items():
        parsed.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return parsed


def build(
    onnx_model: onnx.ModelProto, libraries: Path | Sequence[Path], folder: Path, dims: DimBounds | None = None
) -> packager.Bundle:
    """Build a model with libraries for one CPU and load the bundle, which is ``out.so`` in a folder.

    Each bundle needs a folder of its own: a file that is loaded must not change.
    """
    folder.mkdir(exist_ok=True)
    path = save(onnx_model, folder / "model.onnx")
    paths = [libraries] if isinstance(libraries, Path) else libraries
    bundle = packager.build(path, folder / "out.so", targets=targets_here(), op_libraries=paths, dims=dims)
    assert packager.verify(bundle).ok
    return packager.load(bundle)


def swish(x: np.ndarray, beta: float = 1.0) -> np.ndarray:
    """Return what SWISH computes."""
    return x / (1 + np.exp(-np.float32(beta) * x))


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Return reproducible float32 input."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def assert_outputs(bundle: packager.Bundle, inputs: Arrays, **expected: np.ndarray) -> None:
    """Run a bundle and compare its outputs with what numpy says."""
    outputs = bundle.run(inputs)
    assert sorted(outputs) == sorted(expected)
    for name, want in expected.items():
        assert outputs[name].shape == want.shape
        np.testing.assert_allclose(outputs[name], want, rtol=1e-5, atol=1e-6, err_msg=name)

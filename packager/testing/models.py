"""Joins cases to one model file, and checks a bundle's outputs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import packager
from packager.bundle.arrays import Array
from packager.deploy.verify.machine import machine_findings, this_machine
from packager.testing.cases import SYMBOLIC, Case

if TYPE_CHECKING:
    from onnx import ModelProto

    from packager.bundle.manifest import Manifest


@dataclass(frozen=True)
class Joined:
    """Cases side by side in one model, with distinct name prefixes."""

    parts: tuple[tuple[str, Case], ...]

    def save(self, path: Path) -> Path:
        """Write the model as an ONNX file."""
        from onnx import save

        save(self._model(), path)
        return path

    def _model(self) -> ModelProto:
        from onnx import compose, helper

        models = [compose.add_prefix(case.model(), prefix) for prefix, case in self.parts]
        graphs = [model.graph for model in models]
        together = helper.make_graph(
            nodes=[node for graph in graphs for node in graph.node],
            name="cases",
            inputs=[value for graph in graphs for value in graph.input],
            outputs=[value for graph in graphs for value in graph.output],
            initializer=[tensor for graph in graphs for tensor in graph.initializer],
        )
        imports = {opset.domain: opset for model in models for opset in model.opset_import}
        return helper.make_model(together, opset_imports=list(imports.values()), ir_version=8)

    def dims(self) -> dict[str, tuple[int, int]]:
        """Return the bounds of the symbolic dims, for ``packager.build``."""
        names = {dim.dim_param for value in self._model().graph.input for dim in value.type.tensor_type.shape.dim}
        return {name: SYMBOLIC for name in sorted(names) if name}

    def samples(self) -> Iterator[tuple[dict[str, Array], dict[str, tuple[Array, Case]]]]:
        """Yield random inputs and expected outputs, at the bounds of the dims and between."""
        for extent in range(SYMBOLIC[0], SYMBOLIC[1] + 1, 2) if self.dims() else SYMBOLIC[:1]:
            inputs: dict[str, Array] = {}
            outputs: dict[str, tuple[Array, Case]] = {}
            for prefix, case in self.parts:
                model = case.model()
                given = _random_inputs(model, np.random.default_rng(extent), extent)
                names = [value.name for value in model.graph.output]
                inputs |= {prefix + name: array for name, array in given.items()}
                outputs |= {prefix + n: (a, case) for n, a in zip(names, case.expected(given), strict=True)}
            yield inputs, outputs


def join(cases: Sequence[Case], copies: int = 1) -> Joined:
    """Join ``copies`` of all cases to one model; copies have the same weights under other names."""
    return Joined(tuple((f"{case.name}_{copy}_", case) for copy in range(copies) for case in cases))


def _random_inputs(model: ModelProto, rng: np.random.Generator, extent: int) -> dict[str, Array]:
    from onnx import helper

    inputs = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value if dim.HasField("dim_value") else extent for dim in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        floats = np.issubdtype(dtype, np.floating)
        random = rng.standard_normal(shape) if floats else rng.integers(-9, 9, shape)
        inputs[value.name] = random.astype(dtype)
    return inputs


def runs_here(manifest: Manifest) -> bool:
    """Whether this machine meets a bundle's CPU and GPU requirements."""
    return not any(finding.severity == "error" for finding in machine_findings(manifest, this_machine()))


def check_numbers(bundle: Path, joined: Joined) -> None:
    """Raise AssertionError unless a bundle's outputs match numpy's, on one thread and several, at every CPU level.

    Inputs are aligned to their elements only, and may be read-only. Levels that this CPU does not support are skipped.
    """
    here = set(this_machine(gpus=False).cpu_features)
    levels = packager.inspect(bundle).manifest.requirements.cpu_levels
    names = [level.name for level in levels if set(level.cpu_features) <= here]
    samples = list(joined.samples())  # once: ONNX's evaluator is slower than the bundle
    for threads, level in itertools.product((1, 3), names or (None,)):
        with packager.load(bundle, threads=threads) as loaded, loaded.session(cpu_level=level) as session:
            for inputs, outputs in samples:
                results = session.run({name: _barely_aligned(array) for name, array in inputs.items()})
                for name, (expected, case) in outputs.items():
                    actual = results[name]
                    assert actual.dtype == expected.dtype, f"{name}: {actual.dtype}, expected {expected.dtype}"
                    where = f"{name} on {threads} threads" + (f", code for {level}" if level else "")
                    np.testing.assert_allclose(actual, expected, rtol=case.rtol, atol=case.atol, err_msg=where)


def _barely_aligned(array: Array) -> Array:
    """Return a read-only copy that starts one element after a vector-aligned address."""
    memory = np.zeros(array.nbytes + 64 + array.itemsize, dtype=np.uint8)
    start = -memory.ctypes.data % 64 + array.itemsize
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    copy.flags.writeable = False
    return copy

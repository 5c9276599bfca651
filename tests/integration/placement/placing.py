"""What the tests of partitioning share: models as text, and builds with the partition table that goes with them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime

import packager
from tests.stages import placement_table


@dataclass(frozen=True)
class Built:
    """A bundle with its partition table."""

    path: Path
    table: dict[str, Any]

    def partitions(self, kind: str) -> list[dict[str, Any]]:
        """Return the rows of a backend's partitions that were not undone."""
        return [row for row in self.table["partitions"] if row["backend"] == kind and row["undone"] is None]

    def undone(self) -> dict[str, str]:
        """Return why partitions were undone, by name."""
        return {row["partition"]: row["undone"] for row in self.table["partitions"] if row["undone"] is not None}

    def provided_by(self, kind: str) -> list[str]:
        """Return the composites of the primitive functions that a backend provides, once for each function."""
        manifest = packager.inspect(self.path).manifest
        return [p.composite or "" for owner, p in manifest.primitives() if owner == kind]


def parse(text: str, weights: Mapping[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """Return a checked model from ONNX's text form of a graph; ``weights`` become initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}')
    for name, array in (weights or {}).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.checker.check_model(model)
    return model


def build_and_check(model: onnx.ModelProto, folder: Path, targets: Sequence[str], **options: Any) -> Built:
    """Build a model, compare what it computes with onnxruntime, verify it, and return it with its partition table."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    work = folder / "work"
    bundle = packager.build(path, folder / "model.so", targets=targets, keep_workdir=work, **options)
    assert packager.verify(bundle).ok
    rng = np.random.default_rng(0)
    feeds = {
        value.name: np.asarray(rng.integers(-4, 5, [d.dim_value for d in value.type.tensor_type.shape.dim])).astype(
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        )
        for value in model.graph.input
    }
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    expected = dict(zip(names, session.run(names, feeds), strict=True))
    with packager.load(bundle) as loaded:
        actual = loaded.run(feeds)
    for name, want in expected.items():
        np.testing.assert_allclose(actual[name], want, rtol=1e-4, atol=1e-5, err_msg=name)
    return Built(bundle, json.loads((work / "2-partitions.json").read_text()))


def placed(model: onnx.ModelProto, folder: Path, targets: Sequence[str], **options: Any) -> Built:
    """Return the partition table of a model without building it."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return Built(path, placement_table(path, targets=targets, **options))

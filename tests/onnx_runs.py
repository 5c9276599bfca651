"""Builds a model that is written as text, and compares runs of it with onnxruntime, which refuses what it must."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.parser import parse_model

import packager
from packager.bundle.arrays import Array
from packager.errors import RunError
from tests.one_cpu import targets_here

HEADER = '<ir_version: 8, opset_import: ["" : {}]>\n'
Feeds = Mapping[str, Array]
Bounds = Mapping[str, tuple[int, int]]


def check(
    folder: Path,
    text: str,
    dims: Sequence[str] | Bounds,
    right: Sequence[Feeds],
    refused: Mapping[str, Feeds] | None = None,
    constants: Feeds | None = None,
    opset: int = 17,
    tolerance: float = 1e-5,
) -> None:
    """Run ``right`` and compare; each of ``refused`` must fail with an error that matches the regular expression.

    ``dims`` are names alone for bounds of 1 and 6. ``constants`` are further initializers.
    """
    path = folder / "m.onnx"
    model = parse_model(HEADER.format(opset) + text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, name) for name, v in (constants or {}).items())
    onnx.save(model, path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    bounds = dims if isinstance(dims, Mapping) else dict.fromkeys(dims, (1, 6))
    library = packager.build(path, folder / "m.so", dims=dict(bounds), targets=list(targets_here()))
    with packager.load(library) as bundle:
        for feeds in right:
            made = bundle.run(dict(feeds))
            for value, expected in zip(session.get_outputs(), session.run(None, dict(feeds)), strict=True):
                assert made[value.name].shape == expected.shape, value.name
                np.testing.assert_allclose(
                    made[value.name], expected, rtol=tolerance, atol=1e-5, err_msg=f"{value.name} of {feeds.keys()}"
                )
        for message, feeds in (refused or {}).items():
            with pytest.raises(RunError, match=message):
                bundle.run(dict(feeds))

"""The graph section: what it must say, and that a damaged one is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sealing import build_bundle

from packager.bundle.graph.call_graph import CallGraph, GraphCall, GraphTensor, RunGraph
from packager.bundle.graph.section import read_call_graph
from packager.bundle.reader import inspect
from packager.deploy.verify.verifier import verify
from packager.errors import BundleError

GRAPH = CallGraph(
    1,
    (
        RunGraph(
            "scale",
            {},
            (
                GraphTensor("input", 0, 32, "float32", ("n", 2)),
                GraphTensor("constant", 0, 64, "float32", (16,)),
                GraphTensor("output", 0, 32, "float32", ("n", 2)),
            ),
            (GraphCall("pk_scale", ("Mul_0",), (0, 1), (2,), {}),),
        ),
    ),
)


def test_it_is_read_back(tmp_path: Path) -> None:
    path = build_bundle(tmp_path / "scale.so", graph=GRAPH.to_json())
    assert read_call_graph(inspect(path)) == GRAPH
    assert not [finding for finding in verify(path).findings if finding.check == "manifest.sections"]


def test_bundles_of_before_have_none(tmp_path: Path) -> None:
    assert read_call_graph(inspect(build_bundle(tmp_path / "scale.so"))) is None


def _no_such_tensor(value: Any) -> None:
    value["runs"][0]["calls"][0]["reads"] = [3]


def _no_such_constant(value: Any) -> None:
    value["runs"][0]["tensors"][1]["place"] = 1


def _unknown_key(value: Any) -> None:
    value["runs"][0]["more"] = 0


def _newer(value: Any) -> None:
    value["schema_version"] = 2


@pytest.mark.parametrize("damage", [_no_such_tensor, _no_such_constant, _unknown_key, _newer])
def test_what_is_not_of_the_format_is_refused(tmp_path: Path, damage: Callable[[Any], None]) -> None:
    value = json.loads(GRAPH.to_json())
    damage(value)
    bundle = inspect(build_bundle(tmp_path / "scale.so", graph=json.dumps(value).encode()))
    with pytest.raises(BundleError, match=r"section \.packager\.graph is damaged"):
        read_call_graph(bundle)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    bundle = inspect(build_bundle(tmp_path / "scale.so", graph=b"{"))
    with pytest.raises(BundleError, match="damaged"):
        read_call_graph(bundle)

"""What a backend answers is checked before anything is built on it, and the error names the backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from placing import parse

from packager.backends.base import Target
from packager.errors import BackendError
from packager.frontends.load import load_model
from packager.ir.primitives import BackendOutput, FunctionGroup, Packing, Parameter, Partition, PrimitiveFunction
from packager.placement.place import compile_with
from packager.targets.target_list import parse_targets
from tests.stages import placed

Change = Callable[[BackendOutput], BackendOutput]


def group(*parameters: Parameter, packings: Sequence[Packing] = ()) -> FunctionGroup:
    return FunctionGroup((PrimitiveFunction("toy_f", parameters),), (), packings=tuple(packings))


def answer(partitions: Sequence[Partition]) -> BackendOutput:
    arguments = (Parameter("argument", 0), Parameter("argument", 1), Parameter("argument", 2, written=True))
    return BackendOutput("toy", groups={part.name: group(*arguments) for part in partitions})


def with_group(changed: FunctionGroup) -> Change:
    return lambda output: replace(output, groups=dict.fromkeys(output.groups, changed))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: None, "toy: compile returned NoneType, expected BackendOutput"),
        (lambda output: replace(output, kind="other"), "toy: the backend answers as 'other'"),
        (
            lambda output: replace(output, groups={}),
            "toy: the backend must compile each partition or give it back: toy_0",
        ),
        (
            lambda output: replace(output, groups={**output.groups, "toy_9": group()}),
            "toy: the backend must compile each partition or give it back: toy_9",
        ),
        (
            lambda output: replace(output, given_back={"toy_0": "both"}),
            "toy: the backend must compile each partition or give it back: toy_0",
        ),
        (with_group(group(Parameter("argument", 3))), "toy: toy_f has a parameter that does not exist: argument 3"),
        (with_group(group(Parameter("workspace", 0))), "toy: toy_f has a parameter that does not exist: workspace 0"),
        (with_group(group(Parameter("packed", 0))), "toy: toy_f has a parameter that does not exist: packed 0"),
        (
            with_group(group(Parameter("constant", name="table"))),
            "toy: toy_f has a parameter that does not exist: constant 'table'",
        ),
        (
            with_group(group(packings=[Packing(0, "kn16", lambda array: array)])),
            "toy: toy_0 packs arguments that are not constants: 0",
        ),
        (with_group(FunctionGroup((), ())), "toy: toy_0 has no primitive function"),
    ],
)
def test_wrong_answers(change: Change, message: str, tmp_path: Path) -> None:
    model = parse("g (float[4] x) => (float[4] z) { z = Add(x, w) }", {"w": np.ones(4, np.float32)})
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    targets = parse_targets(["llvm", "toy"])
    imported = load_model(path, {}, None)
    placement = placed(imported, targets.specialized, lambda _, partitions: answer(partitions))
    assert list(placement.model.partitions) == ["toy_0"]
    with pytest.raises(BackendError) as failure:
        placed(imported, targets.specialized, lambda _, partitions: change(answer(partitions)))
    assert failure.value.message == message


def test_an_exception_of_a_third_partys_backend_is_not_a_bug_of_packager(tmp_path: Path) -> None:
    model = parse("g (float[4] x) => (float[4] z) { z = Add(x, x) }")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    targets = parse_targets(["llvm", "toy"])

    def no_context(_target: Target) -> None:
        """Leave the backend without its context, on which it then trips."""

    with pytest.raises(BackendError, match=r"the backend 'toy' of toy-backend 1.0 cannot be used: it failed"):
        placed(load_model(path, {}, None), targets.specialized, compile_with(no_context))  # type: ignore[arg-type]

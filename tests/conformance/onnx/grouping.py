"""Build the cases that are right on the CPU for another Target, many to a bundle, into a parcel for another machine.

A build of its own for each case would pay for nvcc, gcc and the link each time. As entries of one bundle some 25 cases
share them. Where such a bundle is refused, each of its cases is taken alone through the stages before code is
generated, those that are refused there are left out, and the others are built again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from packager.frontends.freeze import freeze_inputs
from tests.conformance.carried.parcel import CarriedRun, add_runs, write_index
from tests.conformance.onnx.builder import EMPTY
from tests.conformance.onnx.cases import Case, frozen_inputs
from tests.conformance.onnx.compare import TWO_ULPS
from tests.conformance.server import Server

GROUP = 25
BUILD_SECONDS = 400.0
Tell = Callable[[str], None]


class ParcelBuilder:
    """Builds cases for Targets into a folder."""

    def __init__(self, folder: Path, targets: Sequence[str], frozen: frozenset[str], tell: Tell) -> None:
        self.folder, self.targets, self.frozen, self.tell = folder, list(targets), frozen, tell
        self.server = Server("tests.conformance.onnx.group_builder", BUILD_SECONDS)
        self.runs: list[CarriedRun] = []
        self.not_built: dict[str, dict[str, str]] = {}

    def build(self, cases: Sequence[Case]) -> None:
        """Build all, and write the index."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for at in range(0, len(cases), GROUP):
            with tempfile.TemporaryDirectory() as temporary:
                self._build_group(cases[at : at + GROUP], at, Path(temporary))
        self.server.close()
        write_index(self.folder, self.runs, self.not_built)

    def _build_group(self, cases: Sequence[Case], number: int, work: Path) -> None:
        models = {work / f"case_{number + index}.onnx": case for index, case in enumerate(cases)}
        for path, case in models.items():
            onnx.save(self._model(case), path)
        if self._build_bundle(models)["status"] == "built":
            return
        for path in list(models):
            answer = self._ask("check", [path])
            if answer["status"] != "lowers":
                self._note(models.pop(path), answer)
        self._build_parts(models)

    def _build_parts(self, models: dict[Path, Case]) -> None:
        """Build models as one bundle; where that fails, as two, until the one that fails is alone."""
        if not models:
            return
        answer = self._build_bundle(models)
        paths = list(models)
        if answer["status"] == "built":
            return
        if len(paths) == 1:
            self._note(models[paths[0]], answer)
            return
        half = len(paths) // 2
        for part in (paths[:half], paths[half:]):
            self._build_parts({path: models[path] for path in part})

    def _build_bundle(self, models: dict[Path, Case]) -> dict[str, Any]:
        paths = list(models)
        bundle = f"cases_{paths[0].stem.removeprefix('case_')}"
        answer = self._ask("build", paths, str(self.folder / f"{bundle}.so"))
        self.tell(f"{bundle}: {len(models)} cases {answer['status']} {_why(answer)}")
        if answer["status"] == "built":
            entries = {path: path.stem if len(paths) > 1 else None for path in paths}
            runs = [_carried(case, bundle, entries[path]) for path, case in models.items()]
            add_runs(self.folder, runs)
            self.runs += runs
        return answer

    def _ask(self, what: str, models: Sequence[Path], output: str = "") -> dict[str, Any]:
        request = {"do": what, "models": list(map(str, models)), "targets": self.targets, "output": output}
        return self.server.ask(request)

    def _model(self, case: Case) -> onnx.ModelProto:
        model = onnx.load_from_string(case.model)
        if case.name in self.frozen:
            freeze_inputs(model.graph, {name: case.inputs[name] for name in frozen_inputs(case)})
        _name_empty(model.graph, case)
        return model

    def _note(self, case: Case, answer: dict[str, Any]) -> None:
        self.not_built[case.name] = {"status": answer["status"], "message": _why(answer)}
        self.tell(f"{answer['status']:<8} {case.name}  {_why(answer)[:200]}")


def _name_empty(graph: onnx.GraphProto, case: Case) -> None:
    """Give extents of 0 a name of their own: in one bundle, extents of equal names are equal."""
    for value in graph.input:
        for dim, extent in zip(value.type.tensor_type.shape.dim, np.shape(case.inputs.get(value.name)), strict=False):
            if extent == 0:
                dim.dim_param = EMPTY


def _why(answer: dict[str, Any]) -> str:
    return ": ".join(str(answer[key]) for key in ("message", "detail") if answer.get(key))


def _carried(case: Case, bundle: str, entry: str | None) -> CarriedRun:
    """Return the run of a case; what bfloat16 may be off by is told here, since its outputs are carried as float32."""
    ulps = max((TWO_ULPS["bfloat16"] for array in case.outputs if array.dtype.name == "bfloat16"), default=0.0)
    return CarriedRun(case.name, bundle, entry, case.inputs, case.outputs, max(case.rtol, ulps), case.atol)

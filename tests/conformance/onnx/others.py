"""What others compute right of the same cases: onnxruntime, and TVM's own virtual machine."""

from __future__ import annotations

import json
import pickle
import tempfile
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

from tests.conformance.onnx.cases import Case, frozen_inputs
from tests.conformance.onnx.compare import difference
from tests.conformance.server import Server

SECONDS = 30.0
TVM_RIGHT = Path(__file__).with_name("tvm_right.json")


def judge_onnxruntime(cases: Iterable[Case]) -> dict[str, bool]:
    """Return for each case whether onnxruntime computes it right."""
    server = Server("tests.conformance.onnx.reference", SECONDS)
    right = {case.name: _is_right(server, case, ()) for case in cases}
    server.close()
    return right


def judge_tvm(cases: Iterable[Case], tell: Callable[[str, bool], None]) -> dict[str, bool]:
    """Return for each case whether TVM's machine computes it right, if need be with its parameters frozen."""
    server = Server("tests.conformance.onnx.tvm_vm", SECONDS, patience=3)
    right = {}
    for case in cases:
        frozen = frozen_inputs(case)
        right[case.name] = _is_right(server, case, ()) or (bool(frozen) and _is_right(server, case, frozen))
        tell(case.name, right[case.name])
    server.close()
    return right


def write_tvm(right: dict[str, bool]) -> None:
    """Write which cases TVM's machine computes right, so that the document can be made without running it."""
    record = {"tvm": version("apache-tvm"), "right": [name for name, is_right in right.items() if is_right]}
    TVM_RIGHT.write_text(json.dumps(record, indent=0) + "\n")


def _is_right(server: Server, case: Case, frozen: tuple[str, ...]) -> bool:
    with tempfile.TemporaryDirectory() as temporary:
        case.save(Path(temporary))
        answer = server.ask({"folder": temporary, "freeze": frozen})
        made = Path(temporary) / "expected.pickle"
        try:
            return answer["status"] == "ran" and not difference(case, pickle.loads(made.read_bytes()))
        except (AttributeError, TypeError, ValueError):  # strings, sequences: nothing that packager is compared with
            return False


if __name__ == "__main__":
    from tests.conformance.onnx.cases import all_cases

    write_tvm(judge_tvm(all_cases(), lambda name, right: print(name, right, flush=True)))

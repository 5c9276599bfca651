"""A process that runs models as TVM itself does: its importer, its compiler for the CPU, its virtual machine."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from packager.frontends.freeze import freeze_inputs
from tests.conformance.server import serve


def main() -> None:
    """Serve until standard input ends."""
    warnings.simplefilter("ignore")
    serve(_answer)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    folder = Path(request["folder"])
    inputs = pickle.loads((folder / "inputs.pickle").read_bytes())
    try:
        outputs = _run(onnx.load(folder / "model.onnx"), inputs, request["freeze"])
    except Exception as error:  # it refuses the model, by whatever error
        return {"status": "refused", "message": str(error)[:200]}
    (folder / "expected.pickle").write_bytes(pickle.dumps(outputs))
    return {"status": "ran"}


def _run(model: onnx.ModelProto, inputs: dict[str, Any], frozen: list[str]) -> list[Any]:
    freeze_inputs(model.graph, {name: inputs[name] for name in frozen})
    names = [value.name for value in model.graph.input]
    module = from_onnx(model, keep_params_in_input=False)
    machine = relax.VirtualMachine(tvm.relax.build(module, target="llvm"), tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(np.ascontiguousarray(inputs[name])) for name in names))
    return [part.numpy() for part in (result if isinstance(result, (list, tuple, tvm.ir.Array)) else [result])]


if __name__ == "__main__":
    main()

"""A process that runs models in onnxruntime, for comparison."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import onnxruntime

from tests.conformance.server import serve


def main() -> None:
    """Serve until standard input ends."""
    onnxruntime.set_default_logger_severity(4)
    serve(_run)


def _run(request: dict[str, Any]) -> dict[str, Any]:
    folder = Path(request["folder"])
    inputs = pickle.loads((folder / "inputs.pickle").read_bytes())
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(folder / "model.onnx", options, ["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]
        outputs = session.run(None, {name: inputs[name] for name in names})
    except Exception as error:  # it refuses the model, by whatever error
        return {"status": "refused", "message": str(error)[:200]}
    (folder / "expected.pickle").write_bytes(pickle.dumps(outputs))
    return {"status": "ran"}


if __name__ == "__main__":
    main()

"""A process that makes random models: onnxruntime ends the process for some nodes."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

from tests.conformance.random_onnx.model import random_model
from tests.conformance.server import serve


def main() -> None:
    """Serve until standard input ends."""
    warnings.simplefilter("ignore")
    serve(_make)


def _make(request: dict[str, Any]) -> dict[str, Any]:
    folder = Path(request["folder"])
    made = random_model(request["seed"], request["attempt"])
    (folder / "model.onnx").write_bytes(made.model.SerializeToString())
    (folder / "inputs.pickle").write_bytes(pickle.dumps(made.inputs))
    (folder / "expected.pickle").write_bytes(pickle.dumps((made.outputs, made.coarse)))
    return {"status": "made", "message": ""}


if __name__ == "__main__":
    main()

"""A process that loads bundles and runs them; it has neither TVM nor onnx."""

from __future__ import annotations

import contextlib
import pickle
import sys
from pathlib import Path
from typing import Any

import packager
from packager.errors import PackagerError, RunError, UsageError
from tests.conformance.server import serve

with contextlib.suppress(ImportError):
    import ml_dtypes  # noqa: F401  (numpy's bfloat16)


def main() -> None:
    """Serve until standard input ends."""
    serve(_answer)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    outcome = _run(request)
    assert "tvm" not in sys.modules
    return outcome


def _run(request: dict[str, Any]) -> dict[str, Any]:
    folder = Path(request["folder"])
    inputs = pickle.loads((folder / "inputs.pickle").read_bytes())
    try:
        with packager.load(folder / "model.so") as bundle:
            seeds = {node.seed for node in bundle.manifest.model.random}
            names = [spec.name for spec in bundle.manifest.inputs if spec.name not in seeds]
            if not set(names) <= set(inputs):
                return {"status": "unfit", "message": "the model has other inputs"}
            outputs = bundle.run({name: inputs[name] for name in names})
            made = {spec.name: outputs[spec.name] for spec in bundle.manifest.outputs}
            (folder / "outputs.pickle").write_bytes(pickle.dumps(made))
    except (RunError, UsageError) as error:
        return {"status": "unfit", "message": error.message}
    except PackagerError as error:
        return {"status": "failed", "message": error.message}
    return {"status": "ran"}


if __name__ == "__main__":
    main()

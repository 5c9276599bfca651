"""A process that builds cases one after the other: reads requests as lines of JSON, answers with lines of JSON."""

from __future__ import annotations

import json
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

from packager.errors import PackagerError
from packager.pipeline import build


def main() -> None:
    """Serve until standard input ends. What others print goes to stderr."""
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(_build(json.loads(line))), file=answers, flush=True)


def _build(request: dict[str, Any]) -> dict[str, Any]:
    folder = Path(request["folder"])
    inputs = pickle.loads((folder / "inputs.pickle").read_bytes())
    freeze = {name: inputs[name] for name in request["freeze"]}
    try:
        build(
            folder / "model.onnx",
            folder / "model.so",
            targets=request["targets"],
            freeze=freeze,
            cache=False,
            jobs=1,
        )
    except PackagerError as error:
        first = (error.detail or "").strip().splitlines()
        return {"status": "refused", "message": error.message, "detail": first[0] if first else ""}
    except Exception as error:  # whatever it is, it is a finding
        return {"status": "failed", "message": f"{type(error).__name__}: {error}"[:500]}
    return {"status": "built"}


if __name__ == "__main__":
    main()

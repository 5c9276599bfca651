"""A process that builds many cases as one bundle: they are compiled and linked together."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packager.frontends.onnx.load  # noqa: F401  (TVM, before the first request)
from packager.errors import PackagerError, ToolchainError, UnboundedDimsError
from packager.lower.lowering import lower
from packager.pipeline.build import build
from packager.pipeline.import_models import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import make_build_request
from packager.plan.planner import plan
from tests.conformance.onnx.builder import BOUNDS, EMPTY
from tests.conformance.server import serve
from tests.stages import placed

Bounds = int | tuple[int, int]


def main() -> None:
    """Serve until standard input ends."""
    warnings.simplefilter("ignore")
    serve(_answer)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """Answer ``check``, which compiles nothing, or ``build``."""
    models, targets = [Path(model) for model in request["models"]], request["targets"]
    try:
        if request["do"] == "check":
            _with_bounds(lambda dims: _check(models[0], targets, dims))
            return {"status": "lowers"}
        _with_bounds(lambda dims: build(models, request["output"], targets=targets, dims=dims, jobs=1))
    except ToolchainError as error:  # the code that was generated is not right
        return {"status": "failed", "message": error.message, "detail": _first_error(error.stderr)}
    except PackagerError as error:
        first = (error.detail or "").strip().splitlines()
        return {"status": "refused", "message": error.message, "detail": first[0] if first else ""}
    except Exception as error:  # whatever it is, it is a finding
        return {"status": "failed", "message": f"{type(error).__name__}: {error}"[:500]}
    return {"status": "built"}


def _first_error(stderr: str) -> str:
    return next((line for line in stderr.splitlines() if "error" in line), "")[:200]


def _with_bounds(act: Callable[[dict[str, Bounds]], object]) -> None:
    """Call ``act`` with bounds for the dims that models leave open, model by model."""
    dims: dict[str, Bounds] = {}
    while True:
        try:
            act(dims)
        except UnboundedDimsError as error:
            if set(error.dims) <= set(dims):
                raise
            dims |= {name: 0 if name == EMPTY else BOUNDS for name in error.dims}
        else:
            return


def _check(model: Path, targets: list[str], dims: dict[str, Bounds]) -> None:
    """Take a model through all stages before its code is generated."""
    request = make_build_request(BuildOptions(model, targets=targets, dims=dims))
    placement = placed(import_model(request), request.targets.specialized, device=request.targets.device)
    plan(lower(placement.model, request.targets.device), packed_constants=False)


if __name__ == "__main__":
    main()

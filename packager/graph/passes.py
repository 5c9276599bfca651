"""Applies TVM passes, with errors that name the failed pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm

from packager.errors import ModelError, last_line


def apply(passes: Sequence[Any], module: tvm.IRModule) -> tvm.IRModule:
    """Run passes in order. Raises ModelError that names the pass that failed."""
    for transform in passes:
        try:
            module = transform(module)
        except Exception as error:  # passes raise arbitrary C++ errors
            name = transform.info.name if hasattr(transform, "info") else transform.__name__
            raise ModelError(
                f"TVM cannot lower this model: pass {name} failed",
                detail=last_line(error),
                hint="this is a limit of TVM; simplify the model, or export it with another opset",
            ) from error
    return module

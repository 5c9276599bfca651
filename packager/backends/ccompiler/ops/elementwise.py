"""Stages without anchor: elementwise operators with broadcasting, fused into one loop."""

from __future__ import annotations

import numpy as np

from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.shapes import c_text, ceil_div, product
from packager.backends.ccompiler.core.stages import Stage, is_full
from packager.codegen.c_text import c_float

# Elements of a run: enough to hide its overhead, few enough to balance threads.
CHUNK = 4096
# Powers of two in a table, which one permutation reads.
POWERS, EIGHTHS = 16, 8  # with AVX-512, and with AVX2


def add_elementwise(stage: Stage, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    draft = group.function("elementwise")
    chunks = ceil_div(stage.inner, CHUNK)
    values = {"inner": c_text(stage.inner), "chunk": CHUNK, "chunks": c_text(chunks)}
    if _is_exp(stage):  # the same parameters in either case, in this order
        operation = stage.after[0]
        x, y = draft.tensor(operation.uses[0].tensor, False), draft.tensor(operation.result, True)
        if group.machine.name == "avx512":
            exact = np.exp2(np.arange(POWERS) / POWERS)
            near = exact.astype(np.float32)
            values |= {"x": x, "y": y, "powers": _floats(near), "rests": _floats(exact - near)}
            draft.finish("ops/exp", product((stage.rows, chunks)), values)
            return
        if group.machine.name == "avx2":
            exact = np.exp2(np.arange(EIGHTHS) / EIGHTHS)
            near = exact.astype(np.float32)
            bits = near.view(np.uint32) - (np.arange(EIGHTHS, dtype=np.uint32) << 20)
            values |= {"x": x, "y": y, "powers": ", ".join(map(str, bits)), "rests": _floats(exact / near - 1)}
            draft.finish("ops/exp_avx2", product((stage.rows, chunks)), values)
            return
    draft.finish("ops/elementwise", product((stage.rows, chunks)), {"program": draft.program(stage), **values})


def _is_exp(stage: Stage) -> bool:
    """Whether a stage is an exponential function of float32 and nothing else."""
    if len(stage.after) != 1:
        return False
    (operation,) = stage.after
    return (
        operation.name == "exp"
        and operation.result.dtype == "float32"
        and is_full(operation.uses[0], operation.result.shape)
    )


def _floats(values: np.ndarray[tuple[int], np.dtype[np.floating]]) -> str:
    return ", ".join(c_float(float(value), double=False) for value in values.astype(np.float32))

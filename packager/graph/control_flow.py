"""Calls that are no functions, but the control flow of a run: until planning ``main`` is a flat graph.

All are ``call_dps_packed`` of these names, opaque to every pass.

- ``CHOOSE(then, otherwise, taken)`` is ``If``: one of two values, by a run-time extent that is 1 or 0. The planner
  turns it into a choice of memory: no code.
- ``ALTERNATIVES(values..., number)`` is the value of the alternative that the session runs of placement choice
  ``number``. Like CHOOSE it is no code.
- ``LOOP_BEGIN(trip, going, initial..., -1, extents...)`` returns the number of the iteration, and a scalar for each
  varying extent of a state, initially ``extents``. ``trip`` and ``going`` are scalars. Where the host knows the trip
  count, an expression over dims and run-time extents, it is ``LOOP_BEGIN(going, initial..., trip, extents...)``.
- ``LOOP_STATE(number, state)`` returns a state in the loop, given the first result of LOOP_BEGIN and the state's index.
- ``LOOP_ROW(number, data)`` returns the row of ``data`` that has the iteration's number. ``ROW(data, index)`` returns
  row ``index``. Neither is code; rows must be aligned: ``has_aligned_rows``.
- ``LOOP_END(number, going, next..., scanned..., (extent, next extent)...)`` returns the number of iterations, a scalar
  for each varying extent, and the scan outputs, with room for the most that there can be.
- ``LOOP_RESULT(count, value)`` returns a state or a scan output after the loop, given the first result of LOOP_END.

The loop's body is what depends on the results of LOOP_BEGIN, but not of LOOP_END. All scalars are int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx
from tvm.ir import is_prim_expr

from packager.bundle.dtypes import INSIDE
from packager.graph.dataflow import called_function

CHOOSE = "packager_choose"
ALTERNATIVES = "packager_alternatives"
LOOP_BEGIN = "packager_loop_begin"
LOOP_STATE = "packager_loop_state"
LOOP_ROW = "packager_loop_row"
ROW = "packager_row"
LOOP_END = "packager_loop_end"
LOOP_RESULT = "packager_loop_result"
CONTROL_FLOW = (CHOOSE, ALTERNATIVES, LOOP_BEGIN, LOOP_STATE, LOOP_ROW, ROW, LOOP_END, LOOP_RESULT)

# Bytes that kernels expect the memory of a tensor to be aligned to.
ALIGNMENT = 64


def has_aligned_rows(row: Sequence[Any], dtype: str) -> bool:
    """Tell whether rows with these extents, one after the other, are all aligned as kernels expect of a tensor."""
    size = INSIDE[dtype].itemsize
    for extent in row:
        size *= int(extent) if isinstance(extent, int | tirx.IntImm) else 1
    return size % ALIGNMENT == 0


def is_control_flow(value: Any) -> bool:
    """Tell whether an expression is one of these calls."""
    return called_function(value) in CONTROL_FLOW


def is_computed(value: Any) -> bool:
    """Tell whether an expression is a call of a function, rather than control flow."""
    return called_function(value) not in (None, *CONTROL_FLOW)


def control_flow(name: str, operands: list[Any], types: list[Any]) -> relax.Call:
    """Return a call with these operands, tensors before extents."""
    return relax.call_dps_packed(name, relax.Tuple(operands), types if len(types) > 1 else types[0])


def operands_of(call: relax.Call) -> tuple[list[Any], list[Any]]:
    """Return the tensors and the extents among the operands of a call."""
    fields = list(call.args[1].fields)
    return [field for field in fields if not is_prim_expr(field)], [field for field in fields if is_prim_expr(field)]

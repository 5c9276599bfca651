"""Lowers linear recurrences and forward substitutions for GPUs.

Of a recurrence a thread has an element, and takes all steps of it one after the other; of a substitution a block of
threads has a matrix, and each thread a column.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, tirx, topi
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.bundle.dtypes import wide_type
from packager.lower.cuda.algorithms.nests import Nests, cast, emit, int64, local, locals_of, shared
from packager.lower.legalize.forward_substitution import substitute_in_rows

# Steps whose operands are loaded at once: their latency is that of one.
AHEAD = 8
# The largest matrix whose rows, and what they are replaced by, fit the shared memory of any GPU.
MOST_ROWS = 64


def scan_linearly(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.linear_scan``."""
    types = [operand.ty for operand in call.args]
    nests = Nests(types, [call.ty])
    (decay, update), (result,), ((steps, *extents), *_) = nests.inputs, nests.outputs, nests.extents
    wide = wide_type(str(call.ty.dtype))
    turns, rest = divmod(int(steps), AHEAD)
    with nests.grid("linear_scan", *extents) as place:
        state = local(tirx.const(0, wide))
        loaded = [locals_of(AHEAD, wide) for _ in range(2)]

        def take(first: Any, count: int) -> None:
            with T.unroll(int64(0), int64(count)) as step:
                for held, tensor in zip(loaded, (decay, update), strict=True):
                    held[step] = cast(tensor[(first + step, *place)], wide)
            with T.unroll(int64(0), int64(count)) as step:
                state[0] = loaded[0][step] * state[0] + loaded[1][step]
                result[(first + step, *place)] = cast(state[0], str(call.ty.dtype))

        if turns:
            with T.serial(int64(0), int64(turns)) as turn:
                take(turn * AHEAD, AHEAD)
        if rest:
            take(int64(turns * AHEAD), rest)
    return emit(builder, "linear_scan", nests.primfunc(), list(call.args), [call.ty])[0]


def substitute_columns(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.forward_substitution``; one thread has each of larger matrices."""
    *outer, size, _ = map(int, call.ty.shape.values)
    dtype = str(call.ty.dtype)
    wide = wide_type(dtype)
    if size > MOST_ROWS:
        return substitute_in_rows(builder, call)
    nests = Nests([call.args[0].ty], [call.ty])
    (matrices,), (result,) = nests.inputs, nests.outputs
    with nests.rows("forward_substitution", math.prod(outer)) as matrix:
        place = topi.utils.unravel_index(matrix, outer)
        given, found = shared([size * size], wide), shared([size * size], wide)
        with T.parallel(int64(0), int64(size * size)) as element:
            row, column = tirx.truncdiv(element, int64(size)), tirx.truncmod(element, int64(size))
            value = local(cast(matrices[(*place, row, column)], wide))
            given[element] = value[0]
            found[element] = value[0]
        with (
            T.parallel(int64(0), int64(size)) as column,
            T.serial(int64(1), int64(size)) as row,
            T.If(column < row),
            T.Then(),
        ):
            total = local(given[row * size + column])
            with T.serial(int64(0), row) as step:
                total[0] = total[0] + given[row * size + step] * found[step * size + column]
            found[row * size + column] = total[0]
        with T.parallel(int64(0), int64(size * size)) as element:
            row, column = tirx.truncdiv(element, int64(size)), tirx.truncmod(element, int64(size))
            result[(*place, row, column)] = cast(found[element], dtype)
    return emit(builder, "forward_substitution", nests.primfunc(), list(call.args), [call.ty])[0]

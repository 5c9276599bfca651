"""Lowers linear recurrences for GPUs: a thread has an element, and takes all steps of it one after the other."""

from __future__ import annotations

from tvm import relax
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.bundle.dtypes import wide_type
from packager.lower.cuda.algorithms.nests import Nests, cast, emit, int64, local, locals_of

# Steps whose operands are loaded at once: their latency is that of one.
AHEAD = 8


def scan_linearly(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.linear_scan``."""
    types = [operand.ty for operand in call.args]
    nests = Nests(types, [call.ty])
    (decay, update), (result,), ((steps, *extents), *_) = nests.inputs, nests.outputs, nests.extents
    wide = wide_type(str(call.ty.dtype))
    ahead = next(each for each in range(AHEAD, 0, -1) if int(steps) % each == 0)
    with nests.grid("linear_scan", *extents) as place:
        state = local(cast(T.float32(0), wide))
        loaded = [locals_of(ahead, wide) for _ in range(2)]
        with T.serial(int64(0), int64(int(steps) // ahead)) as turn:
            with T.unroll(int64(0), int64(ahead)) as step:
                for held, tensor in zip(loaded, (decay, update), strict=True):
                    held[step] = cast(tensor[(turn * ahead + step, *place)], wide)
            with T.unroll(int64(0), int64(ahead)) as step:
                state[0] = loaded[0][step] * state[0] + loaded[1][step]
                result[(turn * ahead + step, *place)] = cast(state[0], str(call.ty.dtype))
    return emit(builder, "linear_scan", nests.primfunc(), list(call.args), [call.ty])[0]

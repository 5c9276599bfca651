"""The Relax operator ``packager.grouped_matmul``: rows times the matrix of the group that each belongs to.

Mixtures of experts (Shazeer et al. 2017, arXiv:1701.06538) multiply so; as ``torch._grouped_mm`` has it, the rows of a
group follow each other, and where each group ends depends on data.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx
from tvm.ir import Op

from packager.graph.own_operators import register

NAME = "relax.packager.grouped_matmul"


def grouped_matmul(rows: Any, matrices: Any, ends: Any) -> relax.Call:
    """Return the product of ``rows`` [rows, depth] and ``matrices`` [groups, depth, columns], [rows, columns].

    ``ends`` [groups] of int32 ascend: rows from that of the group before on, or from the first, are of a group. Those
    behind the last group are zeros in the result.
    """
    return relax.Call(Op.get(NAME), [rows, matrices, ends])


def decompose(builder: relax.BlockBuilder, rows: Any, matrices: Any, ends: Any) -> Any:
    """Emit the product by operators that all backends have.

    Of fewer rows than groups the matrix of each is gathered; of more all rows are multiplied by all matrices at once,
    and those of their groups are taken.
    """
    op, emit = relax.op, builder.emit
    count, depth = rows.ty.shape.values
    groups, _, columns = (int(extent) for extent in matrices.ty.shape.values)
    numbers = emit(op.arange(0, count, 1, "int32"))
    behind = emit(op.greater_equal(emit(op.expand_dims(numbers, 1)), emit(op.expand_dims(ends, 0))))
    group = emit(op.sum(emit(op.astype(behind, "int32")), 1))
    known = emit(op.minimum(group, relax.const(groups - 1, "int32")))
    if isinstance(count, tirx.IntImm) and int(count) <= groups:
        gathered = emit(op.take(matrices, known, 0))
        products = emit(op.squeeze(emit(op.matmul(emit(op.expand_dims(rows, 1)), gathered)), [1]))
    else:
        beside = emit(op.reshape(emit(op.permute_dims(matrices, [1, 0, 2])), [depth, groups * columns]))
        whole = emit(op.reshape(emit(op.matmul(rows, beside)), [count, groups, columns]))
        places = emit(op.broadcast_to(emit(op.reshape(known, [count, 1, 1])), [count, 1, columns]))
        taken = emit(op.gather_elements(whole, emit(op.astype(places, "int64")), 1))
        products = emit(op.squeeze(taken, [1]))
    inside = emit(op.expand_dims(emit(op.less(group, relax.const(groups, "int32"))), 1))
    return op.where(inside, products, relax.const(0, str(rows.ty.dtype)))


def legalize_grouped_matmul(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.grouped_matmul``: a sum over the matrix of its group for each element."""
    return builder.call_te(_compute, *call.args, primfunc_name_hint="grouped_matmul")


def _compute(rows: Any, matrices: Any, ends: Any) -> Any:
    groups, depth, columns = matrices.shape
    before = te.reduce_axis((0, groups), name="before")
    group = te.compute(
        (rows.shape[0],),
        lambda row: te.sum(tirx.Cast("int32", ends[before] <= row.astype(ends.dtype)), axis=before),
        name="group",
    )
    k = te.reduce_axis((0, depth), name="k")
    sums = te.compute(
        (rows.shape[0], columns),
        lambda row, column: te.sum(
            rows[row, k].astype("float32")
            * matrices[tirx.min(group[row], tirx.Cast("int32", groups - 1)), k, column].astype("float32"),
            axis=k,
        ),
        name="sums",
    )
    return te.compute(
        sums.shape,
        lambda row, column: tirx.if_then_else(
            group[row] < tirx.Cast("int32", groups), sums[row, column], tirx.const(0.0, "float32")
        ).astype(rows.dtype),
        name="grouped",
    )


def _infer(call: Any, _builder: Any) -> Any:
    rows, matrices, _ = (operand.ty for operand in call.args)
    return relax.TensorType([rows.shape.values[0], matrices.shape.values[2]], str(rows.dtype))


register(NAME, "Rows times the matrices of their groups", ("rows", "matrices", "ends"), _infer)

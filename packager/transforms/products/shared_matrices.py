"""Multiplies the rows of all images by the matrix of a head at once, where images share the matrices.

Scores of relative positions are such products (Dai et al. 2019, "Transformer-XL"): a head of an image is a few rows,
those of all images are many, and a GEMM's batch is that of heads. There are 2 n - 1 positions: columns are padded.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import operator_of, shape_of
from packager.graph.rewrite import Bindings, map_bindings, tidy

# Columns of which rows are aligned to vectors of half precision.
VECTOR = 8
# The order of images, heads, rows and columns with heads first, and back.
HEADS_FIRST = (1, 0, 2, 3)


def multiply_rows_of_images(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite products of ``main`` of [b, h, m, k] with [1, h, k, n]; h, k and n must be known."""
    found = False

    def rewrite(binding: Any) -> list[Any]:
        nonlocal found
        call = binding.value
        if not _shares_matrices(call):
            return [binding]
        found = True
        left, right = call.args
        (images, heads, rows, depth), columns = left.ty.shape.values, int(right.ty.shape.values[-1])
        made, beyond = Bindings(binding.var), -columns % VECTOR
        turned = made.bind(relax.op.permute_dims(left, HEADS_FIRST))
        turned = made.bind(relax.op.reshape(turned, [heads, images * rows, depth]))
        matrices = made.bind(relax.op.reshape(right, [heads, depth, columns]))
        if beyond:
            matrices = made.bind(relax.op.nn.pad(matrices, [0, 0, 0, 0, 0, beyond]))
        product = made.bind(relax.op.matmul(turned, matrices, call.attrs.out_dtype or None))
        product = made.bind(relax.op.reshape(product, [heads, images, rows, columns + beyond]))
        if not beyond:
            return made.ended(relax.op.permute_dims(product, HEADS_FIRST))
        product = made.bind(relax.op.permute_dims(product, HEADS_FIRST))
        return made.ended(relax.op.strided_slice(product, [3], [0], [columns]))

    rewritten = map_bindings(module, rewrite)
    return tidy(rewritten) if found else module


def _shares_matrices(call: Any) -> bool:
    if operator_of(call) != "matmul":
        return False
    left, right = map(shape_of, call.args)
    if left is None or right is None or len(left) != len(HEADS_FIRST) or len(right) != len(HEADS_FIRST):
        return False
    known = all(isinstance(extent, int) for extent in (*right, left[1]))
    shares = known and left[0] != 1 and left[1] == right[1] > 1 and right[0] == 1
    return bool(shares and right[2] % VECTOR == 0 and right[3] >= VECTOR)

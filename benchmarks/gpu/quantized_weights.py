"""Weights of 4 bits in blocks, symmetric, for models of torch: rounded in the module, packed in its ONNX file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn

BITS, BLOCK = 4, 32
BYTES = BITS / 8 + 2 / BLOCK
"""Of a weight, with its share of a scale."""

Packed = tuple[np.ndarray, np.ndarray]


@torch.no_grad()
def round_weights(module: nn.Module) -> dict[str, Packed]:
    """Round the matrices of all linear layers, float16; return numbers and scales of each by a digest of the result."""
    found: dict[str, Packed] = {}
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            blocks = layer.weight.float().unflatten(1, (-1, BLOCK))
            scales = (blocks.abs().amax(-1, keepdim=True) / 7).half()
            numbers = (blocks / scales.float()).round().clamp(-8, 7)
            rounded = (numbers * scales.float()).half().flatten(1)
            layer.weight.copy_(rounded)
            found[_digest(rounded.numpy())] = ((numbers + 8).byte().flatten(1).numpy(), scales[..., 0].numpy())
    return found


def pack_weights(path: Path, found: dict[str, Packed]) -> None:
    """Make the products of these weights MatMulNBits in a file. Raises ValueError if a matrix is not found."""
    from packager.graph.block_weights import BlockFormat, pack  # needs TVM, which the machine of the GPU lacks

    model = onnx.load(path)
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    used: set[str] = set()
    for node in graph.node:
        if node.op_type != "MatMul" or node.input[1] not in constants:
            continue
        name = node.input[1]
        digest = _digest(np.ascontiguousarray(numpy_helper.to_array(constants[name]).T))
        if digest not in found:
            continue
        numbers, scales = found[digest]
        rows, depth = numbers.shape
        packed = pack(numbers, BlockFormat(BITS, BLOCK, depth, has_zeros=False))
        tensors = [numpy_helper.from_array(packed, f"{name}_q"), numpy_helper.from_array(scales, f"{name}_s")]
        inputs = [node.input[0], *(tensor.name for tensor in tensors)]
        made = helper.make_node("MatMulNBits", inputs, node.output, node.name, domain="com.microsoft")
        made.attribute.extend(
            helper.make_attribute(key, value)
            for key, value in {"K": depth, "N": rows, "bits": BITS, "block_size": BLOCK}.items()
        )
        node.CopyFrom(made)
        graph.initializer.extend(tensors)
        graph.initializer.remove(constants.pop(name))
        used.add(digest)
    if len(used) < len(found):
        raise ValueError(f"{path}: {len(found) - len(used)} matrices of {len(found)} are not multiplied as expected")
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()

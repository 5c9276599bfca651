"""Sizes that depend on constants: of what a mask takes that is a literal or a buffer, or of repeated elements.

To torch's export they depend on data, and are symbols of their own. Where the data are constants they are numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export.graph_signature import InputKind

_INDEX = torch.ops.aten.index.Tensor
_MASKS = (torch.bool, torch.uint8)


def is_size_of_data(extent: Any) -> bool:
    """Tell whether an extent is a symbol that torch made for a size that depends on data."""
    if not isinstance(extent, torch.SymInt) or not extent.node.expr.is_Symbol:
        return False
    return bool(extent.node.shape_env.is_unbacked_symint(extent.node.expr))


def masks_of_buffers(program: Any) -> dict[Any, torch.Tensor]:
    """Return the values of the buffers, by their nodes, that are masks and nothing else."""
    stored = {**dict(program.named_buffers()), **program.constants}
    targets = {
        spec.arg.name: spec.target
        for spec in program.graph_signature.input_specs
        if spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    }
    return {
        node: stored[targets[node.name]].detach().cpu()
        for node in program.graph.find_nodes(op="placeholder")
        if node.name in targets and node.meta["val"].dtype in _MASKS and _only_indexes(node)
    }


def _only_indexes(node: Any) -> bool:
    return bool(node.users) and all(user.target is _INDEX and node in user.args[1] for user in node.users)


def sizes_of_constants(program: Any, known: Mapping[Any, torch.Tensor]) -> dict[str, int]:
    """Return the numbers that symbols stand for: extents of ``known`` values, and of what known masks take."""
    sizes: dict[str, int] = {}
    for node in program.graph.nodes:
        for symbol, size in _sizes(node, known):
            sizes.setdefault(str(symbol), size)
    return sizes


def _sizes(node: Any, known: Mapping[Any, torch.Tensor]) -> Iterator[tuple[Any, int]]:
    meta = node.meta.get("val")
    if not isinstance(meta, torch.Tensor):
        return
    if node in known:
        yield from zip(meta.shape, known[node].shape, strict=True)
    elif node.target is _INDEX:
        masks = [index for index in node.args[1] if index in known and known[index].dtype in _MASKS]
        earlier = {str(extent) for operand in node.all_input_nodes for extent in operand.meta["val"].shape}
        for extent in meta.shape if masks else ():
            if is_size_of_data(extent) and str(extent) not in earlier:
                yield extent, int(known[masks[0]].count_nonzero())

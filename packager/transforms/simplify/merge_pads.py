"""Merges pads with zeros into the convolutions that read them.

TensorFlow's "same" padding is not symmetric for even extents and strides: exporters write it as an operator of its
own. The convolution that skips or reads zeros beside the image costs less than a copy of the image with a border.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import operator_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import map_bindings, rebuild_call
from packager.transforms.layout.layouts import CONVOLUTIONS


def merge_pads(module: tvm.IRModule, symmetric: bool) -> tvm.IRModule:
    """Merge pads with zeros of spatial axes in ``main`` into their readers; leaves pads that nothing reads.

    ``symmetric`` keeps those that would pad more on one side of an axis than on the other.
    """
    pads: IdentityMap[relax.Call] = IdentityMap()

    def merge(binding: Any) -> list[Any]:
        call = binding.value
        if not isinstance(binding, relax.VarBinding):
            return [binding]
        if operator_of(call) == "nn.pad" and call.attrs.pad_mode == "constant" and float(call.attrs.pad_value) == 0:
            pads[binding.var] = call
        elif operator_of(call) in CONVOLUTIONS and call.args[0] in pads:
            merged = _merged(call, pads[call.args[0]], symmetric)
            return [relax.VarBinding(binding.var, call if merged is None else merged)]
        return [binding]

    merged = map_bindings(module, merge)
    return relax.transform.Normalize()(merged) if pads else module


def _merged(call: relax.Call, pad: relax.Call, symmetric: bool) -> relax.Call | None:
    """Return a convolution of the image that ``pad`` pads, or None if it cannot pad so itself."""
    layout = str(call.attrs.data_layout)
    widths = [int(width) for width in pad.attrs.pad_width]
    around = {axis: (widths[2 * index], widths[2 * index + 1]) for index, axis in enumerate(layout)}
    spatial = [axis for axis in layout if axis not in "NC"]
    if min(widths) < 0 or any(around[axis] != (0, 0) for axis in layout if axis not in spatial):
        return None
    present = [int(width) for width in call.attrs.padding]
    edges = [present[index] + around[axis][0] for index, axis in enumerate(spatial)]
    ends = [present[len(spatial) + index] + around[axis][1] for index, axis in enumerate(spatial)]
    if symmetric and edges != ends:
        return None
    return rebuild_call(call, pad.args[0], call.args[1], padding=[*edges, *ends])

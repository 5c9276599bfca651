"""Selects the 3-D convolutions that kernels of GPU libraries with channels last compute."""

from __future__ import annotations

import math
from typing import Any

import tvm

from packager.bundle.dtypes import FLOATS, HALVES
from packager.graph.dataflow import bindings_of, computed_from_constants, operator_of
from packager.graph.identity import IdentitySet
from packager.graph.products.conv2d import Convolution
from packager.ir.preparation import Preparation
from packager.transforms.layout.layouts import FIRST
from packager.transforms.layout.windows.im2col import ITEMSIZE, find_im2col, known_extents
from packager.transforms.layout.windows.row_windows import VECTOR, find_row_windows, is_within_reach

# What the windows of few channels may take in memory, of one volume.
MOST_BYTES = 1 << 28


def find_volumes(module: tvm.IRModule, num_inputs: int, wanted: Preparation) -> IdentitySet:
    """Return the 3-D convolutions of ``main`` that are to be channels last on a GPU, or im2col and a product.

    They have one group, static extents but for the batch, and weights that depend on no input.
    """
    main = module["main"]
    if not wanted.volume_views:
        return IdentitySet()
    calls = [b.value for b in bindings_of(main) if operator_of(b.value) == "nn.conv3d"]
    constants = computed_from_constants(main, num_inputs) if calls else IdentitySet()
    return IdentitySet(call for call in calls if _is_taken(call, constants, wanted))


def _is_taken(call: Any, constants: IdentitySet, wanted: Preparation) -> bool:
    attrs, extents = call.attrs, known_extents(call, constants)
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    if extents is None or layouts != (*FIRST[5], FIRST[5][0]) or extents[0] not in FLOATS:
        return False
    dtype, image, filters, result = extents
    padding, stride, dilation = (tuple(map(int, v)) for v in (attrs.padding, attrs.strides, attrs.dilation))
    sizes = (dtype, image[0], tuple(image[2:]), image[1], filters[0], tuple(result[2:]))
    if len(Convolution(*sizes, tuple(filters[2:]), padding[:3], stride, dilation).planar.image) == 2:
        return True
    if wanted.im2col and _is_gathered(call, constants):
        return True
    if not wanted.volume_windows:
        return False
    if wanted.im2col and all(find_row_windows(call, constants, last=last) for last in (False, True)):
        return True
    divides = image[1] % VECTOR == filters[0] % VECTOR == 0
    return dtype in HALVES and divides and is_within_reach(call, tuple(filters[2:]))


def _is_gathered(call: Any, constants: IdentitySet) -> bool:
    """Whether it becomes im2col and a product, whatever the layout of its data."""
    layouts = [find_im2col(call, constants, last=last) for last in (False, True)]
    size = ITEMSIZE[str(call.ty.dtype)]
    return all(found and math.prod(found.result) * found.length * size <= MOST_BYTES for found in layouts)

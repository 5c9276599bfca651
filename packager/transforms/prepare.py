"""Runs the model-wide passes before partitioning, in order: simplify, quantize, layout, fold weights."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax

from packager.graph.rewrite import apply, name_result, with_main
from packager.ir.model import ImportedModel, NamedArray, PreparedModel
from packager.ir.preparation import Preparation
from packager.transforms.fold_inline import fold_inline
from packager.transforms.fold_weights import fold_weights
from packager.transforms.layout.channels_last import to_channels_last
from packager.transforms.layout.flatten import fold_flatten_transpose
from packager.transforms.layout.padded_channels import pad_channels
from packager.transforms.layout.planar import convolve_lines_as_images
from packager.transforms.layout.softmax_last import to_last_axis
from packager.transforms.layout.transposed_conv import lower_transposed_convolutions
from packager.transforms.layout.volumes import find_volumes
from packager.transforms.products.grouped_products import decompose_grouped
from packager.transforms.products.merge_branches import merge_branches
from packager.transforms.quantize.block_products import keep_block_weights
from packager.transforms.quantize.float8 import convert_float8_matmuls
from packager.transforms.quantize.quantize import convert_qdq
from packager.transforms.repeat_views import repeat_views
from packager.transforms.simplify.arithmetic import simplify_arithmetic
from packager.transforms.simplify.merge_pads import merge_pads
from packager.transforms.simplify.narrow_indices import narrow_indices
from packager.transforms.simplify.no_ops import drop_no_ops
from packager.transforms.simplify.raise_norms import raise_norms, read_halves
from packager.transforms.simplify.regroup_norms import regroup_norms
from packager.transforms.simplify.sink_reshapes import sink_reshapes
from packager.transforms.simplify.whole_reductions import split_whole_reductions

_R = relax.transform
SIMPLIFY = [
    _R.FoldBatchnormToConv2D(),
    _R.DecomposeOpsForInference(),
    _R.CanonicalizeBindings(),
]
TIDY = [
    _R.CanonicalizeBindings(),
    _R.EliminateCommonSubexpr(),
    _R.CanonicalizeBindings(),
    _R.DeadCodeElimination(),
]


def prepare(model: ImportedModel, wanted: Preparation, device: str) -> PreparedModel:
    """Run the passes that every model needs, and those that backends require (``wanted``).

    On the device ``cuda`` convolutions are always channels last.
    """
    num_inputs = len(model.signature.inputs)
    bounds = {dim.name: dim.max for dim in model.signature.dims}
    module = model.module
    result = getattr(module["main"].body.body, "name", "")  # a tuple has no name
    if bounds:
        module = with_main(module, module["main"].with_attr("tir_var_upper_bound", bounds))
    module, constants = fold_inline(apply(SIMPLIFY, module)), model.constants()
    # The kernels of ``cutlass`` pad each side as they are told, TVM's for a GPU are faster after a padding.
    symmetric = device == "cuda" and not wanted.planar_convolutions
    module = decompose_grouped(module, num_inputs, kept=device == "cuda" and wanted.grouped_products)
    module = merge_pads(apply(TIDY, drop_no_ops(module)), symmetric=symmetric)
    if wanted.integer_matmuls:
        data = "uint8" if device == "cpu" else "int8" if wanted.signed_data else None
        module, constants = convert_qdq(apply(TIDY, module), num_inputs, constants, data=data)
    if wanted.float8_matmuls:
        module = convert_float8_matmuls(apply(TIDY, module), num_inputs, halves=wanted.float8_halves)
    module = narrow_indices(module, replaced=device == "cpu")
    if device == "cuda" or wanted.normalizations:
        module = _with_norms(module, num_inputs, constants, on_gpu=device == "cuda")
    if device == "cpu" and wanted.transposed_convolutions:
        module = apply(TIDY, lower_transposed_convolutions(module, num_inputs))
    if device == "cuda" and wanted.planar_convolutions:
        module = apply(TIDY, convolve_lines_as_images(module, num_inputs))
        module = apply(TIDY, lower_transposed_convolutions(module, num_inputs, most_parts=1))
    if wanted.block_products:
        arrays = [constant.array for constant in constants.values()]
        tidy, dims, every = apply(TIDY, module), model.signature.dims, wanted.every_block_product
        module = keep_block_weights(tidy, num_inputs, arrays, on_gpu=device == "cuda", dims=dims, every=every)
    if device == "cuda":
        im2col_inputs = num_inputs if wanted.im2col else None
        tidy = apply(TIDY, to_last_axis(split_whole_reductions(module), of_images=True))
        volumes = find_volumes(tidy, num_inputs, wanted)
        module = to_channels_last(tidy, im2col_inputs=im2col_inputs, wanted=wanted, volumes=volumes)
        if wanted.planar_convolutions:
            module = pad_channels(apply(TIDY, module), num_inputs)
    elif wanted.channels_last:
        module = to_last_axis(module)
        module = simplify_arithmetic(apply(TIDY, drop_no_ops(sink_reshapes(module))), num_inputs)
        module = merge_branches(apply(TIDY, module), num_inputs)
        module = to_channels_last(apply(TIDY, module), num_inputs)
    module = apply(TIDY, drop_no_ops(module))
    if device == "cuda" or wanted.channels_last:
        module = apply(TIDY, fold_flatten_transpose(module, num_inputs))
    if wanted.planar_convolutions if device == "cuda" else wanted.sink_reshapes:
        module = apply(TIDY, drop_no_ops(sink_reshapes(module, of_unit_axes=device == "cuda")))
    module, constants = fold_weights(module, constants)
    # Drop bindings that only folded weights read: a partition of them would have no result.
    module = apply([_R.DeadCodeElimination(), *([repeat_views] if device == "cuda" else [])], module)
    return PreparedModel(model.signature, name_result(module, result), constants, model.own_constants(), model.nodes)


def _with_norms(
    module: tvm.IRModule, num_inputs: int, constants: Mapping[str, NamedArray], *, on_gpu: bool
) -> tvm.IRModule:
    """Raise normalizations; on a GPU those that it has kernels for, which read half precision."""
    module = raise_norms(apply(TIDY, drop_no_ops(module)), num_inputs, of_vectors=on_gpu)
    module = apply(TIDY, read_halves(module) if on_gpu else module)
    module = regroup_norms(module, num_inputs, constants, of_channels=on_gpu)
    return drop_no_ops(module) if on_gpu else module

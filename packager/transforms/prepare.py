"""What happens to a model before backends see it: it is simplified, laid out for them, and its weights are folded."""

from __future__ import annotations

from tvm import relax

from packager.graph.passes import apply
from packager.graph.rewrite import name_result, with_main
from packager.ir.model import ImportedModel, PreparedModel
from packager.ir.preparation import Preparation
from packager.transforms.fold_inline import fold_inline
from packager.transforms.fold_weights import fold_weights
from packager.transforms.layout.channels_last import to_channels_last
from packager.transforms.layout.flatten import flatten_as_it_lies
from packager.transforms.quantize.float8 import to_float8_products
from packager.transforms.quantize.quantize import to_integers
from packager.transforms.simplify.arithmetic import simplify_arithmetic
from packager.transforms.simplify.no_ops import drop_no_ops
from packager.transforms.simplify.sink_reshapes import sink_reshapes

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
    """Simplify ``model``, lay it out as the backends want it, and fold what depends on weights alone.

    On the ``device`` ``cuda`` convolutions are always channels last.
    """
    num_inputs = len(model.signature.inputs)
    bounds = {dim.name: dim.max for dim in model.signature.dims}
    module = model.module
    result = getattr(module["main"].body.body, "name", "")  # a tuple has none
    if bounds:
        module = with_main(module, module["main"].with_attr("tir_var_upper_bound", bounds))
    module, constants = fold_inline(apply(SIMPLIFY, module)), model.constants()
    if wanted.integer_products:
        module, constants = to_integers(apply(TIDY, module), num_inputs, constants)
    if wanted.float8_products:
        module = to_float8_products(apply(TIDY, module), num_inputs)
    if device == "cuda":
        products_after = num_inputs if wanted.window_products else None
        module = to_channels_last(apply(TIDY, module), products_after=products_after)
    elif wanted.channels_last:
        module = simplify_arithmetic(apply(TIDY, drop_no_ops(module)), num_inputs)
        module = to_channels_last(apply(TIDY, module), num_inputs)
    module = apply(TIDY, drop_no_ops(module))
    if device == "cuda" or wanted.channels_last:
        module = apply(TIDY, flatten_as_it_lies(module, num_inputs))
    if device == "cpu" and wanted.sink_reshapes:
        module = apply(TIDY, drop_no_ops(sink_reshapes(module)))
    module, constants = fold_weights(module, constants)
    # What only folded weights have read is read by nobody now, and a partition of it would have no result.
    module = apply([_R.DeadCodeElimination()], module)
    return PreparedModel(model.signature, name_result(module, result), constants, model.own_constants(), model.nodes)

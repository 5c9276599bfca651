"""Brings an imported model into the form that it has whichever exporter wrote it, before its precision is converted.

Batch norms become a scale and a shift, which are folded into the convolution before them; normalizations of rows and of
groups become one operator, attention is written in one way, and products of the same few rows become one. On CPUs the
backends match attention as it is, and ``prepare`` folds what it folds here.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import relax

from packager.graph.rewrite import apply, name_result
from packager.ir.model import ImportedModel
from packager.transforms.attention.canonical import canonical_attention
from packager.transforms.attention.four_axes import with_four_axes
from packager.transforms.attention.head_dims import pad_heads
from packager.transforms.attention.projections import merge_projections
from packager.transforms.attention.repeated_heads import repeat_behind_transposes
from packager.transforms.fold_inline import fold_inline
from packager.transforms.layout.batch_first import batch_first
from packager.transforms.layout.slice_views import slice_before_transposes, slice_before_views
from packager.transforms.products.head_biases import add_to_biases
from packager.transforms.products.linear_forms import compose_products
from packager.transforms.products.merge_products import merge_products
from packager.transforms.products.modulated_convs import unmodulate_convs
from packager.transforms.products.residual_sums import add_residuals_first
from packager.transforms.products.scaled_rows import scale_matrices
from packager.transforms.products.shared_matrices import multiply_rows_of_images
from packager.transforms.products.small_products import sum_small_products
from packager.transforms.simplify.arithmetic import simplify_arithmetic
from packager.transforms.simplify.equal_updates import add_equal_updates
from packager.transforms.simplify.flat_concats import flatten_concats
from packager.transforms.simplify.gathers import simplify_gathers
from packager.transforms.simplify.group_norms import group_norms_as_rows, images_as_rows
from packager.transforms.simplify.join_slices import join_slices
from packager.transforms.simplify.no_ops import drop_no_ops
from packager.transforms.simplify.raise_norms import raise_norms
from packager.transforms.simplify.slice_norms import slice_before_norms
from packager.transforms.simplify.splits import slice_splits
from packager.transforms.simplify.stacked_sums import add_stacked
from packager.transforms.simplify.unit_axes import reshape_unit_axes
from packager.transforms.unrolled.loops import roll_up

_R = relax.transform
_TIDY = [_R.CanonicalizeBindings(), _R.EliminateCommonSubexpr(), _R.CanonicalizeBindings(), _R.DeadCodeElimination()]


def canonical(model: ImportedModel) -> ImportedModel:
    """Return a model for a GPU in that form."""
    result = getattr(model.module["main"].body.body, "name", "")  # a tuple has no name
    module = fold_inline(apply([_R.DecomposeOpsForInference(), _R.CanonicalizeBindings()], model.module))
    module = slice_splits(apply(_TIDY, drop_no_ops(module)))
    module = apply(_TIDY, flatten_concats(add_stacked(simplify_gathers(module))))
    module = roll_up(replace(model, module=module))
    module = apply(_TIDY, add_equal_updates(replace(model, module=module)))
    module = compose_products(module, len(model.signature.inputs))
    module = simplify_arithmetic(module, len(model.signature.inputs), of_matmuls=True)
    module = scale_matrices(module, len(model.signature.inputs))
    module = simplify_arithmetic(module, len(model.signature.inputs), of_matmuls=True)
    module = apply(_TIDY, unmodulate_convs(module, len(model.signature.inputs)))
    module = apply(_TIDY, raise_norms(module, len(model.signature.inputs), of_vectors=True))
    module = apply(_TIDY, group_norms_as_rows(replace(model, module=module)))
    module = apply(_TIDY, images_as_rows(module))
    module = batch_first(slice_before_views(slice_before_norms(repeat_behind_transposes(module))))
    module = apply(_TIDY, drop_no_ops(with_four_axes(module, len(model.signature.inputs))))
    module = add_to_biases(module, len(model.signature.inputs))
    module = pad_heads(canonical_attention(replace(model, module=module)), len(model.signature.inputs))
    module = slice_before_transposes(module, of_norms=True)
    module = multiply_rows_of_images(sum_small_products(module, len(model.signature.inputs)))
    module = apply(_TIDY, drop_no_ops(reshape_unit_axes(module)))
    module = add_residuals_first(module, len(model.signature.inputs))
    module = merge_products(merge_projections(module, len(model.signature.inputs)), len(model.signature.inputs))
    module = join_slices(module)
    return replace(model, module=name_result(module, result))

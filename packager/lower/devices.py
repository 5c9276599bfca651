"""What lowering does for each device: how operators are legalized, scheduled, and tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import dlight

from packager.graph import tree_ensemble
from packager.graph.recurrences.forward_substitution import NAME as FORWARD_SUBSTITUTION
from packager.graph.recurrences.linear_scan import NAME as LINEAR_SCAN
from packager.graph.resize import NAME as RESIZE
from packager.graph.resize import legalize_fused_resize
from packager.ir.model import CallSource
from packager.ir.primitives import Kernel
from packager.lower import sorting
from packager.lower.conditional_loads import simplify_conditional_loads
from packager.lower.cpu.kernels import lower_kernels
from packager.lower.cpu.pack_weights import pack_weights
from packager.lower.cpu.schedule import schedule as schedule_cpu
from packager.lower.cuda.algorithms.best_index import legalize_best_index
from packager.lower.cuda.algorithms.column_softmax import legalize_column_softmax
from packager.lower.cuda.algorithms.compact import compact
from packager.lower.cuda.algorithms.dot import sum_products
from packager.lower.cuda.algorithms.group_slices import group_slices
from packager.lower.cuda.algorithms.recurrences import scan_linearly, substitute_columns
from packager.lower.cuda.algorithms.scan_rows import scan_rows
from packager.lower.cuda.algorithms.scatters.orders import sort_scatters
from packager.lower.cuda.algorithms.scatters.scatter import scatter_elements, scatter_nd, scatter_slices
from packager.lower.cuda.algorithms.scatters.sorted_scatter import (
    SCATTER_SORTED,
    SORT_INDICES,
    scatter_sorted,
    sort_indices,
)
from packager.lower.cuda.algorithms.short_reductions import SHORT_REDUCTIONS
from packager.lower.cuda.algorithms.sort_rows import sort_rows
from packager.lower.cuda.algorithms.suppress_boxes import suppress_boxes
from packager.lower.cuda.algorithms.take import (
    legalize_fused_gather,
    legalize_fused_take,
    repeat_indices,
    repeat_lookups,
)
from packager.lower.cuda.fusion.broadcasts import keep_broadcasts_apart
from packager.lower.cuda.fusion.half_casts import read_half_means
from packager.lower.cuda.fusion.reductions import join_reductions
from packager.lower.cuda.fusion.shared_rows import share_rows
from packager.lower.cuda.fusion.slices import fuse_slices
from packager.lower.cuda.fusion.updates import fuse_updates
from packager.lower.cuda.group_norms.lowering import fuse_group_norms
from packager.lower.cuda.kernels import TRIAL_GPU, lower_cuda_kernels
from packager.lower.cuda.log_sums.lowering import LOG_SUM, fuse_log_sums, legalize_log_sum
from packager.lower.cuda.plain import schedule_plain
from packager.lower.cuda.schedule import schedule_cuda
from packager.lower.legalize.accumulate import (
    accumulate_in_float32,
    legalize_layer_norm,
    legalize_softmax,
    reduce_in_float32,
)
from packager.lower.legalize.cumulative import legalize_in_rows
from packager.lower.legalize.float8_cast import legalize_astype
from packager.lower.legalize.forward_substitution import substitute_in_rows
from packager.lower.legalize.grid_sample import legalize_grid_sample
from packager.lower.legalize.linear_scan import legalize_linear_scan
from packager.lower.legalize.min_max import legalize_arg, legalize_min_max
from packager.lower.legalize.normalize import expand_norms, fuse_norms
from packager.lower.legalize.number_tests import legalize_negation, legalize_number_test
from packager.lower.legalize.reshape import legalize_reshape
from packager.lower.legalize.row_views import read_rows
from packager.lower.legalize.scatter import (
    legalize_scatter_elements,
    legalize_scatter_nd,
    legalize_scatter_slices,
)
from packager.lower.legalize.selection.arg_rows import legalize_arg_rows
from packager.lower.legalize.selection.non_max_suppression import legalize_non_max_suppression
from packager.lower.legalize.selection.positions import legalize_positions
from packager.lower.legalize.selection.top_k import legalize_top_k
from packager.lower.legalize.selection.unique import legalize_unique
from packager.lower.legalize.split_sums import split_sums
from packager.lower.legalize.tree_ensemble import legalize_tree_ensemble
from packager.transforms.clamp_indices import clamp_folded_indices, legalize_take
from packager.transforms.layout.channels_last import to_channels_last
from packager.transforms.own_legalizers import OWN_LEGALIZERS
from packager.transforms.repeat_views import repeat_casts
from packager.transforms.simplify.narrow_indices import SCATTER_SLICES

_R = relax.transform

LEGALIZERS = {
    "relax.astype": legalize_astype,
    "relax.max": legalize_min_max,
    "relax.min": legalize_min_max,
    "relax.argmax": legalize_arg,
    "relax.argmin": legalize_arg,
    "relax.take": legalize_take,
    "relax.nn.softmax": legalize_softmax,
    "relax.reshape": legalize_reshape,
    "relax.nn.layer_norm": legalize_layer_norm,
    **dict.fromkeys(("relax.isnan", "relax.isinf", "relax.isfinite"), legalize_number_test),
    "relax.logical_not": legalize_negation,
    tree_ensemble.NAME: legalize_tree_ensemble,
    **OWN_LEGALIZERS,
}
CPU_LEGALIZERS = {
    "relax.argmax": legalize_arg_rows,
    "relax.argmin": legalize_arg_rows,
    "relax.cumsum": legalize_in_rows,
    "relax.cumprod": legalize_in_rows,
    LINEAR_SCAN: legalize_linear_scan,
    FORWARD_SUBSTITUTION: substitute_in_rows,
    "relax.image.grid_sample": legalize_grid_sample,
    "relax.scatter_elements": legalize_scatter_elements,
    "relax.scatter_nd": legalize_scatter_nd,
    SCATTER_SLICES: legalize_scatter_slices,
    sorting.TOP_K: legalize_top_k,
    sorting.POSITIONS: legalize_positions,
    sorting.UNIQUE: legalize_unique,
    sorting.SUPPRESS: legalize_non_max_suppression,
}
CUDA_LEGALIZERS = {
    "relax.argmax": legalize_best_index,
    "relax.argmin": legalize_best_index,
    "relax.take": legalize_fused_take,
    "relax.gather_elements": legalize_fused_gather,
    "relax.gather_nd": legalize_fused_gather,
    "relax.nn.softmax": legalize_column_softmax,
    "relax.nn.log_softmax": legalize_column_softmax,
    RESIZE: legalize_fused_resize,
    **SHORT_REDUCTIONS,
    "relax.cumsum": scan_rows,
    "relax.cumprod": scan_rows,
    LINEAR_SCAN: scan_linearly,
    FORWARD_SUBSTITUTION: substitute_columns,
    "relax.scatter_elements": scatter_elements,
    "relax.scatter_nd": scatter_nd,
    SCATTER_SLICES: scatter_slices,
    SORT_INDICES: sort_indices,
    SCATTER_SORTED: scatter_sorted,
    LOG_SUM: legalize_log_sum,
    sorting.TOP_K: sort_rows,
    sorting.POSITIONS: compact,
    sorting.UNIQUE: group_slices,
    sorting.SUPPRESS: suppress_boxes,
}
TIDY = [
    _R.AnnotateTIROpPattern(),
    clamp_folded_indices,
    _R.FoldConstant(),
    _R.DeadCodeElimination(),
    _R.CanonicalizeBindings(),  # removes aliases: FuseTIR would drop them, and the source nodes with them
    _R.DeadCodeElimination(),  # of the tuples whose fields were folded
]

# Whether a schedule lowers does not depend on the CPU level.
TRIAL_CPU = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"})


@dataclass(frozen=True)
class Device:
    """The device-specific steps of lowering.

    ``change_layouts(module, num_inputs)`` runs before weights are folded, then the passes ``legalize``. ``schedules``
    are tried in order until ``try_lower`` accepts the kernels. ``join`` merges calls of fused functions, whose sources
    it gets and returns.
    """

    name: str
    change_layouts: Callable[[tvm.IRModule, int], tvm.IRModule]
    legalize: Sequence[Any]
    join: Callable[[tvm.IRModule, list[CallSource]], tuple[tvm.IRModule, list[CallSource]]]
    schedules: tuple[Callable[[Any], Any], ...]
    try_lower: Callable[[Sequence[Kernel]], object]


def _one_element_per_thread(primfunc: Any) -> Any:
    with TRIAL_GPU:
        module = tvm.IRModule({"main": primfunc})
        return simplify_conditional_loads(dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(module)["main"])


def _write_cuda(kernels: Sequence[Kernel]) -> None:
    """Raise what TVM raises where it cannot write CUDA C++ of the kernels."""
    module, _ = lower_cuda_kernels(kernels, TRIAL_GPU)
    tvm.get_global_func("target.build.cuda")(module, TRIAL_GPU)


DEVICES = {
    "cpu": Device(
        "cpu",
        lambda module, num_inputs: pack_weights(
            split_sums(reduce_in_float32(accumulate_in_float32(module))), num_inputs
        ),
        [expand_norms, _R.LegalizeOps(LEGALIZERS | CPU_LEGALIZERS), *TIDY],
        lambda module, sources: (module, sources),
        (schedule_cpu, lambda unscheduled: unscheduled),
        lambda kernels: lower_kernels(tuple(kernels), TRIAL_CPU),
    ),
    "cuda": Device(
        "cuda",
        lambda module, _num_inputs: sum_products(to_channels_last(accumulate_in_float32(module))),
        [
            fuse_log_sums,
            sort_scatters,
            repeat_lookups,
            repeat_indices,
            repeat_casts,
            read_half_means,
            read_rows,
            fuse_group_norms,
            fuse_norms,
            _R.LegalizeOps(LEGALIZERS | CUDA_LEGALIZERS),
            *TIDY,
            keep_broadcasts_apart,
            fuse_updates,
            fuse_slices,
        ],
        lambda module, sources: share_rows(*join_reductions(*share_rows(module, sources))),
        (lambda primfunc: schedule_cuda(primfunc, TRIAL_GPU), _one_element_per_thread, schedule_plain),
        _write_cuda,
    ),
}

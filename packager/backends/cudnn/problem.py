"""Convolutions that cuDNN computes: from a chain of a model to the fields of a problem in C."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from packager.backends.cudnn.options import CudnnOptions
from packager.backends.problem_calls import ProblemCall, ProblemMemory, bias_parameter
from packager.bundle.dtypes import HALVES
from packager.graph.dataflow import Dataflow, shape_of
from packager.graph.identity import IdentityMap
from packager.graph.products.convolution import AnyConvolution
from packager.graph.products.epilogues import Chain
from packager.graph.products.matmul import bias_fits
from packager.ir.primitives import Packing, Parameter

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

TYPES = {"float16": "CUDNN_DATA_HALF", "bfloat16": "CUDNN_DATA_BFLOAT16", "float32": "CUDNN_DATA_FLOAT"}
ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}
# Of these epilogues every version has engines that need no compiler; of others only those that have it compiled.
ACTIVATIONS = {"": -1, "relu": 100}
MEGABYTE = 1 << 20
PAIRED = ("image", "result", "window", "before", "after", "stride", "dilation")


@dataclass(frozen=True)
class CudnnProblem:
    """A convolution with the epilogue of ``chain``; ``constant`` is whether its weights are."""

    conv: AnyConvolution
    chain: Chain
    constant: bool

    @property
    def has_epilogue(self) -> bool:
        """Whether something is added or applied; the library's engines then add a bias as well."""
        return self.chain.bias is not None or self.chain.residual is not None or bool(self.chain.activation)


def read_problem(flow: Dataflow, conv: AnyConvolution, chain: Chain, options: CudnnOptions) -> CudnnProblem | None:
    """Return the problem of a chain, or None if the library does not compute it."""
    if conv.dtype not in (*HALVES, *(("float32",) if options.allow_tf32 else ())) or not _takes(conv, options):
        return None
    others = [conv.weights, chain.result] + ([] if chain.residual is None else [chain.residual])
    if {str(other.ty.dtype) for other in others} != {conv.dtype} or chain.scale != 1.0:
        return None
    if chain.activation not in ACTIVATIONS or len(shape_of(chain.result) or ()) != len(conv.window) + 2:
        return None
    problem = CudnnProblem(conv, chain, flow.is_constant(conv.weights))
    if (conv.transposed and problem.has_epilogue) or not bias_fits(flow, chain, conv.dtype):
        return None
    return problem


def _takes(conv: AnyConvolution, options: CudnnOptions) -> bool:
    group = "conv_transpose" if conv.transposed else f"conv{len(conv.window)}d"
    if conv.is_depthwise:
        group = "depthwise"
    known = all(isinstance(extent, int) and extent > 0 for extent in (*conv.image, *conv.result))
    if group not in options.operators or not known or min(conv.before + conv.after) < 0:
        return False
    return not conv.transposed or _is_gradient(conv)


def _is_gradient(conv: AnyConvolution) -> bool:
    """Whether the forward convolution of the result has the size of the image: no row is left over."""
    sizes = zip(conv.result, conv.before, conv.after, conv.dilation, conv.window, conv.stride, conv.image, strict=True)
    return all((r + b + a - d * (w - 1) - 1) // s + 1 == i for r, b, a, d, w, s, i in sizes)


def state_problem(
    problem: CudnnProblem,
    arguments: IdentityMap[int],
    call: ProblemCall,
    memory: ProblemMemory,
    options: CudnnOptions,
) -> None:
    """Set the fields of the problem in C; ``arguments`` are the indices of the partition's arguments."""
    conv, chain = problem.conv, problem.chain
    weights = arguments[conv.weights]
    call.pointer("x", Parameter("argument", arguments[conv.data]))
    packed = problem.constant and not conv.weights_last
    call.pointer("w", memory.packed(pack_weights(weights, conv)) if packed else Parameter("argument", weights))
    if chain.bias is not None:
        call.pointer("bias", bias_parameter(chain.bias, conv.dtype, arguments, memory))
    elif problem.has_epilogue:
        call.pointer("bias", Parameter("constant", name=zeros_name(conv.dtype)))
    if chain.residual is not None:
        call.pointer("residual", Parameter("argument", arguments[chain.residual]))
    call.pointer("y", Parameter("argument", len(arguments), written=True))
    if options.workspace_mb:
        workspace = memory.workspace(options.workspace_mb * MEGABYTE)
        call.pointer("workspace", Parameter("workspace", workspace, written=True))
    call.member = "key.conv."
    call.set(batch=conv.batch)
    for name, value in numbers(problem, options, 0).items():
        if name != "batch" and value != 0:
            call.set(**{name: value})


def pack_weights(argument: int, conv: AnyConvolution) -> Packing:
    """Return the packing of constant weights with the window between; equal ones are in the bundle once."""

    def pack(array: Array) -> Array:
        return np.moveaxis(array, 1, -1)

    spatial = {1: "w", 2: "hw", 3: "dhw"}[len(conv.window)]
    return Packing(argument, f"i{spatial}o" if conv.transposed else f"o{spatial}i", pack)


def zeros_name(dtype: str) -> str:
    """Return the name of the constant that stands for a bias that is not there."""
    return f"cudnn_zeros_{dtype}"


def numbers(problem: CudnnProblem, options: CudnnOptions, batch: int) -> dict[str, int]:
    """Return the fields of a pk_cudnn_conv_t in their order; lines have a height of one."""
    conv, chain = problem.conv, problem.chain
    axes = max(2, len(conv.window))
    found = {"batch": batch, "channels": conv.channels, "filters": conv.filters, "groups": conv.groups}
    for name in PAIRED:
        values: tuple[int, ...] = getattr(conv, name)
        if len(values) == 1:
            values = (0 if name in ("before", "after") else 1, *values)
        found |= {f"{name}[{axis}]": value for axis, value in enumerate((*values, 0)[:3])}
    return found | {
        "workspace_bytes": options.workspace_mb * MEGABYTE,
        "axes": axes,
        "type": {"float16": 2, "bfloat16": 9, "float32": 0}[conv.dtype],
        "transposed": int(conv.transposed),
        "last": int(conv.channels_last),
        "weights_last": int(conv.weights_last or problem.constant),
        "bias": int(problem.has_epilogue),
        "residual": int(chain.residual is not None),
        "activation": ACTIVATIONS[chain.activation],
    }


def largest_batch(problem: CudnnProblem, bytes_written: int) -> int:
    """Return the batch with the dims at their maxima, of which a call writes so many bytes."""
    conv = problem.conv
    one = math.prod(conv.result) * conv.filters * ITEMSIZE[conv.dtype]
    return conv.batch if isinstance(conv.batch, int) else max(1, bytes_written // one)


def describe(problem: CudnnProblem, batch: int) -> str:
    """Return the key of a problem's tuning records."""
    conv, chain = problem.conv, problem.chain

    def by(values: tuple[Any, ...]) -> str:
        return "x".join(map(str, values))

    parts = [conv.dtype, f"{batch}x{by(conv.image)}x{conv.channels}", f"filters {conv.filters}x{by(conv.window)}"]
    parts += ["transposed"] * conv.transposed + [f"groups {conv.groups}"] * (conv.groups != 1)
    parts += [f"padding {by(conv.before)} {by(conv.after)}", f"stride {by(conv.stride)}"]
    parts += [f"dilation {by(conv.dilation)}"] * (set(conv.dilation) != {1})
    parts += [f"result {by(conv.result)}"] * conv.transposed + ["first"] * (not conv.channels_last)
    parts += [chain.activation] * bool(chain.activation)
    parts += ["bias"] * (chain.bias is not None) + ["residual"] * (chain.residual is not None)
    return "cudnn " + " ".join(parts)

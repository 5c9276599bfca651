"""Products that cuBLASLt computes: from a chain of a model to the fields of a problem in C."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from packager.backends.cublas.options import CublasOptions
from packager.backends.problem_calls import ProblemCall, ProblemMemory, bias_parameter
from packager.bundle.dtypes import HALVES
from packager.graph.dataflow import Dataflow, shape_of
from packager.graph.identity import IdentityMap
from packager.graph.products.conv2d import read_geometry
from packager.graph.products.epilogues import Chain
from packager.graph.products.matmul import MatmulProblem, Product, bias_fits, pack_columns, read_matmul
from packager.graph.products.quantized import FLOAT8, pack_narrow_columns
from packager.ir.primitives import Packing, Parameter

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

TYPES = {
    "float16": "CUDA_R_16F",
    "bfloat16": "CUDA_R_16BF",
    "float32": "CUDA_R_32F",
    "int8": "CUDA_R_8I",
    "int32": "CUDA_R_32I",
    FLOAT8: "CUDA_R_8F_E4M3",
}
# The activation, and whether the library's form of it is within half precision of it only.
ACTIVATIONS = {"": ("", False), "relu": ("RELU", False), "gelu": ("GELU", True), "gelu_tanh": ("GELU", True)}
MEGABYTE = 1 << 20


@dataclass(frozen=True)
class CublasProblem(Product):
    """A product that the library computes.

    ``gain`` multiplies the result before it is rounded to 8 bits. ``scales`` is None, or a constant with a scale for
    each column, which multiplies the product before bias and residual.

    ``layout`` is that of each matrix of b: ``nk`` [columns, depth], ``kn`` [depth, columns], or ``packed``, a constant
    [depth, columns] that the bundle has as [columns, depth].
    """

    layout: str
    gain: float = 1.0
    scales: Any = None


def read_dense(flow: Dataflow, chain: Chain, options: CublasOptions) -> CublasProblem | None:
    """Return the problem of a chain at a matmul, or None if the library does not compute it."""
    problem = read_matmul(flow, chain)
    if problem is None or not _takes(chain, problem.dtype, problem.out, options):
        return None
    wanted = "batch_matmul" if problem.batch else "dense"
    return _of_matmul(problem, options) if wanted in options.operators else None


def read_pointwise(flow: Dataflow, chain: Chain, options: CublasOptions) -> CublasProblem | None:
    """Return the problem of a chain at a convolution of 1x1 filters and stride 1, which is a product of its pixels."""
    conv = read_geometry(flow, chain.anchor) if "conv2d" in options.operators else None
    if conv is None or not conv.is_product or len(shape_of(chain.result) or ()) != 4:
        return None
    x, w = flow.value(chain.anchor).args
    out = str(chain.result.ty.dtype)
    if str(w.ty.dtype) != conv.dtype or not _takes(chain, conv.dtype, out, options) or not bias_fits(flow, chain, out):
        return None
    if chain.residual is not None and str(chain.residual.ty.dtype) != out:
        return None
    rows = (conv.batch, *conv.result)
    return CublasProblem(x, w, chain, conv.dtype, out, (), rows, conv.filters, conv.channels, "nk")


def _takes(chain: Chain, dtype: str, out: str, options: CublasOptions) -> bool:
    """Return whether the library computes these types, and the activation to the accuracy of the result."""
    if dtype not in HALVES or out not in (dtype, "float32") or chain.activation not in ACTIVATIONS:
        return False
    _, is_rough = ACTIVATIONS[chain.activation]
    return not is_rough or (out in HALVES and (options.gelu_tanh or chain.activation == "gelu_tanh"))


def _of_matmul(problem: MatmulProblem, options: CublasOptions) -> CublasProblem:
    packed = problem.constant and options.weights == "nk"
    fields = {name: value for name, value in vars(problem).items() if name != "constant"}
    return CublasProblem(**fields, layout="packed" if packed else "kn")


def state_problem(
    problem: CublasProblem,
    most_rows: int,
    arguments: IdentityMap[int],
    call: ProblemCall,
    memory: ProblemMemory,
    options: CublasOptions,
) -> None:
    """Set the fields of a ``pk_cublas_t``; ``arguments`` are the indices of the partition's arguments.

    The library scales rows wherever it scales columns: ``most_rows`` are as many as there may be.
    """
    chain, m, n, k = problem.chain, problem.rows, problem.columns, problem.depth
    call.pointer("a", Parameter("argument", arguments[problem.a]))
    matrix = arguments[problem.b]
    packed, pack = problem.layout == "packed", pack_columns if problem.dtype in HALVES else pack_narrow_columns
    call.pointer("b", memory.packed(Packing(matrix, "nk", pack)) if packed else Parameter("argument", matrix))
    if chain.bias is not None:
        call.pointer("bias", bias_parameter(chain.bias, wide_type(problem.out), arguments, memory))
    if problem.gain != 1.0:
        call.pointer("gain", Parameter("constant", name=gain_name(problem.gain)))
    if problem.scales is not None:
        packing = Packing(arguments[problem.scales], f"scales{n}", partial(_spread, n))
        call.pointer("columns", memory.packed(packing))
        call.pointer("ones", Parameter("constant", name=ones_name(most_rows)))
    if chain.residual is not None:
        call.pointer("c", Parameter("argument", arguments[chain.residual]))
    call.pointer("d", Parameter("argument", len(arguments), written=True))
    nbytes = options.workspace_mb * MEGABYTE
    if nbytes:
        call.pointer("workspace", Parameter("workspace", memory.workspace(nbytes), written=True))
    call.member = "key."
    call.set(m=m, n=n, k=k, batch=problem.batch or 1, workspace_bytes=nbytes, answers=options.candidates)
    call.set(b_is_kn=int(problem.layout == "kn"))
    if problem.batch:
        call.set(batch_a=problem.batch_a, batch_b=(n, k), batch_d=(*m, n))
    call.set_float(alpha=chain.scale, beta=float(chain.residual is not None))


def wide_type(out: str) -> str:
    """Return the type of bias and residual, which have half precision where the result has 8 bits."""
    return "float16" if out == FLOAT8 else out


def gain_name(gain: float) -> str:
    """Return the name of the constant that holds a gain."""
    return f"cublas_gain_{np.float32(gain).view(np.uint32):08x}"


def ones_name(rows: int) -> str:
    """Return the name of the constant that holds the scales of rows that have none."""
    return f"cublas_ones_{rows}"


def _spread(columns: int, array: Array) -> Array:
    """Return a scale of all columns, or of each one, as one of each."""
    return np.ascontiguousarray(np.broadcast_to(array.reshape(-1), (columns,)))


def scaled_by(problem: CublasProblem) -> str:
    """Return what is scaled by more than a number, as a constant of templates/cublas/matmul.h."""
    if problem.scales is not None:
        return "PK_CUBLAS_COLUMNS"
    return "PK_CUBLAS_GAIN" if problem.gain != 1.0 else "0"


def epilogue_of(chain: Chain) -> str:
    """Return the epilogue as an expression of cuBLASLt's constants."""
    name, _ = ACTIVATIONS[chain.activation]
    parts = [name] * bool(name) + ["BIAS"] * (chain.bias is not None)
    return " | ".join(f"CUBLASLT_EPILOGUE_{part}" for part in parts or ["DEFAULT"])


def describe(problem: CublasProblem, rows: int, batch: int) -> str:
    """Return the key of a problem's tuning records, with the most rows and matrices."""
    n, k = (extent if isinstance(extent, int) else "?" for extent in (problem.columns, problem.depth))
    parts = [problem.dtype, problem.out, f"{rows}x{n}x{k}", f"batch {batch}", problem.layout]
    parts += [problem.chain.activation] * bool(problem.chain.activation)
    parts += ["gain"] * (problem.gain != 1.0) + ["columns"] * (problem.scales is not None)
    parts += ["bias"] * (problem.chain.bias is not None) + ["residual"] * (problem.chain.residual is not None)
    return "cublas " + " ".join(parts)

"""GEMM kernels: d = act(alpha * a b + bias + beta * c), from configurations of CUTLASS's templates to their source.

A configuration fixes types, layouts, tile and epilogue; M, N, K, batch and strides are the problem's. ``sm90`` kernels
use TMA and warp-group instructions and need 16-byte alignment; ``sm80`` kernels run on every GPU from there on.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from packager.backends.cutlass.core.element_types import ELEMENTS, vector_of
from packager.backends.cutlass.core.kernel import KernelConfig, KernelSource
from packager.backends.cutlass.gemm.tilings import Sm80Tile, Sm90Tile, Tile, fits, has_gates
from packager.codegen.templates import MARK, render
from packager.ir.activations import CLIP, ELU, LEAKY_RELU, SINE, STAR_RELU, SWISH

SMS = 132  # of an H100 or H200
SM90_MEGABYTES = 3500
SM80_MEGABYTES = 900
# As kStreamBlocksPerSm of templates/cutlass/gemm/gemm.h.
STREAM_BLOCKS_PER_SM = 2


@dataclass(frozen=True)
class GemmType:
    """A type of a and b: the types that d may have, the math operator of sm80 kernels, and what sm90 kernels support.

    ``sm90`` is whether there are sm90 kernels, ``rows`` whether these take b as [k, n].
    """

    outputs: tuple[str, ...]
    math: str = "OpMultiplyAdd"
    sm90: bool = True
    rows: bool = False


# float32 is multiplied as three TF32 products (3xTF32), about as exact as one of float32; tfloat32 as one.
TYPES = {
    "float16": GemmType(("float16", "float32"), rows=True),
    "bfloat16": GemmType(("bfloat16", "float32"), rows=True),
    "float32": GemmType(("float32",), "OpMultiplyAddFastF32", sm90=False),
    "tfloat32": GemmType(("float32",)),
}
# Activations, and whether they have fast and precise versions (templates/cutlass/common/activations.h).
ACTIVATIONS = {
    "none": False,
    "relu": False,
    "gelu": True,
    "gelu_tanh": True,
    "sigmoid": True,
    "silu": True,
    "hardswish": False,
    "hardsigmoid": False,
    "mish": True,
    "tanh": True,
    "softplus": True,
}
# The same of those whose names end with the bits of parameters.
KINDS = {LEAKY_RELU: False, CLIP: False, SINE: True, SWISH: True, ELU: True, STAR_RELU: False}
IDENTITY = "cutlass::epilogue::thread::Identity"


def functor(activation: str, result: str, *, fast_math: bool) -> str:
    """Return the C++ functor of an activation, of CUTLASS or of templates/cutlass/common/activations.h.

    ``result`` is the type that it is applied to; for float32 the functor is a precise one.
    """
    if activation == "none":
        return IDENTITY
    kind = next((each for each in KINDS if activation.startswith(each)), activation)
    accuracy = ""
    if (ACTIVATIONS | KINDS)[kind]:
        accuracy = "_fast" if fast_math else "_precise" if result in ("float32", "tfloat32") else ""
    if kind == activation:
        return f"pk::{activation}{accuracy}"
    parameters = [f"0x{bits}u" for bits in activation.removeprefix(kind).split("_")]
    return f"pk::{kind.rstrip('_')}{accuracy}<{', '.join(parameters)}>::of"


def form_name(form: str) -> str:
    """Return a functor as a part of a kernel's name."""
    if form == IDENTITY:
        return "none"
    return re.sub("<0x|u, 0x", "_", form.removeprefix("pk::")).removesuffix("u>::of")


class TiledConfig(KernelConfig):
    """What GEMM and convolution kernels have in common: a tile, and an epilogue with an activation and a residual."""

    tile: Tile
    activation: str
    residual: bool
    fast_math: bool

    def __post_init__(self) -> None:
        if wrong := self._wrong():
            raise ValueError(f"no kernel {self.name}: {wrong}")

    @abstractmethod
    def _wrong(self) -> str:
        """Return why the templates do not support this configuration, or ''."""

    def functor(self, result: str) -> str:
        """Return the C++ functor of the activation, which is applied to ``result``."""
        return functor(self.activation, result, fast_math=self.fast_math)

    @property
    @abstractmethod
    def form(self) -> str:
        """The functor of the activation."""

    @property
    def form_name(self) -> str:
        """The functor as a part of a kernel's name."""
        return form_name(self.form)

    def render(self, template: str, archs: tuple[str, ...], **values: Any) -> KernelSource:
        """Render a template of ``templates/cutlass`` with ``values`` and those of the tile and the epilogue."""
        tma = isinstance(self.tile, Sm90Tile)
        common = {"mark": MARK, "name": self.name, "activation": self.form, "residual": self.residual}
        text = render(f"cutlass/{template}.cu.j2", **self.tile.values(), **common, **values)
        # Convolutions by TMA include a header of CUTLASS's tools.
        folders = ("tools/util/include",) if tma and "conv" in template else ()
        return KernelSource(self.name, text, archs, SM90_MEGABYTES if tma else SM80_MEGABYTES, folders=folders)


@dataclass(frozen=True)
class GemmConfig(TiledConfig):
    """A GEMM kernel. ``dtype`` (a key of TYPES) is of a and b, ``out`` of bias, c and d.

    ``b_rows`` says that b is [k, n], else it is [n, k]. ``early``: it is a constant of the bundle, which an sm90 kernel
    begins to load before earlier kernels are complete. ``alignment`` is the number of elements per access of a and b:
    K, leading dimensions and strides between matrices are multiples of it, and so is N where b is [k, n]; pointers are
    aligned alike. Bias, c and d are accessed ``out_alignment`` elements at a time: by sm80 kernels ``narrow`` ones
    unless that is 0. ``residual`` is whether c is read.
    ``gated``: b and bias have twice the columns of d, those of gates, which are activated, and those that these
    multiply, interleaved by eights (gemm_gated.h). Raises ValueError for what the templates do not support.
    """

    tile: Tile
    dtype: str
    out: str
    alignment: int
    b_rows: bool = False
    activation: str = "none"
    residual: bool = False
    fast_math: bool = False
    early: bool = False
    gated: bool = False
    narrow: int = 0

    def _wrong(self) -> str:
        if self.gated and (self.residual or self.b_rows or not has_gates(self.tile)):
            return "gates are columns of an sm90 tile of [n, k] with no residual"
        if self.early and (self.b_rows or isinstance(self.tile, Sm80Tile)):
            return "constant matrices are loaded early as [n, k] by TMA"
        if self.narrow and (isinstance(self.tile, Sm90Tile) or self.narrow not in (1, 2, 4)):
            return "results of sm80 kernels are accessed 1, 2 or 4 at a time"
        element, size = TYPES[self.dtype], ELEMENTS[self.dtype].size
        if self.out not in element.outputs:
            return f"{self.dtype} makes {', '.join(element.outputs)}"
        if isinstance(self.tile, Sm90Tile):
            if not element.sm90:
                return f"sm90 kernels do not multiply {self.dtype}"
            if self.alignment * size != 16:
                return "TMA takes 16 bytes"
            if not fits(self.tile, self.out):
                return f"the epilogue's tile has no layout of {self.out}"
            return "" if element.rows or not self.b_rows else f"b of {self.dtype} is [n, k]"
        # Asynchronous copies are of 4, 8 or 16 bytes.
        widths = (4, 8, 16) if self.tile.stages > 2 or size != 2 else (2, 4, 8, 16)
        return "" if self.alignment * size in widths else f"{self.alignment} elements cannot be copied"

    @property
    def out_alignment(self) -> int:
        """Elements per access of bias, c and d."""
        full = vector_of(self.out)
        return full if isinstance(self.tile, Sm90Tile) else min(self.narrow or self.alignment, full)

    def workspace_bytes(self, num_sms: int) -> int:
        """Return the size of a problem's workspace."""
        if not self.needs_workspace:
            return 0
        return STREAM_BLOCKS_PER_SM * num_sms * 2 * self.tile.shape[0] * self.tile.shape[1] * 4

    @property
    def needs_workspace(self) -> bool:
        """Whether its blocks share results by a workspace, and count arrivals in the session's counters."""
        return self.tile.slices != 1

    @property
    def form(self) -> str:
        """The functor of the activation."""
        return self.functor(self.out)

    @property
    def name(self) -> str:
        """A C identifier that encodes everything that the kernel's code depends on."""
        types = ELEMENTS[self.dtype].short, ELEMENTS[self.out].short
        parts = ["pk_gemm", self.tile.family, *types, "tt" if self.b_rows else "tn", self.tile.name]
        parts += [f"a{self.alignment}"] if isinstance(self.tile, Sm80Tile) else []
        parts += [f"d{self.narrow}"] if self.narrow else []
        return "_".join(
            [*parts, self.form_name] + ["c"] * self.residual + ["early"] * self.early + ["gated"] * self.gated
        )

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Render the kernel's source file for these architectures."""
        element = ELEMENTS[self.dtype]
        return self.render(
            f"gemm/gemm_{self.tile.family}",
            archs,
            element=element.cutlass,
            element_d=ELEMENTS[self.out].cutlass,
            accumulator="float",
            compute="float",
            b_rows=self.b_rows,
            early=self.early,
            gated=self.gated,
            ends="Ends" if self.gated else "Epilogue",
            result_columns=self.tile.shape[1] // 2,
            alignment=self.alignment,
            alignment_d=self.out_alignment,
            instruction=(16, 8, 32 // element.size),
            math=TYPES[self.dtype].math,
        )

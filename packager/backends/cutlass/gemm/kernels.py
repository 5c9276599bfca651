"""GEMM kernels: d = act(alpha * a b + bias + beta * c), from configurations of CUTLASS's templates to their source.

A configuration fixes types, layouts, tile and epilogue; M, N, K, batch and strides are the problem's. ``sm90`` kernels
use TMA and warp-group instructions and need 16-byte alignment; ``sm80`` kernels run on every GPU from there on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packager.backends.cutlass.core.kernel_source import KernelSource
from packager.codegen.templates import MARK, render

SM90_MEGABYTES = 3500
SM80_MEGABYTES = 900
# As kBarrierBytes and kStreamBlocksPerSm of templates/cutlass/gemm/gemm.h.
BARRIER_BYTES = 1 << 16
STREAM_BLOCKS_PER_SM = 2


@dataclass(frozen=True)
class ElementType:
    """A type of a and b: what CUTLASS calls it, its short name, its size in bytes, and the types that d may have.

    ``instruction`` and ``math`` are how sm80 kernels multiply it. ``sm90`` says whether sm90 kernels do, and ``rows``
    whether they do where b is [k, n].
    """

    cutlass: str
    short: str
    size: int
    outputs: tuple[str, ...]
    instruction: tuple[int, int, int]
    math: str = "OpMultiplyAdd"
    sm90: bool = True
    rows: bool = False


# float32 is multiplied as three products of rounded parts, about as exact as one; tfloat32 is float32 in memory, and
# rounded where it is multiplied.
TYPES = {
    "float16": ElementType("cutlass::half_t", "f16", 2, ("float16", "float32"), (16, 8, 16), rows=True),
    "bfloat16": ElementType("cutlass::bfloat16_t", "bf16", 2, ("bfloat16", "float32"), (16, 8, 16), rows=True),
    "float32": ElementType("float", "f32", 4, ("float32",), (16, 8, 8), "OpMultiplyAddFastF32", sm90=False),
    "tfloat32": ElementType("float", "tf32", 4, ("float32",), (16, 8, 8)),
}
# Types of bias, c and d: CUTLASS's name, the short name and the size. Those below float32 are of quantized kernels.
OUTPUTS = {
    "float16": ("cutlass::half_t", "f16", 2),
    "bfloat16": ("cutlass::bfloat16_t", "bf16", 2),
    "float32": ("float", "f32", 4),
    "int32": ("int32_t", "s32", 4),
    "int8": ("int8_t", "s8", 1),
    "uint8": ("uint8_t", "u8", 1),
    "float8_e4m3fn": ("cutlass::float_e4m3_t", "e4m3", 1),
}
# Each activation, and whether it has forms of other accuracy (templates/cutlass/common/activations.h).
ACTIVATIONS = {
    "none": False,
    "relu": False,
    "gelu": True,
    "gelu_tanh": True,
    "sigmoid": True,
    "silu": True,
    "hardswish": False,
}
IDENTITY = "cutlass::epilogue::thread::Identity"
# CUTLASS's schedules of the main loop and of the epilogue.
SCHEDULES = {
    "plain": ("KernelTmaWarpSpecialized", "TmaWarpSpecialized"),
    "pingpong": ("KernelTmaWarpSpecializedPingpong", "TmaWarpSpecialized"),
    "cooperative": ("KernelTmaWarpSpecializedCooperative", "TmaWarpSpecializedCooperative"),
}


@dataclass(frozen=True)
class Sm90Tile:
    """How an sm90 kernel divides the work: ``shape`` is (M, N, K) of a block, ``cluster`` blocks along M and N.

    ``stages`` 0 is as many as fit. ``epilogue`` is the epilogue's tile, None what CUTLASS takes. ``blocks`` is how many
    an SM holds at least, where its shared memory allows. A ``prefetch`` kernel fetches b into the L2 cache before it
    waits for earlier kernels: worth it where those leave room on the SMs. A ``swapped`` kernel solves the transposed
    problem, for few rows: its shape is (N, M, K) of the problem.
    """

    shape: tuple[int, int, int]
    cluster: tuple[int, int] = (1, 1)
    schedule: str = "pingpong"
    stages: int = 0
    epilogue: tuple[int, int] | None = None
    blocks: int = 1
    prefetch: bool = False
    swapped: bool = False

    family = "sm90"

    @property
    def name(self) -> str:
        """What it is, as a part of a kernel's name."""
        parts = ["x".join(map(str, self.shape)), f"c{self.cluster[0]}x{self.cluster[1]}", self.schedule]
        parts += [f"s{self.stages}"] if self.stages else []
        parts += [f"e{self.epilogue[0]}x{self.epilogue[1]}"] if self.epilogue else []
        parts += [f"b{self.blocks}"] if self.blocks > 1 else []
        return "_".join(parts + ["p"] * self.prefetch + ["t"] * self.swapped)


@dataclass(frozen=True)
class Sm80Tile:
    """How an sm80 kernel divides the work: ``shape`` is (M, N, K) of a block, ``warp`` (M, N) of a warp.

    ``slices`` blocks share a tile, each with a part of K; 0 is stream-K, as many as fill the GPU. Unless it is 1,
    problems bring a workspace; batches are not split.
    """

    shape: tuple[int, int, int]
    warp: tuple[int, int]
    stages: int
    slices: int = 1

    family = "sm80"

    @property
    def name(self) -> str:
        """What it is, as a part of a kernel's name."""
        shape, warp = "x".join(map(str, self.shape)), "x".join(map(str, self.warp))
        return "_".join([shape, f"w{warp}", f"s{self.stages}"] + [f"k{self.slices}"] * (self.slices != 1))


Tile = Sm90Tile | Sm80Tile


def functor(activation: str, result: str, *, fast_math: bool) -> str:
    """Return the C++ functor of an activation, of CUTLASS or of templates/cutlass/common/activations.h.

    ``result`` is the type of what it is applied to; where that is float32 the functor is a precise one.
    """
    if activation == "none":
        return IDENTITY
    accuracy = ""
    if ACTIVATIONS[activation]:
        accuracy = "_fast" if fast_math else "_precise" if result in ("float32", "tfloat32") else ""
    return f"pk::{activation}{accuracy}"


def functor_mark(form: str) -> str:
    """Return a functor as a part of a kernel's name."""
    return "none" if form == IDENTITY else form.removeprefix("pk::")


def fits(tile: Tile, out: str) -> bool:
    """Return whether rows of the epilogue's tile are made of whole rows of shared memory, of 128 bytes or less."""
    if isinstance(tile, Sm80Tile) or tile.epilogue is None:
        return True
    row = tile.epilogue[1] * OUTPUTS[out][2]
    return row <= 128 or row % 128 == 0


@dataclass(frozen=True)
class GemmConfig:
    """A GEMM kernel. ``dtype`` (a key of TYPES) is of a and b, ``out`` of bias, c and d.

    ``b_rows`` says that b is [k, n], else it is [n, k]. ``alignment`` is how many elements of a and b are accessed at a
    time: K, leading dimensions and strides between matrices are multiples of it, and so is N where b is [k, n];
    pointers are aligned alike. Bias, c and d are accessed ``out_alignment`` elements at a time. ``residual`` is whether
    c is read. Raises ValueError for what the templates cannot be.
    """

    tile: Tile
    dtype: str
    out: str
    alignment: int
    b_rows: bool = False
    activation: str = "none"
    residual: bool = False
    fast_math: bool = False

    def __post_init__(self) -> None:
        wrong = self._wrong()
        if wrong:
            raise ValueError(f"no GEMM kernel {self.name}: {wrong}")

    def _wrong(self) -> str:
        element = TYPES[self.dtype]
        if self.out not in element.outputs:
            return f"{self.dtype} makes {', '.join(element.outputs)}"
        if isinstance(self.tile, Sm90Tile):
            if not element.sm90:
                return f"sm90 kernels do not multiply {self.dtype}"
            if self.alignment * element.size != 16:
                return "TMA takes 16 bytes"
            if not fits(self.tile, self.out):
                return f"the epilogue's tile has no layout of {self.out}"
            return "" if element.rows or not self.b_rows else f"b of {self.dtype} is [n, k]"
        # Asynchronous copies are of 4, 8 or 16 bytes.
        widths = (4, 8, 16) if self.tile.stages > 2 or element.size != 2 else (2, 4, 8, 16)
        return "" if self.alignment * element.size in widths else f"{self.alignment} elements cannot be copied"

    @property
    def out_alignment(self) -> int:
        """How many elements of bias, c and d are accessed at a time."""
        full = 16 // OUTPUTS[self.out][2]
        return full if isinstance(self.tile, Sm90Tile) else min(self.alignment, full)

    def workspace_bytes(self, num_sms: int) -> int:
        """How large a problem's workspace is; its first ``barrier_bytes`` are zero before the first launch.

        Launches leave them zero, so that kernels share a workspace if they run one after the other.
        """
        if not self.barrier_bytes:
            return 0
        return BARRIER_BYTES + STREAM_BLOCKS_PER_SM * num_sms * 2 * self.tile.shape[0] * self.tile.shape[1] * 4

    @property
    def barrier_bytes(self) -> int:
        """How much of a problem's workspace is zero before a launch."""
        return BARRIER_BYTES if isinstance(self.tile, Sm80Tile) and self.tile.slices != 1 else 0

    @property
    def form(self) -> str:
        """The activation's functor."""
        return functor(self.activation, self.out, fast_math=self.fast_math)

    @property
    def name(self) -> str:
        """A C identifier that says all that the kernel's code depends on."""
        types = TYPES[self.dtype].short, OUTPUTS[self.out][1]
        parts = ["pk_gemm", self.tile.family, *types, "tt" if self.b_rows else "tn", self.tile.name]
        parts += [f"a{self.alignment}"] if isinstance(self.tile, Sm80Tile) else []
        return "_".join([*parts, functor_mark(self.form)] + ["c"] * self.residual)

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Return the kernel's file, for these architectures."""
        element = TYPES[self.dtype]
        values: dict[str, Any] = {
            "mark": MARK,
            "name": self.name,
            "element": element.cutlass,
            "element_d": OUTPUTS[self.out][0],
            "accumulator": "float",
            "compute": "float",
            "tile": self.tile.shape,
            "stages": self.tile.stages,
            "b_rows": self.b_rows,
            "activation": self.form,
            "residual": self.residual,
        }
        if isinstance(self.tile, Sm90Tile):
            schedule, epilogue_schedule = SCHEDULES[self.tile.schedule]
            values |= {
                "cluster": self.tile.cluster,
                "schedule": schedule,
                "epilogue_schedule": epilogue_schedule,
                "epilogue_tile": self.tile.epilogue,
                "blocks": self.tile.blocks,
                "prefetch": self.tile.prefetch,
                "swapped": self.tile.swapped,
            }
            return KernelSource(self.name, render("cutlass/gemm/gemm_sm90.cu.j2", **values), archs, SM90_MEGABYTES)
        values |= {
            "warp": self.tile.warp,
            "slices": self.tile.slices,
            "alignment": self.alignment,
            "alignment_d": self.out_alignment,
            "instruction": element.instruction,
            "math": element.math,
        }
        return KernelSource(self.name, render("cutlass/gemm/gemm_sm80.cu.j2", **values), archs, SM80_MEGABYTES)

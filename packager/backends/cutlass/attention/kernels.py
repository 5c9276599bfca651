"""Attention kernels: their configurations, what each supports, and the portfolio.

Two families solve ``pk_attention_t``: sm90 is built from the collectives of CUTLASS's example 88 (TMA and warp-group
MMA), sm80, for GPUs from there on, from example 41. For few rows of queries both have kernels that split the keys, and
for short sequences kernels whose warps have all of them.
Batch, heads, queries, keys, strides, the scale and the number of keys of each batch are arguments.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from packager.backends.cutlass.core.element_types import ELEMENTS, WARP_TYPES, vector_of
from packager.backends.cutlass.core.kernel import KernelConfig, KernelSource
from packager.backends.cutlass.gemm.tilings import Family
from packager.bundle.dtypes import FLOATS, HALVES
from packager.codegen.templates import MARK, render

# The bias of the scores: none, a number per batch and key, or any [batch or 1, heads or 1, queries or 1, keys].
Bias = Literal["none", "keys", "dense"]
# Of sm90: blocks of one warp group that loads and computes; of two that compute and one that loads; those, persistent.
Schedule = Literal["tma", "cooperative", "pingpong"]

SCHEDULES: dict[Schedule, str] = {"tma": "Tma", "cooperative": "Cooperative", "pingpong": "Pingpong"}
BIASES: dict[Bias, str] = {"none": "kNone", "keys": "kKeys", "dense": "kDense"}
# Head dims of sm90 kernels; others are padded to the next larger one with zeros.
SM90_DEPTHS = (32, 48, 64, 96, 128, 160, 192, 256)
SM90_MEGABYTES = 4600
SM80_MEGABYTES = 600
SPLIT_MEGABYTES = 300
# As in attention_split_problem.h: the largest head dim of a kernel, rows of a block, parts that share a workspace.
SPLIT_DEPTHS = (64, 128, 256)
SPLIT_ROWS, SPLIT_PARTS = 16, 768
# Head dims of a kernel for short sequences, and keys, which a warp holds the scores of.
WARP_DEPTHS, WARP_KEYS = (32, 64, 128), (16, 32, 64)
CLUSTER = 8


@dataclass(frozen=True)
class AttentionForm:
    """What the choice of a kernel depends on.

    ``alignment`` divides the offsets and all strides of q, k, v and o, in elements; ``bias_alignment`` those of the
    bias. ``capped`` scores become softcap * tanh(scores / softcap) before the bias is added (Gemma Team 2024, "Gemma
    2: Improving Open Language Models at a Practical Size").
    """

    dtype: str
    depth: int
    value_depth: int
    causal: bool
    alignment: int
    bias: Bias = "none"
    bias_alignment: int = 1
    capped: bool = False


@dataclass(frozen=True)
class _Kernel(KernelConfig):
    """What both families have in common. ``queries``, ``keys`` and ``depth`` are the tile."""

    dtype: str
    queries: int
    keys: int
    depth: int
    causal: bool

    family: ClassVar[Family]

    @abstractmethod
    def takes(self, form: AttentionForm) -> bool:
        """Whether the kernel supports attentions of a form."""

    def _name(self, variant: str, bias: str) -> str:
        parts = [f"pk_attention_{self.family}", ELEMENTS[self.dtype].short, f"{self.queries}x{self.keys}x{self.depth}"]
        return "_".join([*parts, *filter(None, (variant, "causal" * self.causal, bias))])

    def _render(self, archs: tuple[str, ...], megabytes: int, example: str, **own: Any) -> KernelSource:
        values = {**vars(self), "mark": MARK, "name": self.name, "element": ELEMENTS[self.dtype].cutlass, **own}
        text = render(f"cutlass/attention/attention_{self.family}.cu.j2", **values)
        return KernelSource(self.name, text, archs, megabytes, folders=(f"examples/{example}",))


@dataclass(frozen=True)
class Sm90Attention(_Kernel):
    """A kernel for sm_90a, which reads and writes 16 bytes at a time by TMA.

    ``blocks`` is how many blocks of a "tma" kernel share the registers of an SM.
    """

    bias: Bias
    schedule: Schedule
    blocks: int = 2
    capped: bool = False

    family = "sm90"

    @property
    def name(self) -> str:
        """A C identifier that encodes everything that the kernel's code depends on."""
        variant = f"tma{self.blocks}" if self.schedule == "tma" else self.schedule
        bias = f"bias_{self.bias}" if self.bias != "none" else ""
        return self._name(variant, "_".join(filter(None, (bias, "capped" * self.capped))))

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Render the kernel's source file for these architectures."""
        options = [("kBlocksPerSM", self.blocks)] if self.schedule == "tma" else []
        own = {"bias": BIASES[self.bias], "schedule": SCHEDULES[self.schedule], "options": options}
        return self._render(archs, SM90_MEGABYTES, "88_hopper_fmha", **own)

    def takes(self, form: AttentionForm) -> bool:
        """Whether the kernel supports attentions of a form."""
        same = (form.dtype, form.causal, form.capped) == (self.dtype, self.causal, self.capped)
        fits = form.depth == form.value_depth <= self.depth and form.depth % 8 == form.alignment % 8 == 0
        return same and fits and (form.bias == self.bias or (form.bias, self.bias) == ("keys", "dense"))


@dataclass(frozen=True)
class Sm80Attention(_Kernel):
    """A kernel for GPUs from sm_80 on; ``depth`` is the maximum of both head dims.

    ``aligned`` kernels read 16 bytes at a time, the others, of 16-bit types, 8. A bias is always read 16 at a time.
    """

    bias: bool
    aligned: bool = True

    family = "sm80"

    @property
    def name(self) -> str:
        """A C identifier that encodes everything that the kernel's code depends on."""
        return self._name("" if self.aligned else "align4", "bias" * self.bias)

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Render the kernel's source file for these architectures."""
        return self._render(archs, SM80_MEGABYTES, "41_fused_multi_head_attention")

    def takes(self, form: AttentionForm) -> bool:
        """Whether the kernel supports attentions of a form."""
        same = (form.dtype, form.causal, form.capped) == (self.dtype, self.causal, False)
        vector = vector_of(self.dtype)
        access = vector if self.aligned else 4
        depths = (form.depth, form.value_depth)
        fits = max(depths) <= self.depth and all(number % access == 0 for number in (*depths, form.alignment))
        return same and fits and (form.bias == "none" or (self.bias and form.bias_alignment % vector == 0))


@dataclass(frozen=True)
class SplitAttention(KernelConfig):
    """A kernel for few rows of queries, whose blocks share the keys; ``depth`` is the maximum of both head dims.

    The copy engine of sm_90a fills the tiles of ``tiled`` kernels. ``cluster`` blocks of such exchange their results in
    shared memory before they do so through a workspace; with 0 all do.
    """

    dtype: str
    depth: int
    causal: bool
    tiled: bool = False
    cluster: int = 0

    def __post_init__(self) -> None:
        if self.cluster and not self.tiled:
            raise ValueError("clusters are of tiled kernels")

    @property
    def name(self) -> str:
        """A C identifier that encodes everything that the kernel's code depends on."""
        own = ("causal" * self.causal, "tiled" * self.tiled, f"c{self.cluster}" if self.cluster else "")
        return "_".join(["pk_attention_split", ELEMENTS[self.dtype].short, str(self.depth), *filter(None, own)])

    @property
    def warps(self) -> int:
        """How many a block has, as ``split_warps`` of attention_split_problem.h says."""
        return (4 if self.depth <= 128 else 2) * (2 if self.tiled else 1)

    @property
    def step(self) -> int:
        """How many keys a warp has at a time, as ``split_step`` there says."""
        return 32 if self.depth <= 64 else 16

    @property
    def needs_workspace(self) -> bool:
        """Whether its blocks share results by a workspace, and count arrivals in the session's counters."""
        return True

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Render the kernel's source file for these architectures."""
        values = {**vars(self), "mark": MARK, "name": self.name, "element": WARP_TYPES[self.dtype]}
        text = render("cutlass/attention/attention_split.cu.j2", **values)
        return KernelSource(self.name, text, archs, SPLIT_MEGABYTES)

    def takes(self, form: AttentionForm) -> bool:
        """Whether the kernel supports attentions of a form."""
        depths = (form.depth, form.value_depth)
        fits = max(depths) <= self.depth and all(number % 8 == 0 for number in (*depths, form.alignment))
        return fits and (form.dtype, form.causal) == (self.dtype, self.causal)


@dataclass(frozen=True)
class WarpAttention(KernelConfig):
    """A kernel for short sequences, whose warps have 16 rows of queries and all keys: up to ``keys``.

    ``depth`` is the maximum of both head dims.
    """

    dtype: str
    depth: int
    keys: int
    causal: bool

    @property
    def name(self) -> str:
        """A C identifier that encodes everything that the kernel's code depends on."""
        parts = ["pk_attention_warps", ELEMENTS[self.dtype].short, f"{self.keys}x{self.depth}"]
        return "_".join([*parts, *filter(None, ("causal" * self.causal,))])

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Render the kernel's source file for these architectures."""
        values = {**vars(self), "mark": MARK, "name": self.name, "element": WARP_TYPES[self.dtype]}
        return KernelSource(
            self.name, render("cutlass/attention/attention_warps.cu.j2", **values), archs, SPLIT_MEGABYTES
        )


AttentionKernel = Sm90Attention | Sm80Attention | SplitAttention


def warp_kernels(form: AttentionForm, keys: int) -> tuple[WarpAttention, ...]:
    """Return the kernel for so many keys, if they are few; may be empty."""
    depths = (form.depth, form.value_depth)
    depth = next((depth for depth in WARP_DEPTHS if max(depths) <= depth), None)
    most = next((most for most in WARP_KEYS if keys <= most), None)
    fits = form.dtype in HALVES and all(number % 8 == 0 for number in (*depths, form.alignment))
    return (WarpAttention(form.dtype, depth, most, form.causal),) if fits and depth and most else ()


def split_kernels(form: AttentionForm, *, tiled: bool) -> tuple[SplitAttention, ...]:
    """Return the kernels for few rows, of sm_90a those of clusters first, or those for others; may be empty."""
    depth = next((depth for depth in SPLIT_DEPTHS if max(form.depth, form.value_depth) <= depth), None)
    if form.dtype not in HALVES or depth is None:
        return ()
    made = (SplitAttention(form.dtype, depth, form.causal, tiled, cluster) for cluster in (CLUSTER, 0)[not tiled :])
    return tuple(kernel for kernel in made if kernel.takes(form))


def split_workspace(rows: int, value_depth: int) -> int:
    """Return the bytes of a workspace for partial results of ``rows`` rows a tile: their values and two floats."""
    rows = min(rows, SPLIT_ROWS)
    return SPLIT_PARTS * 4 * (rows * value_depth + 2 * (rows + 1))


def portfolio(family: Family, form: AttentionForm) -> tuple[AttentionKernel, ...]:
    """Return the kernels that support a form, the one for short sequences first; may be empty."""
    head_dim, dtype, causal = max(form.depth, form.value_depth), form.dtype, form.causal
    made: tuple[AttentionKernel, ...] = ()
    if family == "sm90":
        depth = next((depth for depth in SM90_DEPTHS if head_dim <= depth), None)
        if dtype not in HALVES or depth is None:
            return ()
        if depth > 128:  # shared memory has room for no larger tiles; those of 64 rows take a tenth to a half longer
            made = (Sm90Attention(dtype, 128, 64, depth, causal, form.bias, "cooperative", capped=form.capped),)
        else:
            # The tile with most blocks per SM: shared memory limits large heads, registers the others.
            keys, blocks = (128, 3 if form.bias != "dense" else 2) if depth <= 64 else (64, 2)
            made = (
                Sm90Attention(dtype, 64, keys, depth, causal, form.bias, "tma", blocks, form.capped),
                Sm90Attention(dtype, 128, 128, depth, causal, form.bias, "pingpong", capped=form.capped),
            )
    elif dtype in FLOATS and head_dim <= 128:
        tile = (64, 64, 64) if head_dim <= 64 else (64, 128, 128)
        aligned = dtype == "float32" or head_dim % 8 == 0
        made = (Sm80Attention(dtype, *tile, causal, form.bias != "none", aligned),)
    return tuple(kernel for kernel in made if kernel.takes(form))

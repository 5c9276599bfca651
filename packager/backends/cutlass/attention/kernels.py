"""The attention kernels of the cutlass backend: configurations, what each can take, and which are worth having.

Two forms solve ``pk_attention_t``. That for sm_90a is built of the collectives of CUTLASS's example 88 (TMA and
warpgroup MMA), the other, for GPUs from sm_80 on, of example 41. Batch, heads, queries, keys, strides, the scale and
the number of keys of each batch are run-time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from packager.backends.cutlass.core.kernel_source import KernelSource
from packager.codegen.templates import MARK, render

ELEMENTS = {"float16": "cutlass::half_t", "bfloat16": "cutlass::bfloat16_t", "float32": "float"}
SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}

Family = Literal["sm90", "sm80"]
# What is added to scores: nothing, a number per batch and key, or any [batch or 1, heads or 1, queries or 1, keys].
Bias = Literal["none", "keys", "dense"]
# Of sm_90a: blocks of one warpgroup that loads and computes; of two that compute and one that loads; those, persistent.
Schedule = Literal["tma", "cooperative", "pingpong"]

SCHEDULES: dict[Schedule, str] = {"tma": "Tma", "cooperative": "Cooperative", "pingpong": "Pingpong"}
BIASES: dict[Bias, str] = {"none": "kNone", "keys": "kKeys", "dense": "kDense"}
# Head dims that the kernels of sm_90a are made for; others take the next larger one, the rest of the tile is zeros.
SM90_DEPTHS = (32, 64, 96, 128)
SM90_MEGABYTES = 4600
SM80_MEGABYTES = 600


@dataclass(frozen=True)
class AttentionForm:
    """What is known of an attention when its kernel is chosen.

    ``alignment`` is what divides the offset and all strides of q, k, v and o, in elements; ``bias_alignment`` the same
    of the bias.
    """

    dtype: str
    depth: int
    value_depth: int
    causal: bool
    alignment: int
    bias: Bias = "none"
    bias_alignment: int = 1


@dataclass(frozen=True)
class _Kernel(ABC):
    """What the kernels of both families have. ``queries`` and ``keys`` are the tile."""

    dtype: str
    queries: int
    keys: int
    depth: int
    causal: bool

    family: ClassVar[Family]

    @property
    def name(self) -> str:
        """A C identifier that says all that the code depends on."""
        tile = f"{self.queries}x{self.keys}x{self.depth}"
        parts = [f"pk_attention_{self.family}", SHORT[self.dtype], tile, self._variant]
        return "_".join([part for part in (*parts, "causal" * self.causal, self._bias_mark) if part])

    @property
    def barrier_bytes(self) -> int:
        """How much of a problem's workspace is zero before a launch: there is none."""
        return 0

    def takes(self, form: AttentionForm) -> bool:
        """Whether the kernel solves problems of a form."""
        is_alike = form.dtype == self.dtype and form.causal == self.causal
        return is_alike and self._takes_bias(form) and self._takes_heads(form)

    def _render(self, **own: Any) -> str:
        return render(
            f"cutlass/attention/attention_{self.family}.cu.j2",
            mark=MARK,
            name=self.name,
            element=ELEMENTS[self.dtype],
            queries=self.queries,
            keys=self.keys,
            depth=self.depth,
            causal=self.causal,
            **own,
        )

    @property
    @abstractmethod
    def _variant(self) -> str:
        """What the family alone knows, as a part of the name; empty for what is usual."""

    @property
    @abstractmethod
    def _bias_mark(self) -> str:
        """The bias as a part of the name, empty for none."""

    @abstractmethod
    def _takes_bias(self, form: AttentionForm) -> bool: ...

    @abstractmethod
    def _takes_heads(self, form: AttentionForm) -> bool:
        """Whether depths and alignment are the kernel's."""


@dataclass(frozen=True)
class Sm90Attention(_Kernel):
    """A kernel for sm_90a. ``queries``, ``keys`` and ``depth`` are its tile.

    ``blocks`` of a "tma" kernel fit a multiprocessor's registers. TMA reads and writes 16 bytes at a time.
    """

    bias: Bias
    schedule: Schedule
    blocks: int = 2

    family = "sm90"

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Return the kernel's file."""
        options = [("kBlocksPerSM", self.blocks)] if self.schedule == "tma" else []
        text = self._render(bias=BIASES[self.bias], schedule=SCHEDULES[self.schedule], options=options)
        return KernelSource(self.name, text, archs, SM90_MEGABYTES, folders=("examples/88_hopper_fmha",))

    @property
    def _variant(self) -> str:
        return f"tma{self.blocks}" if self.schedule == "tma" else self.schedule

    @property
    def _bias_mark(self) -> str:
        return f"bias_{self.bias}" if self.bias != "none" else ""

    def _takes_bias(self, form: AttentionForm) -> bool:
        return form.bias == self.bias or (form.bias, self.bias) == ("keys", "dense")

    def _takes_heads(self, form: AttentionForm) -> bool:
        fits = form.depth == form.value_depth <= self.depth
        return fits and form.depth % 8 == 0 and form.alignment % 8 == 0


@dataclass(frozen=True)
class Sm80Attention(_Kernel):
    """A kernel for GPUs from sm_80 on. ``queries`` and ``keys`` are its tile, ``depth`` is the most that it takes.

    ``aligned`` kernels read 16 bytes at a time, the others, of 16-bit types, 8. A bias is always read 16 at a time.
    """

    bias: bool
    aligned: bool = True

    family = "sm80"

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Return the kernel's file."""
        text = self._render(bias=self.bias, aligned=self.aligned)
        return KernelSource(self.name, text, archs, SM80_MEGABYTES, folders=("examples/41_fused_multi_head_attention",))

    @property
    def alignment(self) -> int:
        """How many elements the kernel reads at a time."""
        return 4 if self.dtype == "float32" or not self.aligned else 8

    @property
    def _variant(self) -> str:
        return "" if self.aligned else "align4"

    @property
    def _bias_mark(self) -> str:
        return "bias" if self.bias else ""

    def _takes_bias(self, form: AttentionForm) -> bool:
        vector = 4 if self.dtype == "float32" else 8
        return form.bias == "none" or (self.bias and form.bias_alignment % vector == 0)

    def _takes_heads(self, form: AttentionForm) -> bool:
        numbers = (form.depth, form.value_depth, form.alignment)
        fits = max(form.depth, form.value_depth) <= self.depth
        return fits and all(number % self.alignment == 0 for number in numbers)


AttentionKernel = Sm90Attention | Sm80Attention


def portfolio(
    family: Family, dtype: str, head_dim: int, causal: bool, bias: Bias = "none"
) -> tuple[AttentionKernel, ...]:
    """Return the kernels worth having for a head dim, the one for short sequences first; empty where there is none."""
    if family == "sm90":
        depth = next((depth for depth in SM90_DEPTHS if head_dim <= depth), None)
        if dtype not in ("float16", "bfloat16") or depth is None or head_dim % 8 != 0:
            return ()
        # What keeps most blocks on a multiprocessor: shared memory limits large heads, registers the others.
        keys, blocks = (128, 3 if bias != "dense" else 2) if depth <= 64 else (64, 2)
        return (
            Sm90Attention(dtype, 64, keys, depth, causal, bias, "tma", blocks),
            Sm90Attention(dtype, 128, 128, depth, causal, bias, "pingpong"),
        )
    if dtype not in ELEMENTS or head_dim > 128 or head_dim % 4 != 0:
        return ()
    tile = (64, 64, 64) if head_dim <= 64 else (64, 128, 128)
    aligned = dtype == "float32" or head_dim % 8 == 0
    return (Sm80Attention(dtype, *tile, causal, bias != "none", aligned),)

"""Plans transposed convolutions by output phases (sub-pixel decomposition, Shi et al., arXiv:1609.07009).

Along an axis of stride s, input i and tap k meet at output ``i * s + k * dilation - padding``. Outputs whose indices
have one residue modulo s, a *phase*, read one set of taps: they are an ordinary convolution of the input, of stride 1.
Phases that read the same stretch of the input can be computed together, as further output channels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

# The maximum of convolutions that one transposed convolution becomes.
MOST_PARTS = 16
# That maximum for depthwise ones of lines and planes: a phase is fast, but not several filters of a channel.
MOST_DEPTHWISE_PARTS = 64
# Estimates of time, in multiply-adds of a product: moving an element, and a call.
MOVE = 16
CALL = 20_000
# Output channels are computed by whole vectors; several filters per channel of a depthwise convolution are not.
VECTOR = 16
SCALAR = 8
# Few columns of a product are dot products, which cost so much more, and so much for adding up their lanes.
DOTS, ADDED_UP = 1.2, 48
# Columns that stay together where a product writes its columns to places of the image, at no cost.
TOGETHER = 8
# The assumed extent of a symbolic axis.
TYPICAL = 64


@dataclass(frozen=True)
class Axis:
    """An axis of a transposed convolution: input ``extent`` (None if symbolic), output ``stride * extent + surplus``.

    ``padding`` is cropped from the front of the full output.
    """

    kernel: int
    stride: int
    dilation: int
    padding: int
    surplus: int
    extent: int | None


@dataclass(frozen=True)
class Part:
    """A convolution along an axis, of stride 1, that computes some phases.

    ``taps`` has a row for each phase: the kernel's taps in the order of the input, None for zeros between them. The
    input is padded by ``padding`` (front, back); negative numbers crop it.
    """

    taps: tuple[tuple[int | None, ...], ...]
    dilation: int
    padding: tuple[int, int]

    @property
    def window(self) -> int:
        """The number of taps."""
        return len(self.taps[0])


@dataclass(frozen=True)
class AxisPlan:
    """The parts of an axis, each of ``extent + windows`` outputs: interleaved, all but ``crop`` at the front is used.

    ``is_exact`` says whether nothing is left over at the back.
    """

    parts: tuple[Part, ...]
    windows: int
    crop: int
    is_exact: bool

    @property
    def phases(self) -> int:
        """The number of phases of each part."""
        return len(self.parts[0].taps)

    @property
    def is_cropped(self) -> bool:
        """Whether interleaved outputs are more than the result."""
        return self.crop > 0 or not self.is_exact


@dataclass(frozen=True)
class Channels:
    """The channels of a convolution: ``inputs`` and ``outputs`` of each of the ``groups``."""

    groups: int
    inputs: int
    outputs: int


def plan_axes(axes: Sequence[Axis], channels: Channels, most_parts: int | None = None) -> tuple[AxisPlan, ...] | None:
    """Return the plans of all axes that are estimated to be the fastest together; None if there is none.

    They have at most ``most_parts`` parts in all, if given.
    """
    options = itertools.product(*(tuple(_options(axis)) for axis in axes))
    is_depthwise = channels.groups > 1 and channels.inputs == 1 and len(axes) < 3
    most = most_parts or (MOST_DEPTHWISE_PARTS if is_depthwise else MOST_PARTS)
    fitting = [plans for plans in options if math.prod(len(plan.parts) for plan in plans) <= most]
    return min(fitting, key=lambda plans: cost_of(axes, plans, channels), default=None)


def _options(axis: Axis) -> Iterator[AxisPlan]:
    """Yield the ways to compute an axis: all phases in one part, or a part for each."""
    phases = range(axis.stride)
    together = [plan for crop in phases if (plan := _plan(axis, crop, [phases])) is not None]
    if together:
        yield min(together, key=lambda plan: plan.parts[0].window * ((axis.extent or TYPICAL) + plan.windows))
    apart = _plan(axis, 0, [[phase] for phase in phases]) if 1 < axis.stride <= MOST_PARTS else None
    if apart is not None:
        yield apart


def _plan(axis: Axis, crop: int, groups: Sequence[Iterable[int]]) -> AxisPlan | None:
    """Return the plan that crops ``crop`` outputs at the front; None if a part would read nothing of the input."""
    windows = -(-(axis.surplus + crop) // axis.stride)
    parts = tuple(_part(axis, crop, windows, group) for group in groups)
    cropped = max(sum(-min(side, 0) for side in part.padding) for part in parts)
    if cropped and (axis.extent is None or axis.extent <= cropped):
        return None
    return AxisPlan(parts, windows, crop, (axis.surplus + crop) % axis.stride == 0)


def _part(axis: Axis, crop: int, windows: int, phases: Iterable[int]) -> Part:
    """Return the convolution of these phases: its window q reads the inputs q + offset for each tap."""
    taps: list[dict[int, int]] = []
    for phase in phases:
        reach = phase - crop + axis.padding
        meeting = [k for k in range(axis.kernel) if (reach - k * axis.dilation) % axis.stride == 0]
        taps.append({(reach - k * axis.dilation) // axis.stride: k for k in meeting})
    offsets = sorted({offset for row in taps for offset in row}) or [0]
    first, last = offsets[0], offsets[-1]
    step = math.gcd(*(offset - first for offset in offsets)) or 1
    rows = tuple(tuple(row.get(offset) for offset in range(first, last + 1, step)) for row in taps)
    return Part(rows, step, (-first, windows + last))


def cost_of(axes: Sequence[Axis], plans: Sequence[AxisPlan], channels: Channels) -> float:
    """Estimate the time of a batch of one, in multiply-adds."""
    rows = math.prod((axis.extent or TYPICAL) + plan.windows for axis, plan in zip(axes, plans, strict=True))
    outputs = rows * math.prod(axis.stride for axis in axes) * channels.groups * channels.outputs
    columns = math.prod(plan.phases for plan in plans) * channels.outputs
    work = 0.0
    for parts in itertools.product(*(plan.parts for plan in plans)):
        depth = channels.inputs * math.prod(part.window for part in parts)
        work += CALL + rows * channels.groups * _row_cost(columns, depth, channels)
    return work + MOVE * outputs * _moves(plans, channels)


def _row_cost(columns: int, depth: int, channels: Channels) -> float:
    """Estimate the time of a row of the product of a group."""
    if channels.groups > 1 and channels.inputs == 1:
        return depth * columns * (1 if columns == 1 else SCALAR)
    padded = -(-columns // VECTOR) * VECTOR * depth
    return min(padded, columns * (DOTS * depth + ADDED_UP)) if channels.groups == 1 and columns < VECTOR else padded


def _moves(plans: Sequence[AxisPlan], channels: Channels) -> int:
    """Return how many times the outputs are moved, channels last: the phases of the last axis are in order there."""
    spread = any(plan.phases > 1 for plan in plans[:-1]) or (plans[-1].phases > 1 and channels.groups > 1)
    piece = channels.outputs * (plans[-1].phases if channels.groups == 1 else 1)
    together = spread and piece < TOGETHER
    apart = sum(len(plan.parts) > 1 for plan in plans)
    return together + apart + (not apart and any(plan.is_cropped for plan in plans))

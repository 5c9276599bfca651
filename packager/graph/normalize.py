"""The Relax operator ``packager.normalize``: subtract the mean and divide by the standard deviation.

One operator for layer, group, instance and RMS normalization, in any layout and without scale and shift, which are
elementwise operators on its result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Op

from packager.bundle.dtypes import HALVES
from packager.graph.own_operators import register

NAME = "relax.packager.normalize"
OPERATOR = NAME.removeprefix("relax.")  # as operator_of has it


@dataclass(frozen=True)
class Normalization:
    """The attributes of a call.

    Statistics are of all elements along ``axes``. With ``channel_axis`` this axis is split into ``groups`` of adjacent
    channels, along which they are too. ``centered``: the mean is subtracted, and the variance is of what is left; else
    (RMS normalization) the mean counts as zero.
    """

    axes: tuple[int, ...]
    epsilon: float
    channel_axis: int | None = None
    groups: int = 1
    centered: bool = True

    def of_rows(self, rank: int) -> bool:
        """Whether statistics are those of rows: of the elements along the last axis of a tensor of this rank."""
        return self.axes == (rank - 1,) and self.channel_axis is None

    def of_vectors(self, rank: int) -> bool:
        """Tell whether statistics are those of rows, of the channels at each place of NC..., or of channels of volumes.

        The second are rows of N...C. The last ones follow each other in NCDHW, which GPUs keep.
        """
        of_channels = rank > 2 and self.axes == (1,)
        of_volumes = rank == 5 and self.axes == (2, 3, 4)
        return self.of_rows(rank) or (self.channel_axis is None and (of_channels or of_volumes))


def normalize(data: Any, attributes: Normalization) -> relax.Call:
    """Return the call on a floating-point tensor; the result has its shape, and float32 for half precision."""
    attrs = tvm.ir.make_node(
        "ir.DictAttrs",
        axes=list(attributes.axes),
        epsilon=attributes.epsilon,
        channel_axis=-1 if attributes.channel_axis is None else attributes.channel_axis,
        groups=attributes.groups,
        centered=int(attributes.centered),
    )
    return relax.Call(Op.get(NAME), [data], attrs)


def attributes_of_call(attrs: Any) -> Normalization:
    """Return the attributes of a call."""
    axis = int(attrs["channel_axis"])
    return Normalization(
        axes=tuple(int(axis) for axis in attrs["axes"]),
        epsilon=float(attrs["epsilon"]),
        channel_axis=None if axis < 0 else axis,
        groups=int(attrs["groups"]),
        centered=bool(int(attrs["centered"])),
    )


def _infer(call: Any, _builder: Any) -> Any:
    data = call.args[0].ty
    return relax.TensorType(data.shape, "float32") if str(data.dtype) in HALVES else data


register(NAME, "Normalization to mean 0 and variance 1", ("data",), _infer)

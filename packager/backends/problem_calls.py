"""Primitive functions that fill in the structure of a problem in C, and pass it on; for backends of products."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from packager.bundle.dtypes import storage_dtype
from packager.graph.dataflow import same
from packager.graph.identity import IdentityMap
from packager.ir.primitives import Packing, Parameter


@dataclass
class ProblemCall:
    """A primitive function that fills in ``problem``, the name of a structure in C.

    ``member`` is the prefix of the fields that are set from then on, as ``gemm.``.
    """

    symbol: str
    problem: str
    parameters: list[Parameter] = field(default_factory=list)
    scalars: list[Any] = field(default_factory=list)
    fields: list[tuple[str, str]] = field(default_factory=list)
    member: str = ""

    def pointer(self, name: str, parameter: Parameter, offset: int = 0, itemsize: int = 1) -> None:
        """Set a pointer field to ``parameter``, ``offset`` elements in."""
        if parameter not in self.parameters:
            self.parameters.append(parameter)
        text = f"p{self.parameters.index(parameter)}"
        if offset:
            text = f"(const char *){text} + {offset * itemsize}"
        self.fields.append((f"{self.member}{name}", text))

    def set(self, **extents: Any) -> None:
        """Set integer fields, each to an extent or, of a tuple, to the product of its extents."""
        for name, extent in extents.items():
            self.fields.append((f"{self.member}{name}", self._product(extent)))

    def set_float(self, **values: float) -> None:
        """Set float fields."""
        self.fields += [(f"{self.member}{name}", f"{value!r}f") for name, value in values.items()]

    @property
    def signature(self) -> str:
        """Its parameters in C, with that of the candidate."""
        pointers = [f"{'void *' if p.written else 'const void *'}p{index}" for index, p in enumerate(self.parameters)]
        integers = [f"int64_t s{index}" for index in range(len(self.scalars))]
        return ", ".join(["pk_cuda_t *cuda", *pointers, *integers, "int64_t candidate"])

    def _product(self, extent: Any) -> str:
        number, symbols = 1, []
        for factor in extent if isinstance(extent, tuple) else (extent,):
            if isinstance(factor, int):
                number *= factor
            else:
                symbols.append(self._scalar(factor))
        return " * ".join([str(number)] * (number != 1 or not symbols) + symbols)

    def _scalar(self, expression: Any) -> str:
        for index, known in enumerate(self.scalars):
            if same(known, expression):
                return f"s{index}"
        self.scalars.append(expression)
        return f"s{len(self.scalars) - 1}"


@dataclass
class ProblemMemory:
    """What the functions of a partition read and write beside its arguments."""

    packings: list[Packing] = field(default_factory=list)
    workspaces: list[Any] = field(default_factory=list)

    def packed(self, packing: Packing) -> Parameter:
        """Add a packed constant and return its parameter."""
        self.packings.append(packing)
        return Parameter("packed", len(self.packings) - 1)

    def workspace(self, nbytes: Any) -> int:
        """Add a workspace and return its index."""
        self.workspaces.append(nbytes)
        return len(self.workspaces) - 1


def bias_parameter(bias: Any, dtype: str, arguments: IdentityMap[int], memory: ProblemMemory) -> Parameter:
    """Return the parameter of a bias in the type of the result; a constant is converted at build time."""
    index = arguments[bias]
    if str(bias.ty.dtype) == dtype:
        return Parameter("argument", index)
    return memory.packed(Packing(index, dtype, lambda array: array.reshape(-1).astype(storage_dtype(dtype))))

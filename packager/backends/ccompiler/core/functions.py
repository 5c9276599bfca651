"""Builders of the C functions of a partition: their parameters, the group's workspaces and packed constants."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packager.backends.ccompiler.core.expressions import CTYPES
from packager.backends.ccompiler.core.machine import Machine
from packager.backends.ccompiler.core.operations import CannotRender, Graph, Tensor, Use
from packager.backends.ccompiler.core.program import Program, make_program
from packager.backends.ccompiler.core.shapes import Extent, c_name, equal, product
from packager.bundle.dtypes import DTYPES
from packager.codegen.templates import render
from packager.ir.primitives import FunctionGroup, Packing, Parameter, PrimitiveFunction

if TYPE_CHECKING:
    from packager.backends.ccompiler.core.machine import Dots, Narrow, Tile
    from packager.backends.ccompiler.core.stages import Stage
    from packager.bundle.arrays import Array


@dataclass(frozen=True)
class CFunction:
    """A rendered function, the tile functions that it calls, and the number of packed weights that these read."""

    source: str
    function: PrimitiveFunction
    tiles: frozenset[Tile | Dots | Narrow]
    weights: Extent


@dataclass
class FunctionDraft:
    """Builder of a function: adds a parameter for each tensor, workspace and constant that its body names."""

    group: GroupDraft
    symbol: str
    pointers: dict[str, tuple[str, Parameter]] = field(default_factory=dict)

    def tensor(self, tensor: Tensor, written: bool) -> str:
        """Return the pointer to a tensor: an argument, or a workspace of the group."""
        ctype = CTYPES[tensor.dtype].stored
        if tensor.argument is not None:
            return self._pointer(f"a{tensor.argument}", ctype, Parameter("argument", tensor.argument), written)
        return self.workspace(self.group.workspace_of(tensor), ctype, written)

    def workspace(self, index: int, ctype: str, written: bool) -> str:
        """Return the pointer to a workspace."""
        return self._pointer(f"w{index}", ctype, Parameter("workspace", index), written)

    def packed(self, index: int, ctype: str) -> str:
        """Return the pointer to a packed constant."""
        return self._pointer(f"p{index}", ctype, Parameter("packed", index), written=False)

    def _pointer(self, name: str, ctype: str, parameter: Parameter, written: bool) -> str:
        known = self.pointers.get(name)
        written = written or (known is not None and known[1].written)
        declaration = f"{'' if written else 'const '}{ctype} *restrict {name}"
        self.pointers[name] = (declaration, Parameter(parameter.kind, parameter.index, written))
        return name

    def program(
        self, stage: Stage, value: str = "", *, before: bool = False, stored: Sequence[Tensor] | None = None
    ) -> Program:
        """Return the operators after the anchor of a stage, or with ``before`` those before it, as C statements.

        ``value`` is C for an element of the anchor's result; with ``before``, where its operand goes. ``stored`` are
        tensors to store, by default all that the stage stores. Raises CannotRender.
        """
        given = [(stage.anchor.result, value)] if stage.anchor is not None and not before else []
        return make_program(
            stage.before if before else stage.after,
            inner=stage.inner,
            given=given,
            stored=stage.stored if stored is None else stored,
            pointer_of=self.tensor,
            last=(stage.anchor.uses[0], value) if stage.anchor is not None and before else None,
            placed=stage.placed,
        )

    def finish(
        self,
        template: str,
        extent: Extent,
        values: Mapping[str, Any],
        tiles: frozenset[Tile | Dots | Narrow] = frozenset(),
        weights: Extent = 0,
        feature: str = "",
    ) -> None:
        """Render the body and append the function to its group; iterations of ``extent`` are independent.

        ``feature`` is the macro of instructions that it uses beside those of the machine.
        """
        body = render(f"ccompiler/{template}.c.j2", values)
        words = set(re.findall(r"\w+", body))
        scalars = [variable for variable in self.group.graph.variables if c_name(variable) in words]
        parameters = [declaration for declaration, _ in self.pointers.values()]
        ranged = not equal(extent, 1)
        parameters += [f"int64_t {name}" for name in (*map(c_name, scalars), *(("begin", "end") if ranged else ()))]
        source = render(
            "ccompiler/common/function.c.j2",
            symbol=self.symbol,
            feature=feature,
            parameters=", ".join(parameters),
            once="" if ranged else "const int64_t begin = 0, end = 1;",
            body=body.trimmed(),
        )
        function = PrimitiveFunction(
            symbol=self.symbol,
            parameters=tuple(parameter for _, parameter in self.pointers.values()),
            scalars=tuple(scalars),
            extent=extent if ranged else None,
        )
        self.group.functions.append(CFunction(source, function, tiles, weights))


@dataclass
class GroupDraft:
    """Builder of the functions of one partition."""

    name: str
    graph: Graph
    machine: Machine
    winograd: int = 2  # the side of Winograd's tiles; 0: none
    functions: list[CFunction] = field(default_factory=list)
    workspaces: list[Extent] = field(default_factory=list)
    packings: list[Packing] = field(default_factory=list)
    _tensors: dict[int, int] = field(default_factory=dict)

    def function(self, purpose: str) -> FunctionDraft:
        """Start a function."""
        return FunctionDraft(self, f"pkc_{self.name}_{len(self.functions)}_{purpose}")

    def workspace_of(self, tensor: Tensor) -> int:
        """Return the workspace of a tensor that stages share."""
        if tensor.index not in self._tensors:
            self._tensors[tensor.index] = self.workspace(product(tensor.shape), tensor.dtype)
        return self._tensors[tensor.index]

    def workspace(self, elements: Extent, dtype: str = "float32") -> int:
        """Add a workspace and return its index."""
        self.workspaces.append(product((elements, DTYPES[dtype].itemsize)))
        return len(self.workspaces) - 1

    def constant(self, use: Use) -> int:
        """Return the argument that holds constant weights. Raises CannotRender if they are not constant."""
        argument = use.tensor.argument
        if argument is None or argument not in self.graph.constants:
            raise CannotRender("conv2d with weights that are no constant")
        return argument

    def packing(self, argument: int, layout: str, pack: Callable[[Array], Array]) -> int:
        """Add a packed constant and return its index."""
        self.packings.append(Packing(argument, layout, pack))
        return len(self.packings) - 1

    def group(self) -> FunctionGroup:
        """Return the finished group."""
        functions = tuple(made.function for made in self.functions)
        return FunctionGroup(functions, workspaces=tuple(self.workspaces), packings=tuple(self.packings))

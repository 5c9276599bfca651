"""Run-time extents: extents that a run computes, such as the number of results of NonZero.

At import such an extent is a shape variable like a dim, with a bound. What ties it to the scalar that holds its value
is main's signature (``ir.model.ModelSignature.extents``): a parameter that only has the variable as its shape, and the
scalar as a further result. The planner removes both, and reads the scalar during the run.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import tvm
from tvm import relax, te, tirx
from tvm.sym import Analyzer

from packager.bundle.manifest import Dim, RunTimeExtent, TensorSpec
from packager.errors import ModelError
from packager.frontends.dims import DimRequest
from packager.frontends.onnx.ops.operands import dtype_of, extents
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import nodes_of
from packager.graph.symbolic import is_readable, to_extent

# Larger extents would let sizes in bytes overflow.
LARGEST = 2**31 - 1


def is_extent_name(name: str) -> bool:
    """Tell whether a run-time extent may have the name: ``nonzero_0``."""
    return re.fullmatch(r"[a-z]+_[0-9]+", name) is not None


@dataclasses.dataclass(frozen=True)
class _Found:
    extent: RunTimeExtent
    maximum: int
    variable: tirx.Var
    value: relax.Var  # int64 scalar

    def parameter(self) -> relax.Var:
        """Return a parameter of main that defines the variable."""
        return relax.Var(self.extent.parameter, relax.TensorType([self.variable], "bool"))


class RunTimeExtents:
    """The run-time extents of a model that is being imported.

    ``declared`` are bounds that the user has given for extents by name (``--dim nonzero_0=1:100``); ``taken`` are names
    that no extent may have.
    """

    def __init__(self, analyzer: Analyzer, declared: Mapping[str, DimRequest], taken: Sequence[str]) -> None:
        self.analyzer = analyzer
        self.declared = dict(declared)
        self.taken = set(taken)
        self.found: list[_Found] = []
        self.by_value: IdentityMap[tirx.Var] = IdentityMap()
        self.node = ""  # being converted
        self.used: set[str] = set()

    def read(self, builder: Any, value: Any, bound: Any, kind: str) -> tirx.Var:
        """Return a variable for the integer in ``value``, a tensor of one element, that is in [0, bound] in each run.

        ``bound`` is an integer, an expression over dims and earlier extents, or None if only the user knows it.
        ``kind`` is the first part of its name. Raises ModelError for an extent without a bound.
        """
        if value in self.by_value:
            return self.by_value[value]
        name = self._name(kind)
        bound = self._bound(name, bound)
        scalar = value if dtype_of(value) == "int64" else builder.emit(relax.op.astype(value, "int64"))
        scalar = builder.emit(relax.op.reshape(scalar, []))
        text = to_extent(bound, IdentityMap((v, v.name) for v in nodes_of(bound, tirx.Var)))
        maximum = self.maximum(bound)
        text = text if is_readable(text) else maximum
        variable = tirx.Var(name, "int64")
        self.analyzer.bind(variable, tvm.ir.Range.from_min_extent(0, maximum + 1))
        self.by_value[value] = variable
        self.found.append(_Found(RunTimeExtent(name, text, self.node), maximum, variable, scalar))
        return variable

    def maximum(self, extent: Any) -> int:
        """Return an upper bound of an extent, an integer or an expression over dims and run-time extents."""
        if isinstance(extent, int):
            return extent
        return min(int(self.analyzer.const_int_bound(extent).max_value), LARGEST)

    def save(self) -> Any:
        """Return what ``restore`` needs to forget the extents since."""
        return len(self.found), IdentityMap(self.by_value.items()), set(self.taken)

    def restore(self, saved: Any) -> None:
        """Forget the extents since ``save``."""
        count, self.by_value, self.taken = saved
        del self.found[count:]

    def _name(self, kind: str) -> str:
        numbers = (f"{kind}_{number}" for number in range(len(self.taken) + 1))
        name = next(name for name in numbers if name not in self.taken)
        self.taken.add(name)
        return name

    def _bound(self, name: str, bound: Any) -> Any:
        request = self.declared.get(name)
        if request is not None:
            self.used.add(name)
            most = tirx.IntImm("int64", request.max)
            return most if bound is None else self.analyzer.simplify(tirx.min(bound, most))
        if bound is None:
            raise ModelError(
                f"node {self.node!r}: an extent of its result is computed by the run, and nothing bounds it",
                hint=f"give its maximum: --dim {name}=1:MAX",
            )
        return tirx.IntImm("int64", bound) if isinstance(bound, int) else self.analyzer.simplify(bound)

    def as_shape(self, builder: Any, value: Any, bounds: Sequence[Any], kind: str) -> list[Any]:
        """Return the elements of an integer vector as extents; ``bounds`` has one of each."""
        parts = [value] if len(bounds) == 1 else builder.emit(relax.op.split(value, len(bounds), 0))
        fields = [builder.emit(parts[i]) if len(bounds) > 1 else parts[i] for i in range(len(bounds))]
        return [self.read(builder, field, bound, kind) for field, bound in zip(fields, bounds, strict=True)]

    def dims(self) -> tuple[Dim, ...]:
        """Return the extents with their bounds, as dims."""
        return tuple(Dim(found.extent.name, 0, found.maximum) for found in self.found)

    def extents(self) -> tuple[RunTimeExtent, ...]:
        """Return the extents, in order of the graph."""
        return tuple(found.extent for found in self.found)

    def results(self) -> dict[str, relax.Var]:
        """Return the scalars by the names of the results that main gets for them."""
        return {found.extent.result: found.value for found in self.found}

    def specs(self) -> tuple[TensorSpec, ...]:
        """Return the specs of the parameters."""
        return tuple(TensorSpec(e.parameter, "bool", (e.name,)) for e in self.extents())

    def parameters(self) -> list[relax.Var]:
        """Return the parameters that main gets after its inputs."""
        return [found.parameter() for found in self.found]

    def value_infos(self) -> list[onnx.ValueInfoProto]:
        """Return declarations of the results."""
        return [
            onnx.helper.make_tensor_value_info(found.extent.result, onnx.TensorProto.INT64, []) for found in self.found
        ]


def take_first(builder: Any, data: Any, count: Any, axis: int = 0) -> Any:
    """Return the first ``count`` slices of a tensor along an axis, as a tensor of that extent."""
    shape = [*extents(data)]
    shape[axis] = count

    copied = builder.call_te(lambda x: te.compute(shape, x, name="first"), data, primfunc_name_hint="take_first")
    return builder.emit(copied)

"""A backend that takes whatever it is told to: TVM compiles its partitions, operator by operator.

The random tests of partitioning use it to have partitions of every operator, element type and shape, with symbolic
dims, workspaces, ranges, scalars, constants of the backend's own and several functions for a partition. ``any`` takes
operator by operator, ``anymerge`` lets what is adjacent become one partition.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from packager.backends.api import (
    API_VERSION,
    DTYPES,
    BackendOutput,
    Context,
    FunctionGroup,
    Kernel,
    Match,
    Parameter,
    Partition,
    PartitionOptions,
    Pattern,
    PrimitiveFunction,
    Target,
    Unavailable,
    attribute,
)


@dataclass(frozen=True)
class AnyOptions(PartitionOptions):
    """Attributes of both kinds."""

    operators: tuple[str, ...] = attribute((), "Operators to take; default: all")
    share: int = attribute(100, "Percentage of the operators that it takes, chosen by what they look like", minimum=0)
    given_back: int = attribute(0, "Percentage of the partitions that it gives back", minimum=0)


class AnyBackend:
    """See the module."""

    api_version = API_VERSION
    device = "cpu"
    options = AnyOptions
    summary = "TVM's code for any operator, for packager's tests"

    def __init__(self, kind: str, merges: bool) -> None:
        self.kind = kind
        self.merges = merges

    def canonical(self, options: AnyOptions, base: Target | None) -> AnyOptions:  # noqa: ARG002
        return options

    def probe(self, target: Target) -> Unavailable | None:  # noqa: ARG002
        return None

    def patterns(self, target: Target) -> Sequence[Pattern]:
        from tvm.relax.dpl import is_op, wildcard

        options = target.options
        single = [Pattern(f"{self.kind}.op", wildcard(), check=_takes(options))]
        pairs = [
            (outer, is_op(f"relax.{outer}")(is_op(f"relax.{inner}")(wildcard(), wildcard()), wildcard()))
            for outer, inner in (("add", "matmul"), ("add", "multiply"), ("multiply", "subtract"))
        ]
        return [
            *single,
            *(Pattern(f"{self.kind}.{name}_pair", pair, check=_takes(options), taps=True) for name, pair in pairs),
        ]

    def compile(self, partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
        from packager.backends.llvm.codegen import generate

        given_back, groups = {}, {}
        kernels: list[Kernel] = []
        constants: dict[str, Any] = {}
        for partition in partitions:
            if _percentage(partition.name) < target.options.given_back:
                given_back[partition.name] = "asked to"
                continue
            writer = _Writer(partition)
            try:
                group = writer.group()
            except NoLoopsError as error:
                given_back[partition.name] = str(error)
                continue
            if not group.functions:
                given_back[partition.name] = "TVM has computed it already"
                continue
            groups[partition.name] = group
            kernels += writer.kernels
            constants |= writer.constants
        base: Any = context.base.options
        made = generate(kernels, base.mtriple, context.base.cpus[:1], context)
        return BackendOutput(self.kind, made.static_libraries, groups, given_back, constants)


class NoLoopsError(Exception):
    """An operator that TVM does not lower to loops."""


def _percentage(text: str) -> int:
    return zlib.crc32(text.encode()) % 100


def _takes(options: AnyOptions) -> Callable[[Match], bool]:
    def check(match: Match) -> bool:
        names = [str(getattr(call.op, "name", "")) for call in match.calls]
        if not all(name.startswith("relax.") and not name.startswith("relax.call_") for name in names):
            return False
        if options.operators and not {name.removeprefix("relax.") for name in names} <= set(options.operators):
            return False
        looks = "".join(f"{call.op.name}{call.ty}" for call in match.calls)
        return _percentage(looks) < options.share

    return check


@dataclass
class _Writer:
    """The functions of one partition, in the order of its operators."""

    partition: Partition
    kernels: list[Kernel] = field(default_factory=list)
    functions: list[PrimitiveFunction] = field(default_factory=list)
    workspaces: list[Any] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    places: dict[int, Parameter] = field(default_factory=dict)
    tuples: dict[int, list[Parameter]] = field(default_factory=dict)

    def group(self) -> FunctionGroup:
        import tvm
        from tvm import relax

        from packager.graph.rewrite import apply
        from packager.lower.devices import DEVICES

        function = self.partition.function.with_attr("global_symbol", "main")
        module = apply(DEVICES["cpu"].legalize, tvm.IRModule({"main": function}))
        main = module["main"]
        bindings = [binding for block in main.body.blocks for binding in block.bindings]
        tuples = {b.var.__chandle__(): b.value for b in bindings if isinstance(b.value, relax.Tuple)}
        body = tuples.get(main.body.body.__chandle__(), main.body.body)
        results = list(body.fields) if isinstance(body, relax.Tuple) else [body]
        for index, variable in enumerate([*main.params, *results]):
            if variable.__chandle__() in self.places:
                raise AssertionError("an argument or result stands twice")
            written = index >= len(main.params)
            self.places[variable.__chandle__()] = Parameter("argument", index, written=written)
        self._place_fields(bindings)
        for binding in bindings:
            if isinstance(binding.value, relax.Call):
                self._call(module, binding)
        return FunctionGroup(tuple(self.functions), (), tuple(self.workspaces))

    def _place_fields(self, bindings: Sequence[Any]) -> None:
        """Let the fields of a tuple that are results be written as such."""
        from tvm import relax

        for binding in bindings:
            if isinstance(binding.value, relax.TupleGetItem):
                whole = binding.value.tuple_value
                own = self.tuples.setdefault(whole.__chandle__(), [None] * len(whole.ty.fields))  # type: ignore[list-item]
                place = self.places.get(binding.var.__chandle__()) or self._workspace(binding.var.ty)
                own[binding.value.index] = own[binding.value.index] or place
                self.places.setdefault(binding.var.__chandle__(), place)

    def _call(self, module: Any, binding: Any) -> None:
        from tvm.ir import is_prim_expr

        from packager.graph.dataflow import called_function
        from packager.lower.devices import DEVICES
        from packager.lower.lowering import _make_kernels
        from packager.transforms.clamp_indices import clamp_indices

        call, variable = binding.value, binding.var
        callee = called_function(call)
        if callee is None:
            raise NoLoopsError(f"TVM leaves {call.op.name} as it is")  # a reshape is an alias
        types = list(variable.ty.fields) if hasattr(variable.ty, "fields") else [variable.ty]
        arguments = [(a, None if is_prim_expr(a) else self._place(a)) for a in call.args[1].fields]
        operands = [place for _, place in arguments]
        if hasattr(variable.ty, "fields"):
            placed = self.tuples.get(variable.__chandle__(), [None] * len(types))
            operands += [place or self._workspace(ty) for place, ty in zip(placed, types, strict=True)]
        else:
            if variable.__chandle__() not in self.places:
                self.places[variable.__chandle__()] = self._workspace(variable.ty)
            operands.append(self.places[variable.__chandle__()])
        made = _make_kernels(
            f"{self.partition.name}_{len(self.functions)}", clamp_indices(module[callee]), DEVICES["cpu"]
        )
        actual: list[Any] = [a if place is None else tuple(a.ty.shape.values) for a, place in arguments]
        actual += [tuple(ty.shape.values) for ty in types]
        actual += list(call.args[2].values) if len(call.args) > 2 else []
        names = _bind(made.parameters, actual)
        own = [self._raw_workspace(_substituted(nbytes, names)) for nbytes in made.workspaces]
        for function in made.functions:
            assert isinstance(function, Kernel)
            self.kernels.append(function)
            self.functions.append(
                PrimitiveFunction(
                    function.symbol,
                    tuple(
                        _written(operands[p.index] if p.kind == "argument" else own[p.index], p.written)
                        for p in function.parameters
                    ),
                    tuple(_substituted(scalar, names) for scalar in function.scalars),
                    None if function.extent is None else _substituted(function.extent, names),
                )
            )

    def _place(self, argument: Any) -> Parameter:
        if hasattr(argument, "value"):  # a constant that stands in the graph
            name = f"{self.partition.name}.{len(self.constants)}"
            self.constants[name] = np.asarray(argument.value.numpy())
            return Parameter("constant", name=name)
        return self.places[argument.__chandle__()]

    def _workspace(self, ty: Any) -> Parameter:
        nbytes: Any = DTYPES[str(ty.dtype)].itemsize
        for extent in ty.shape.values:
            nbytes = extent * nbytes
        return self._raw_workspace(nbytes)

    def _raw_workspace(self, nbytes: Any) -> Parameter:
        self.workspaces.append(nbytes)
        return Parameter("workspace", len(self.workspaces) - 1)


def _written(place: Parameter, written: bool) -> Parameter:
    return Parameter(place.kind, place.index, written, place.name)


def _bind(parameters: Sequence[Any], actual: Sequence[Any]) -> Mapping[Any, Any]:
    """Return the shape variables of a PrimFunc in terms of the partition's."""
    from tvm import tirx

    names = {}
    for parameter, given in zip(parameters, actual, strict=True):
        for declared, extent in (
            zip(parameter, given, strict=True) if isinstance(parameter, tuple) else [(parameter, given)]
        ):
            if isinstance(declared, tirx.Var):
                names.setdefault(declared, extent)
    return names


def _substituted(expression: Any, names: Mapping[Any, Any]) -> Any:
    from tvm import tirx
    from tvm.sym import Analyzer
    from tvm_ffi import structural_map

    if isinstance(expression, int):
        return expression
    by_handle = {variable.__chandle__(): extent for variable, extent in names.items()}
    return Analyzer().simplify(
        structural_map(expression, (tirx.Var, lambda variable: by_handle.get(variable.__chandle__(), variable)))
    )


ONE = AnyBackend("any", merges=False)
MERGING = AnyBackend("anymerge", merges=True)

"""Merges several models, or variants of one, into one module before partitioning.

The merged ``main`` concatenates the inputs and outputs of all models, whose computations stay independent. So backends
get all partitions at once, equal ones are compiled once, and constants of equal name and content are one parameter. The
plan stage splits the models again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm_ffi import structural_equal, structural_map

from packager.bundle.arrays import Array
from packager.bundle.manifest import Dim, Model
from packager.errors import UsageError
from packager.graph.dataflow import bindings_of
from packager.graph.identity import IdentityMap
from packager.graph.states import state_types
from packager.ir.model import ImportedModel, ModelSignature


def merge_models(variants: Sequence[ImportedModel], name: str) -> ImportedModel:
    """Merge models; variants of an entry must be adjacent.

    Raises UsageError if a dim or state has different definitions in two models.
    """
    models = {model.signature.label: model for model in variants}
    _check_states(models)
    merger = _Merger(models)
    return ImportedModel(
        signature=_merged_signature(name, [model.signature for model in variants]),
        module=merger.module(),
        weights=merger.weights,
        nodes=merger.nodes,
        sources=merger.sources,
        originals=merger.originals,
        warnings=tuple(dict.fromkeys(text for model in variants for text in model.warnings)),
    )


def share_arrays(model: ImportedModel, other: ImportedModel) -> ImportedModel:
    """Replace arrays of ``model`` by those of ``other`` with equal name and content, to save memory."""

    def shared(arrays: Mapping[str, Array], others: Mapping[str, Array]) -> dict[str, Array]:
        return {
            name: others[name] if name in others and _equal(others[name], array) else array
            for name, array in arrays.items()
        }

    weights, originals = shared(model.weights, other.weights), shared(model.originals, other.originals)
    return replace(model, weights=weights, originals=originals)


def _merged_signature(name: str, entries: Sequence[ModelSignature]) -> ModelSignature:
    return ModelSignature(
        source=_source(name, {entry.source.name: entry.source for entry in entries}),
        inputs=tuple(spec for entry in entries for spec in entry.inputs),
        output_names=tuple(output for entry in entries for output in entry.output_names),
        dims=_dims(entries),
        output_dtypes=tuple(d for entry in entries for d in entry.output_dtypes or (None,) * len(entry.output_names)),
        entries=tuple(entries),
    )


def _source(name: str, sources: Mapping[str, Model]) -> Model:
    """Return the record of all entries' files; the hash of several is the hash of their hashes."""
    first, *more = sources.values()
    if not more:
        return replace(first, name=name)
    digest = hashlib.sha256("\n".join(source.sha256 for source in sources.values()).encode()).hexdigest()
    return replace(first, name=name, sha256=digest, random=())


def _dims(entries: Sequence[ModelSignature]) -> tuple[Dim, ...]:
    found: dict[str, tuple[str, Dim]] = {}
    for entry in entries:
        computed = {extent.name for extent in entry.extents}
        for dim in entry.dims:
            first, known = found.setdefault(dim.name, (entry.label, dim))
            if dim.name in computed:
                found[dim.name] = first, replace(known, max=max(known.max, dim.max))
            elif known != dim:
                raise UsageError(
                    f"dim {dim.name} is {known.min}..{known.max} in {first}, but {dim.min}..{dim.max} in {entry.label}",
                    hint=f"give it bounds for both: --dim {dim.name}=MIN:MAX",
                )
    return tuple(dim for _, dim in found.values())


def _check_states(models: Mapping[str, ImportedModel]) -> None:
    """Raise UsageError unless each state is equal in all models that use it, and one of them writes it."""
    found: dict[str, tuple[str, Any]] = {}
    written: set[str] = set()
    for entry, model in models.items():
        for state in model.signature.states:
            value = (state.output, state_types(model, state))
            first, known = found.setdefault(state.name, (entry, value))
            if known != value:
                raise UsageError(
                    f"state {state.name!r} is {_shown(known)} in {first}, but {_shown(value)} in {entry}",
                    hint="entries share states by name: type, shape and output must be equal",
                )
            if state.output in model.signature.output_names:
                written.add(state.name)
    for name, (entry, _) in found.items():
        if name not in written:
            raise UsageError(f"no entry writes state {name!r} of {entry}")


def _shown(value: Any) -> str:
    output, (dtype, shape) = value
    return f"{dtype}{list(shape)} with output {output!r}"


class _Merger:
    def __init__(self, models: Mapping[str, ImportedModel]) -> None:
        self.models = models
        self.weights: dict[str, Array] = {}
        self.originals: dict[str, Array] = {}
        self.sources: dict[str, tuple[str, ...]] = {}
        self.nodes: dict[str, str] = {}
        self.named: dict[str, Array] = {}  # all constants, by their names in the merged model
        self.parameters: dict[str, relax.Var] = {}

    def module(self) -> tvm.IRModule:
        """Return the merged module, with the constants as parameters after all inputs."""
        builder = relax.BlockBuilder()
        values = [self._bind_parameters(entry, model) for entry, model in self.models.items()]
        inputs = [
            bound[parameter]
            for bound, model in zip(values, self.models.values(), strict=True)
            for parameter in model.module["main"].params[: len(model.signature.inputs)]
        ]
        functions = self._functions()
        parameters = [*inputs, *self.parameters.values()]
        results: list[Any] = []
        with builder.function("main", parameters, attrs={"num_input": len(inputs)}):
            with builder.dataflow():
                for (entry, model), bound in zip(self.models.items(), values, strict=True):
                    results += self._replay(builder, entry, model, bound, functions[entry])
                result = builder.emit_output(relax.Tuple(results))
            builder.emit_func_output(result)
        others = dict(function for own in functions.values() for function in own.values())
        return tvm.IRModule({**others, tvm.ir.GlobalVar("main"): builder.get()["main"]})

    def _bind_parameters(self, entry: str, model: ImportedModel) -> IdentityMap[Any]:
        """Map the model's parameters to the merged main's, and rename constants."""
        names = self._constant_names(entry, model)
        main = model.module["main"]
        bound: IdentityMap[Any] = IdentityMap()
        for parameter in main.params[: len(model.signature.inputs)]:
            bound[parameter] = relax.Var(f"{_identifier(entry)}_{parameter.name}", parameter.ty)
        for parameter, (name, array) in zip(
            main.params[len(model.signature.inputs) :], model.weights.items(), strict=True
        ):
            merged = names[name]
            if merged not in self.parameters:
                self.parameters[merged] = relax.Var(_identifier(merged), parameter.ty)
                self.weights[merged] = array
                if name in model.sources:
                    self.sources[merged] = tuple(names[source] for source in model.sources[name])
            bound[parameter] = self.parameters[merged]
        self.originals.update({names[name]: array for name, array in model.originals.items()})
        return bound

    def _constant_names(self, entry: str, model: ImportedModel) -> dict[str, str]:
        """Return the names of a model's constants in the merged model: unchanged unless they collide."""
        names = {}
        for name, array in {**model.originals, **model.weights}.items():
            merged = name
            while merged in self.named and not _equal(self.named[merged], array):
                merged = f"{entry}.{merged}"
            names[name] = merged
            self.named.setdefault(merged, array)
        return names

    def _functions(self) -> dict[str, dict[str, tuple[tvm.ir.GlobalVar, Any]]]:
        """Return for each entry its functions other than ``main``, by their original names.

        Equal functions with equal names are shared; on a collision the entry's name is added.
        """
        found: dict[str, tuple[tvm.ir.GlobalVar, Any]] = {}
        by_entry: dict[str, dict[str, tuple[tvm.ir.GlobalVar, Any]]] = {}
        for entry, model in self.models.items():
            by_entry[entry] = {}
            for variable, function in model.module.functions.items():
                name = variable.name_hint
                if name == "main":
                    continue
                merged = (variable, function)
                while not structural_equal(found.setdefault(merged[0].name_hint, merged)[1], merged[1]):
                    merged = _renamed(variable, function, f"{_identifier(entry)}_{merged[0].name_hint}")
                by_entry[entry][name] = found[merged[0].name_hint]
        return by_entry

    def _replay(
        self,
        builder: relax.BlockBuilder,
        entry: str,
        model: ImportedModel,
        bound: IdentityMap[Any],
        functions: Mapping[str, tuple[tvm.ir.GlobalVar, Any]],
    ) -> list[Any]:
        """Emit a model's bindings, and return its results."""

        def renamed(expr: Any) -> Any:
            def variable(var: Any) -> Any:
                return bound.get(var, var)

            def function(var: Any) -> Any:
                return functions[var.name_hint][0] if var.name_hint in functions else var

            return structural_map(expr, [(relax.Var, variable), (tvm.ir.GlobalVar, function)])

        main = model.module["main"]
        for binding in bindings_of(main):
            name = f"{_identifier(entry)}_{binding.var.name}"
            value = builder.emit(renamed(binding.value), name)
            bound[binding.var] = value
            if binding.var.name in model.nodes:
                self.nodes[value.name] = f"{entry}:{model.nodes[binding.var.name]}"
        result = renamed(main.body.body)
        if not isinstance(result.ty, relax.TupleType):
            return [result]
        return [builder.emit(relax.TupleGetItem(result, index)) for index in range(len(result.ty.fields))]


def _identifier(name: str) -> str:
    """Convert a name to a valid identifier."""
    return re.sub(r"[^\w.]", "_", name, flags=re.ASCII)


def _renamed(variable: tvm.ir.GlobalVar, function: Any, name: str) -> tuple[tvm.ir.GlobalVar, Any]:
    merged = tvm.ir.GlobalVar(name)
    relax.expr._update_type(merged, variable.ty)
    return merged, function.with_attr("global_symbol", name)


def _equal(one: Array, other: Array) -> bool:
    """Whether two constants are bitwise equal."""
    if one is other:
        return True
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    first, second = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (one, other))
    return bool(np.array_equal(first, second))

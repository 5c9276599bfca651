"""A partition as an ONNX model, which every version of TensorRT reads, and as the function that runs its engine."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packager.backends.tensorrt.module import Engine, EngineConstant, EngineFunction, EngineTensor
from packager.backends.tensorrt.options import TensorrtOptions
from packager.backends.tensorrt.patterns import OperatorProblem
from packager.backends.tensorrt.profile import make_profile
from packager.backends.tensorrt.rewrite import rewrite
from packager.bundle.gpu.engine_graphs import EngineGraph, Form, with_initializers
from packager.bundle.hashing import digest, sha256
from packager.emit.onnx import Interface, WrittenModel, write_function
from packager.errors import BackendError
from packager.graph.dataflow import shape_of
from packager.graph.identity import IdentityMap
from packager.graph.run_time_extents import results_of
from packager.ir.primitives import Partition


@dataclass(frozen=True)
class Subgraph:
    """A partition as ONNX.

    ``graph`` names the constants that a bundle keeps, ``arrays`` their values; all other initializers are inside.
    """

    partition: Partition
    graph: EngineGraph
    arrays: dict[str, Any]
    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    constants: tuple[EngineConstant, ...]

    @property
    def model(self) -> bytes:
        """The model with all initializers."""
        return with_initializers(self.graph.model, self.graph.initializers(self.arrays))

    def function(self, engine: Engine) -> EngineFunction:
        """Return the function that runs an engine of it."""
        return EngineFunction(self.graph.function, self.inputs, self.outputs, engine, self.constants)


def write_subgraph(partition: Partition, options: TensorrtOptions) -> Subgraph:
    """Write a partition. Raises BackendError if it is not of this backend's problems, ModelError if it cannot be."""
    function = partition.function
    values: IdentityMap[Any] = IdentityMap()
    nodes = {}
    for place, composite in enumerate(partition.composites):
        if not isinstance(composite.problem, OperatorProblem):
            raise BackendError(f"tensorrt: {partition.name} ({composite.name}) has no problem of this backend's")
        nodes[str(composite.problem.result.name)] = f"{composite.ops[0]}#{place}"
        for variable, value in composite.problem.constants:
            values[variable] = value
    names = dict(partition.sites[0].constants)  # argument -> constant of the model
    known = {index: parameter for index, parameter in enumerate(function.params) if parameter in values}
    given = [index for index in range(len(function.params)) if index not in known]
    results = results_of(function)
    interface = Interface(
        name=partition.name,
        inputs=_unused([f"input_{place}" for place in range(len(given))], names),
        constants={names[index]: values[parameter].array for index, parameter in known.items()},
        outputs=_unused([f"output_{place}" for place in range(len(results))], names),
        nodes=nodes,
    )
    ordered = [*(function.params[index] for index in given), *known.values()]
    written = write_function(_with_parameters(function, ordered), interface)
    forms: Mapping[str, Form] = {}
    if not options.refit:  # refitted constants are as the model has them
        written, forms = rewrite(written, rounds=options.precision == "fp16")
    kept = {name: array for name, array in written.arrays.items() if name in written.constants}
    arguments = {names[index]: index for index in known}
    constants = tuple(
        EngineConstant(name, array.dtype.name, math.prod(array.shape), arguments[name]) for name, array in kept.items()
    )
    return Subgraph(
        partition,
        _graph(
            f"{partition.name}_tensorrt",
            written,
            kept,
            forms,
            options,
            make_profile(partition, given, interface.inputs, options.optimize_for),
        ),
        kept,
        tuple(
            _tensor(name, function.params[index], index) for name, index in zip(interface.inputs, given, strict=True)
        ),
        tuple(
            _tensor(name, result, len(function.params) + place)
            for place, (name, result) in enumerate(zip(interface.outputs, results, strict=True))
        ),
        constants,
    )


def composites_in(text: str, count: int) -> tuple[int, ...]:
    """Return which of ``count`` composites a message names: nodes have names of theirs, ``nn.conv2d#12_1``."""
    places = {int(place) for place in re.findall(r"[a-z0-9_]#(\d+)", text)}
    return tuple(sorted(place for place in places if place < count))


def _graph(
    function: str,
    written: WrittenModel,
    kept: dict[str, Any],
    forms: Mapping[str, Form],
    options: TensorrtOptions,
    profile: dict[str, Any],
) -> EngineGraph:
    inside = {name: array for name, array in written.arrays.items() if name not in kept}
    model = with_initializers(written.proto.SerializeToString(deterministic=True), inside)
    settings: dict[str, Any] = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(options)
        if field.name in ("precision", "allow_tf32", "workspace_mb", "optimization_level", "refit", "int64")
    }
    if profile:
        settings["profile"] = profile
    contents = {name: sha256([array.tobytes()]) for name, array in kept.items()}
    read = {name for node in written.proto.graph.node for name in node.input}
    direct = tuple(name for name in kept if name in read)
    described = {name: [form.source, form.steps] for name, form in forms.items()}
    key = digest([sha256([model]), contents, options.library, settings, described])
    return EngineGraph(key, function, options.library, settings, direct, model, forms)


def _unused(names: list[str], taken: dict[int, str]) -> list[str]:
    """Return names, with underscores behind them where a constant has the name."""
    constants = set(taken.values())
    longest = 0
    while any(f"{name}{'_' * longest}" in constants for name in names):
        longest += 1
    return [f"{name}{'_' * longest}" for name in names]


def _with_parameters(function: Any, parameters: list[Any]) -> Any:
    from tvm import relax

    return relax.Function(parameters, function.body, function.ret_ty, function.is_pure)


def _tensor(name: str, variable: Any, argument: int) -> EngineTensor:
    shape = shape_of(variable)
    assert shape is not None
    return EngineTensor(name, str(variable.ty.dtype), shape, argument)

"""Load torch.export: a ``.pt2`` file of an ExportedProgram. torch is imported here, when a file is loaded."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from packager.bundle.arrays import Array
from packager.bundle.hashing import sha256_of_file
from packager.bundle.manifest import Dim, Model
from packager.errors import ModelError, PackagerError, UsageError, last_line
from packager.frontends.bounds import bound_expressions
from packager.frontends.dims import DimRequest, make_request, resolve_dims
from packager.frontends.node_names import tag_bindings
from packager.frontends.overrides import NO_OVERRIDES, Overrides
from packager.frontends.signature import dims_of, fix_dims, input_specs, output_names
from packager.graph.conditions import Relations, bound_analyzer
from packager.graph.identity import IdentityMap
from packager.graph.lift_constants import lift_constants
from packager.graph.symbolic import to_expr, to_extent
from packager.ir.model import ImportedModel, ModelSignature, State
from packager.ir.shapes import Condition


def load(path: Path, dims: Mapping[str, DimRequest], name: str, overrides: Overrides = NO_OVERRIDES) -> ImportedModel:
    """Read a ``.pt2`` file. Raises ModelError, UnsupportedOperatorsError and UsageError."""
    try:
        import torch
    except ImportError:
        raise UsageError(f"{path}: reading .pt2 needs torch", hint="pip install 'packager[torch]'") from None
    from packager.frontends.torch.complex_pairs.stored import complex_to_real
    from packager.frontends.torch.states import buffers_to_states

    program = _read(path, torch)
    _override(program, overrides, torch)
    buffers = buffers_to_states(program)
    complex_to_real(program)
    states = tuple(State(name, f"{name}.next", _numpy(initial, torch)) for name, initial in buffers.items())
    module, importer, buffer_names = _import(program, torch)
    parameters = _parameters(program, torch)
    main = module["main"]
    inputs = [str(variable.name) for variable in main.params[: len(main.params) - len(parameters)]]
    specs = input_specs(main, inputs)
    dims, resolved = _resolve(dims, dims_of(specs), program, importer.inputs)
    module = fix_dims(module, dims)
    conditions = _conditions(program, importer.inputs, module["main"].params[: len(inputs)], dims, resolved)
    module, constants = lift_constants(module, buffer_names, parameters)
    module["main"] = module["main"].without_attr("params")
    module, nodes = tag_bindings(module, importer.node_of_variable)
    return ImportedModel(
        signature=ModelSignature(
            source=Model(name, "torch.export", sha256_of_file(path), {}, f"torch {torch.__version__}"),
            inputs=input_specs(module["main"], inputs),
            output_names=output_names(module["main"], tuple(state.output for state in states)),
            dims=resolved,
            states=states,
            conditions=conditions,
        ),
        module=module,
        weights={**parameters, **constants},
        nodes=nodes,
    )


def _read(path: Path, torch: Any) -> Any:
    from packager.frontends.torch.containers import unknown_containers
    from packager.frontends.torch.ops.grouped import known_operators
    from packager.frontends.torch.ops.program import decompose

    try:
        with warnings.catch_warnings(), unknown_containers(path), known_operators():
            warnings.simplefilter("ignore")  # torch warns about deprecated calls of its own
            return decompose(torch.export.load(path))
    except PackagerError:
        raise
    except Exception as error:  # torch's archive reader raises errors of many types
        raise ModelError(
            f"{path}: cannot be read as a torch.export program",
            detail=str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__,
            hint="write it with torch.export.save, with the torch version that is installed here",
        ) from None


def _override(program: Any, overrides: Overrides, torch: Any) -> None:
    """Replace parameters, buffers and constants of ``program``. Raises UsageError."""
    stores = (program.state_dict, program.constants)
    tensors = {str(key): (store, key) for store in stores for key, value in store.items() if hasattr(value, "dtype")}
    overrides.check_names(tensors)
    for name, (store, key) in tensors.items():
        old = _numpy(store[key], torch)
        array = overrides.find(name, old.dtype.name, old.shape)
        if array is None:
            continue
        if array.dtype.name == "bfloat16":
            tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(array)
        trained = isinstance(store[key], torch.nn.Parameter)
        store[key] = torch.nn.Parameter(tensor, requires_grad=False) if trained else tensor


def _import(program: Any, torch: Any) -> tuple[tvm.IRModule, Any, IdentityMap[str]]:
    """Return the module, its importer, and buffer names by their TVM tensor."""
    from packager.frontends.torch.constant_sizes import sizes_of_constants
    from packager.frontends.torch.importer import Importer
    from packager.frontends.torch.ops.program import check_operators, known_values

    known = known_values(program)
    importer = Importer(known, sizes_of_constants(program, known))
    check_operators(program, known, importer.converters)
    tensors = {**dict(program.named_buffers()), **program.constants}
    names = {id(value): str(key) for key, value in tensors.items()}
    handles: IdentityMap[str] = IdentityMap()
    convert_tensor = importer._convert_pytorch_tensor_to_tvm

    def convert(tensor: Any) -> Any:
        is_half = tensor.dtype is torch.bfloat16 and tensor.layout is torch.strided  # which TVM has no numpy array of
        converted = tvm.runtime.tensor(_numpy(tensor, torch)) if is_half else convert_tensor(tensor)
        if id(tensor) in names:
            handles[converted] = names[id(tensor)]
        return converted

    importer._convert_pytorch_tensor_to_tvm = convert
    try:
        module = importer.from_exported_program(program, True, True, False, None)
    except PackagerError:
        raise
    except Exception as error:  # converters raise errors of many types
        raise ModelError(
            "the program cannot be imported",
            detail=last_line(error),
            hint="it uses an operator in a way that is not supported",
        ) from error
    return module, importer, handles


def _parameters(program: Any, torch: Any) -> dict[str, Array]:
    """Return the parameters by their names in the module, in the order of main's parameters."""
    kind = torch.export.graph_signature.InputKind.PARAMETER
    targets = [spec.target for spec in program.graph_signature.input_specs if spec.kind is kind]
    return {target: _numpy(program.state_dict[target], torch) for target in targets}


def _numpy(tensor: Any, torch: Any) -> Array:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return np.asarray(tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(tensor.numpy())


def _resolve(
    requests: Mapping[str, DimRequest], found: Mapping[str, str], program: Any, inputs: Any
) -> tuple[dict[str, DimRequest], tuple[Dim, ...]]:
    """Return the requests, with those that follow from them, and the dims that stay symbolic."""
    declared = _declared_bounds(program, {})
    texts = {name: text for name, text in inputs.texts().items() if name in found}
    followed = bound_expressions({**declared, **requests}, texts)
    requests = {**requests, **{name: followed[name] for name in texts if name in followed}}
    return requests, resolve_dims(found, requests, _declared_bounds(program, inputs.derived))


def _declared_bounds(program: Any, derived: Mapping[str, Any]) -> dict[str, DimRequest]:
    """Return the bounds that the program has for its symbols, and those of ``derived`` dims that follow."""
    from torch.utils._sympy.value_ranges import bound_sympy

    known = {symbol: interval for symbol, interval in program.range_constraints.items() if symbol.is_Symbol}
    ranges = {str(symbol): interval for symbol, interval in known.items()}
    ranges |= {name: bound_sympy(expr, known) for name, expr in derived.items()}
    bounds = {}
    for name, interval in ranges.items():
        if not math.isinf(float(interval.upper)) and int(interval.upper) < 2**31:
            bounds[name] = make_request(name, max(int(interval.lower), 1), int(interval.upper))
    return bounds


def _conditions(
    program: Any, inputs: Any, parameters: Any, requests: Mapping[str, DimRequest], dims: tuple[Dim, ...]
) -> tuple[Condition, ...]:
    """Return what the program demands of its dims and does not follow from their bounds."""
    from packager.frontends.torch.conditions import open_conditions

    fixed = {name: request.min for name, request in requests.items() if request.fixed}
    bounds = {name: (size, size) for name, size in fixed.items()} | {dim.name: (dim.min, dim.max) for dim in dims}
    final: dict[str, Any] = {name: tvm.tirx.IntImm("int64", size) for name, size in fixed.items()}
    final |= {e.name: e for p in parameters for e in p.ty.shape.values if isinstance(e, tvm.tirx.Var)}
    names = IdentityMap((variable, name) for name, variable in inputs.variables.items())
    relations = Relations(bound_analyzer(parameters, dims))
    demanded = [((variable, "==", expr), f"dim {name}") for variable, expr, name in inputs.equalities()]
    for (left, relation, right), node in (*demanded, *open_conditions(program, bounds, inputs.symbols)):
        sides = (to_expr(to_extent(side, names), final) for side in (left, right))
        relations.require(next(sides), relation, next(sides), node)
    return tuple(relations.found.values())

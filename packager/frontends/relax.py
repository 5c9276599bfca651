"""Load Relax: a ``.json`` file written by ``tvm.ir.save_json`` of an IRModule."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import tvm
from tvm import relax

from packager.bundle.hashing import sha256_of_file
from packager.bundle.manifest import Model
from packager.errors import ModelError
from packager.frontends.dims import DimRequest, resolve_dims
from packager.frontends.node_names import tag_bindings
from packager.frontends.overrides import NO_OVERRIDES, Overrides
from packager.frontends.signature import dims_of, fix_dims, input_specs, output_names
from packager.graph.dataflow import bindings_of
from packager.graph.lift_constants import lift_constants
from packager.ir.model import ImportedModel, ModelSignature

MAIN = "main"


def load(
    path: Path,
    dims: Mapping[str, DimRequest],
    name: str,
    entry: str = MAIN,
    overrides: Overrides = NO_OVERRIDES,
) -> ImportedModel:
    """Read the function ``entry`` of a Relax module. Raises ModelError and UsageError."""
    module = _with_entry(path, _read(path), entry)
    inputs = [str(parameter.name) for parameter in module["main"].params]
    resolved = resolve_dims(dims_of(input_specs(module["main"], inputs)), dims)
    module = fix_dims(module, dims)
    module, constants = lift_constants(module, {})
    overrides.check_names(constants)
    for key, array in constants.items():
        other = overrides.find(key, array.dtype.name, array.shape)
        constants[key] = array if other is None else other
    module["main"] = module["main"].with_attr("num_input", len(inputs))
    # Without source nodes, variables are reported under their own names.
    own = {b.var.name: b.var.name for b in bindings_of(module["main"])}
    module, nodes = tag_bindings(module, own)
    return ImportedModel(
        signature=ModelSignature(
            source=Model(name, "relax", sha256_of_file(path), {}, f"tvm {tvm.__version__}"),
            inputs=input_specs(module["main"], inputs),
            output_names=output_names(module["main"]),
            dims=resolved,
        ),
        module=module,
        weights=constants,
        nodes=nodes,
    )


def _read(path: Path) -> tvm.IRModule:
    hint = "write it with tvm.ir.save_json of an IRModule that holds the model as a Relax function"
    try:
        text = path.read_text(encoding="utf-8")
        json.loads(text)  # TVM's reader aborts on some malformed texts
        module = tvm.ir.load_json(text)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path}: is not JSON", detail=str(error), hint=hint) from None
    except Exception as error:  # TVM's reader raises errors of many types
        raise ModelError(f"{path}: is not a module that TVM can read", detail=str(error)[:400], hint=hint) from None
    if not isinstance(module, tvm.IRModule):
        raise ModelError(f"{path}: holds no IRModule", hint=hint)
    return module


def _with_entry(path: Path, module: tvm.IRModule, entry: str) -> tvm.IRModule:
    """Rename ``entry`` to ``main`` and drop the functions that it does not call."""
    functions = {variable.name_hint: function for variable, function in module.functions.items()}
    models = sorted(name for name, function in functions.items() if isinstance(function, relax.Function))
    if entry not in models:
        have = ", ".join(models) or "none"
        raise ModelError(
            f"{path}: there is no Relax function {entry!r} in the module",
            hint=f"its Relax functions: {have}; name one with --entry" if models else "the module holds no model",
        )
    if entry == MAIN:
        return module
    kept = {variable: function for variable, function in module.functions.items() if variable.name_hint != MAIN}
    model = kept.pop(module.get_global_var(entry)).with_attr("global_symbol", MAIN)
    renamed = tvm.IRModule({**kept, tvm.ir.GlobalVar(MAIN): model}, attrs=module.attrs)
    return relax.transform.DeadCodeElimination([MAIN])(renamed)

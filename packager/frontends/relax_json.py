"""Relax: a ``.json`` file that ``tvm.ir.save_json`` wrote of an IRModule with a Relax function ``main``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import tvm
from tvm import relax

from packager.errors import ModelError
from packager.frontends import sha256_of_file
from packager.frontends.dims import DimRequest, resolve_dims
from packager.frontends.lift import dims_of, fix_dims, input_specs, lift_constants, output_names
from packager.frontends.names import tag_bindings
from packager.ir import ImportedModel
from packager.manifest import Model


def load(path: Path, dims: Mapping[str, DimRequest], name: str) -> ImportedModel:
    """Read a Relax module. Raises ModelError and UsageError."""
    module = _read(path)
    inputs = [str(parameter.name) for parameter in module["main"].params]
    resolved = resolve_dims(dims_of(input_specs(module["main"], inputs)), dims)
    module = fix_dims(module, dims)
    module, constants = lift_constants(module, {})
    module["main"] = module["main"].with_attr("num_input", len(inputs))
    # The module names no source nodes: its own variables are the best names that there are.
    own = {b.var.name: b.var.name for block in module["main"].body.blocks for b in block.bindings}
    module, nodes = tag_bindings(module, own)
    return ImportedModel(
        source=Model(name, "relax", sha256_of_file(path), {}, f"tvm {tvm.__version__}"),
        module=module,
        inputs=input_specs(module["main"], inputs),
        output_names=output_names(module["main"]),
        dims=resolved,
        weights=constants,
        nodes=nodes,
    )


def _read(path: Path) -> tvm.IRModule:
    hint = "write it with tvm.ir.save_json of an IRModule whose function 'main' is the model"
    try:
        text = path.read_text(encoding="utf-8")
        json.loads(text)  # TVM's own reader aborts on some malformed texts
        module = tvm.ir.load_json(text)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path}: is not JSON", detail=str(error), hint=hint) from None
    except Exception as error:  # TVM raises whatever its reader runs into
        raise ModelError(f"{path}: is not a module that TVM can read", detail=str(error)[:400], hint=hint) from None
    if not isinstance(module, tvm.IRModule) or "main" not in {v.name_hint for v in module.functions}:
        raise ModelError(f"{path}: holds no IRModule with a function 'main'", hint=hint)
    if not isinstance(module["main"], relax.Function):
        raise ModelError(f"{path}: 'main' is not a Relax function", hint=hint)
    return module

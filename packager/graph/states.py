"""Declares states: tensors that a session keeps between runs, such as a KV-cache.

A state is an input of the model and the output with its next value, of equal type and static shape. They become memory
of the session instead of inputs and outputs of the bundle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from packager.errors import UsageError, valid_names
from packager.ir.model import ImportedModel, State


def parse_states(texts: Sequence[str]) -> dict[str, str]:
    """Parse ``INPUT=OUTPUT`` texts. Raises UsageError."""
    states: dict[str, str] = {}
    for text in texts:
        match = re.fullmatch(r"([^=]+)=([^=]+)", text.strip())
        if not match:
            raise UsageError(f"--state {text!r} cannot be read", hint="write --state INPUT=OUTPUT")
        if match[1] in states:
            raise UsageError(f"--state {match[1]} is given twice")
        states[match[1]] = match[2]
    return states


def declare_states(model: ImportedModel, requested: Mapping[str, str], *, partly: bool = False) -> ImportedModel:
    """Add the requested states (input -> output) to those that the model's file declares.

    ``partly``: one of several models, which may have only some of the inputs and outputs. Raises UsageError for unknown
    names, and for tensors that cannot be a state.
    """
    inputs = {spec.name for spec in model.signature.inputs}
    declared = {state.name: state for state in model.signature.states}
    for name, output in requested.items():
        if partly and name not in inputs and output not in model.signature.output_names:
            continue
        own = declared.get(name)
        if own is None or own.output != output:  # else keep the file's declaration with its initial value
            declared[name] = State(name, output)
    states = tuple(declared.values())
    _check_names(model, states, partly)
    for state in states:
        _check_types(model, state)
    return replace(model, signature=replace(model.signature, states=states))


def check_declared(requested: Mapping[str, str], models: Iterable[ImportedModel]) -> None:
    """Raise UsageError for a state that no model reads, or no model writes."""
    models = list(models)
    for name, output in requested.items():
        if not any(name == spec.name for model in models for spec in model.signature.inputs):
            raise UsageError(f"--state {name}={output}: no model has an input {name!r}")
        if not any(output in model.signature.output_names for model in models):
            raise UsageError(f"--state {name}={output}: no model has an output {output!r}")


def state_types(model: ImportedModel, state: State) -> tuple[str, tuple[int, ...]]:
    """Return dtype and shape of a state, from its input or else its output. Raises UsageError."""
    for spec in model.signature.inputs:
        if spec.name == state.name:
            return spec.dtype, tuple(extent for extent in spec.shape if isinstance(extent, int))
    ty = _output_types(model.module["main"])[model.signature.output_names.index(state.output)]
    found = _type_of(ty)
    if found is None:
        raise UsageError(
            f"--state {state.name}={state.output}: the output is {_shown(ty)}, but a state's shape is static",
            hint="fix its dims with --dim",
        )
    return found


def _check_names(model: ImportedModel, states: tuple[State, ...], partly: bool) -> None:
    names = [spec.name for spec in model.signature.inputs]
    for state in states if not partly else ():
        for kind, name, known in (("input", state.name, names), ("output", state.output, model.signature.output_names)):
            if name not in known:
                raise UsageError(
                    f"--state {state.name}={state.output}: the model has no {kind} {name!r}",
                    hint=valid_names(name, known, f"{kind}s"),
                )
    seen: dict[str, str] = {}
    for state in states:
        first = seen.setdefault(state.output, state.name)
        if first != state.name:
            raise UsageError(f"--state: output {state.output!r} is the next value of both {first!r} and {state.name!r}")


def _output_types(main: Any) -> list[Any]:
    ty = main.ret_ty
    return list(ty.fields) if hasattr(ty, "fields") else [ty]


def _check_types(model: ImportedModel, state: State) -> None:
    option = f"--state {state.name}={state.output}"
    spec = next((spec for spec in model.signature.inputs if spec.name == state.name), None)
    if spec is None:
        state_types(model, state)
        return
    for axis, extent in enumerate(spec.shape):
        if not isinstance(extent, int):
            raise UsageError(
                f"{option}: axis {axis} of input {spec.name!r} is symbolic ({extent}), but a state's shape is static",
                hint=f"fix it: --dim {extent}=SIZE",
            )
    types = dict(zip(model.signature.output_names, _output_types(model.module["main"]), strict=True))
    ty = types.get(state.output)
    if ty is not None and _type_of(ty) != (spec.dtype, spec.shape):
        raise UsageError(
            f"{option}: the input is {spec.dtype}{list(spec.shape)}, but the output is {_shown(ty)}",
            hint="a state has one type and one shape: export the model with a cache of a fixed size, written in place",
        )
    initial = state.initial
    if initial is not None and (initial.dtype.name, initial.shape) != (spec.dtype, spec.shape):
        raise UsageError(
            f"{option}: the initial value is {initial.dtype.name}{list(initial.shape)}, "
            f"but the state is {spec.dtype}{list(spec.shape)}"
        )


def _type_of(ty: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return dtype and shape of a Relax tensor type; None if not static."""
    values = getattr(getattr(ty, "shape", None), "values", None)
    if values is None:
        return None
    extents = [getattr(extent, "value", None) for extent in values]
    if any(extent is None for extent in extents):
        return None
    return str(ty.dtype), tuple(int(extent) for extent in extents if extent is not None)


def _shown(ty: Any) -> str:
    values = getattr(getattr(ty, "shape", None), "values", None)
    if values is None:
        return "of unknown shape"
    return f"{ty.dtype}[{', '.join(str(getattr(extent, 'value', extent)) for extent in values)}]"

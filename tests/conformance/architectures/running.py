"""Export an architecture in one of its forms, build a bundle of it, and compare that with torch."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import packager
from packager.errors import PackagerError

from .compare import compare
from .example import Example

FORMS = ("pt2", "onnx")


@dataclass(frozen=True)
class Outcome:
    """What became of an architecture in one form.

    ``verdict`` is ``right``, ``wrong``, or ``refused`` with packager's error as ``reason``. ``error`` is the largest
    difference to torch of all outputs and inputs, where 1 is the root mean square of an output; ``share`` is the
    largest part of what RTOL and ATOL allow.
    """

    architecture: str
    form: str
    verdict: str
    dynamic: tuple[str, ...]
    error: float = 0.0
    share: float = 0.0
    reason: str = ""


def run(name: str, example: Example, form: str, folder: Path, targets: Sequence[str] = ()) -> Outcome:
    """Return the outcome of one architecture in one form. Files are left in ``folder``."""
    model, library = folder / f"{name}.{form}", folder / f"{name}-{form}.so"
    dims = _dims(example)
    export(example, model)
    try:
        # A .pt2 file declares the bounds of its dims itself.
        packager.build(model, library, dims=dims if form == "onnx" else {}, targets=targets, cache=False)
    except PackagerError as error:
        return Outcome(name, form, "refused", tuple(dims), reason=reason_of(error))
    largest = share = 0.0
    with packager.load(library) as bundle:
        for inputs in (example.inputs, *example.others):
            with torch.no_grad():
                wanted = example.module(*inputs)
            feeds = {spec.name: tensor.numpy() for spec, tensor in zip(bundle.inputs, inputs, strict=True)}
            results = list(bundle.run(feeds).values())
            for result, tensor in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
                error, part = compare(result, tensor.numpy())
                largest, share = max(largest, error), max(share, part)
    return Outcome(name, form, "right" if share <= 1 else "wrong", tuple(dims), largest, share)


def reason_of(error: PackagerError) -> str:
    """Return what an error says, in one line."""
    detail = (error.detail or "").strip().splitlines()
    return " | ".join([type(error).__name__, str(error), *detail[:3]])


def export(example: Example, path: Path) -> None:
    """Write ``example`` as what ``path``'s suffix says."""
    dynamic = _dynamic_shapes(example)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # exporters warn of their own deprecated calls
        model: Any = example.module
        if path.suffix == ".pt2" or example.deferred:
            model = torch.export.export(
                model,
                example.inputs,
                dynamic_shapes=dynamic,
                prefer_deferred_runtime_asserts_over_guards=example.deferred,
            )
        if path.suffix == ".pt2":
            torch.export.save(model, path)
            return
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.onnx.export(
            model,
            example.inputs,
            str(path),
            dynamo=True,
            dynamic_shapes=dynamic,
            external_data=False,
            verbose=False,
        )


def _dynamic_shapes(example: Example) -> tuple[Any, ...] | None:
    """Return the dynamic axes as torch wants them: those of ``*arguments`` in a tuple of their own."""
    if example.dynamic is None:
        return None
    kinds = [parameter.kind for parameter in inspect.signature(example.module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return example.dynamic
    named = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    return *example.dynamic[:named], example.dynamic[named:]


def _dims(example: Example) -> Mapping[str, tuple[int, int]]:
    dims = [dim for axes in example.dynamic or () for dim in axes.values()]
    return {dim.__name__: (dim.min, dim.max) for dim in dims}

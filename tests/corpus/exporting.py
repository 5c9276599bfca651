"""Write torch modules by both of torch's exporters to ONNX."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.conformance.architectures.example import randomized

from .case import Call, Case, Model


def export(model: Model, exporter: str, path: Path) -> None:
    """Write ``model`` to ``path`` as the exporter does by default."""
    torch.manual_seed(0)
    module, inputs = randomized(model.make()), tuple(model.inputs.values())
    torch.backends.mha.set_fastpath_enabled(False)  # a fused operator that neither exporter knows
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    # The exporter prints a whole graph where it knows no symbol for an operator.
    with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # exporters warn of their own deprecated calls
        names = {"input_names": list(model.inputs), "output_names": list(model.outputs)}
        if exporter == "torchscript":
            torch.onnx.export(
                module,
                inputs,
                str(path),
                **names,
                dynamic_axes={name: dict(axes) for name, axes in {**model.axes, **model.outputs}.items() if axes},
                opset_version=model.opset,
                dynamo=False,
            )
            return
        shapes = tuple(dict(model.axes.get(name, {})) or None for name in model.inputs)
        torch.onnx.export(
            module,
            inputs,
            str(path),
            **names,
            dynamic_shapes=_of_arguments(module, shapes) if any(shapes) else None,
            opset_version=model.dynamo_opset,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def _of_arguments(module: nn.Module, shapes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the dynamic axes as the arguments of ``forward`` are nested: Call takes ``*tensors``."""
    return (shapes,) if isinstance(module, Call) else shapes


def cases(models: Iterable[Model]) -> list[Case]:
    """Return a case for each exporter of each model."""
    return [
        Case(
            exporter,
            model.name,
            lambda path, model=model, exporter=exporter: export(model, exporter, path),
            dims=model.dims,
            sizes=model.sizes,
            needs=("onnxscript",) if exporter == "dynamo" else (),
            tolerance=model.tolerance,
            random=model.random,
        )
        for model in models
        for exporter in model.exporters
    ]

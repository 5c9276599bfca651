"""The zoo: all entries, their ONNX files, and what float64 computes from their inputs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.cpu.models import OPSET
from benchmarks.harness.pairs import load_pairs, save_pairs
from benchmarks.harness.turns import Model
from benchmarks.zoo.audio import AUDIO
from benchmarks.zoo.classifiers import CLASSIFIERS
from benchmarks.zoo.dense_connections import DENSE_CONNECTIONS
from benchmarks.zoo.entry import Entry, Inputs
from benchmarks.zoo.fields import FIELDS
from benchmarks.zoo.generators import GENERATORS
from benchmarks.zoo.graphs import GRAPHS
from benchmarks.zoo.image_to_image import IMAGE_TO_IMAGE
from benchmarks.zoo.restoration import RESTORATION
from benchmarks.zoo.series import SERIES
from benchmarks.zoo.speech import SPEECH
from benchmarks.zoo.text import TEXT
from benchmarks.zoo.unseen.layers import LAYERS
from benchmarks.zoo.unseen.structures import STRUCTURES
from benchmarks.zoo.volumes import VOLUMES

ENTRIES = (
    *CLASSIFIERS, *DENSE_CONNECTIONS, *IMAGE_TO_IMAGE, *RESTORATION, *GENERATORS, *AUDIO, *SPEECH, *TEXT, *SERIES,
    *VOLUMES, *GRAPHS, *FIELDS, *LAYERS, *STRUCTURES,
)  # fmt: skip
ZOO = {entry.name: entry for entry in ENTRIES}
SEED = 7


def make(name: str, folder: Path) -> Model:
    """Return a model of the zoo, made in ``folder`` unless it is there. Its outputs are those of float64, rounded."""
    path = folder / f"{name}.onnx"
    pair = path.with_suffix(".npz")
    if not pair.exists():
        folder.mkdir(parents=True, exist_ok=True)
        module, inputs = instance(ZOO[name])
        export(module, inputs, path)
        exact = run(module.double(), {key: t.double() if t.is_floating_point() else t for key, t in inputs.items()})
        save_pairs(pair, [({key: tensor.numpy() for key, tensor in inputs.items()}, {"output": exact})])
    inputs_, outputs = load_pairs(pair)[0]
    return Model(name, 1, path, inputs_, outputs)


def instance(entry: Entry) -> tuple[nn.Module, Inputs]:
    """Return the module of an entry and its inputs, always the same ones. Norms have statistics of their own."""
    torch.manual_seed(SEED)
    module, inputs = entry.make(), entry.inputs()
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
                assert part.running_var is not None
                part.running_mean.normal_(0, 0.1)
                part.running_var.uniform_(0.5, 1.5)
    return module, inputs


def export(module: nn.Module, inputs: Inputs, path: Path, dims: Mapping[int, str] | None = None) -> None:
    """Write an ONNX file by torch's older exporter, which needs no package beyond torch.

    Its shapes are fixed but for the ``dims`` of all inputs and of the output, axes with their names.
    """
    symbolic = dict.fromkeys([*inputs, "output"], dims) if dims else None
    torch.backends.mha.set_fastpath_enabled(False)  # a fused operator that the exporter does not know
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, tuple(inputs.values()), path, dynamo=False, opset_version=OPSET,
            input_names=list(inputs), output_names=["output"], dynamic_axes=symbolic,
        )  # fmt: skip


def run(module: nn.Module, inputs: Inputs) -> np.ndarray:
    with torch.no_grad():
        result = module(*inputs.values())
    (first,) = result if isinstance(result, tuple) else (result,)
    array: np.ndarray = first.numpy()
    return array.astype(np.float32)

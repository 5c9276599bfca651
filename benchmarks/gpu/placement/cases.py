"""What is placed: networks, batches and precisions, and the Targets of their trials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.placement.networks import NETWORKS
from benchmarks.gpu.zoo.cases import ENTRIES as ZOO_ENTRIES
from benchmarks.gpu.zoo.cases import module_of
from benchmarks.harness.gpu import matches
from benchmarks.zoo.models import export

ENTRIES = ZOO_ENTRIES | {entry.name: entry for entry in NETWORKS}
CUTLASS = "cutlass -candidates=1"  # more take many times as long to compile
CUDNN = "cudnn -operators=conv1d,conv2d,conv3d,conv_transpose,depthwise"
TARGETS = {"fp16": (CUTLASS, "cublas", CUDNN), "fp32": (CUTLASS, f"{CUDNN} -allow_tf32=1")}
"""Of the trials. In float32 cutlass multiplies in three parts of TF32; cudnn, that rounds to TF32, is asked for."""


@dataclass(frozen=True)
class Case:
    """A network for a batch in a precision."""

    model: str
    batch: int
    precision: str = "fp16"

    @property
    def name(self) -> str:
        """Its name in files and reports: ``bert_base-8``, ``bert_base-8-fp32``."""
        return f"{self.model}-{self.batch}" + ("" if self.precision == "fp16" else f"-{self.precision}")

    @property
    def alone(self) -> dict[str, str]:
        """The Targets of its trial, each by its kind."""
        return {target.split()[0]: target for target in TARGETS[self.precision]}

    def targets(self, arch: str, home: str, only: str | None = None) -> list[str]:
        """Return ``cuda``, of a toolkit in the folder ``home`` if there is one, and one other, or all of a trial."""
        cuda = f"cuda -arch={arch}" + (f" -home={home}" if home else "")
        return [cuda, *(TARGETS[self.precision] if only is None else (only,))]

    @property
    def half(self) -> str | None:
        """The option ``precision`` of its builds."""
        return None if self.precision == "fp32" else self.precision


# What says most comes first: time may end.
CASES = (
    Case("bert_base", 8),
    Case("llama_layer_128", 1),
    Case("resnet50", 32),
    Case("vit_b16", 16),
    Case("resnet3d_50", 1),
    Case("resnext50", 16),
    Case("dcgan", 8),
    Case("gpt2", 8),
    Case("llama_layer_2048", 1),
    Case("llama_layer_16", 1),
    Case("llama_layer_1", 1),
    Case("bert_base", 1),
    Case("bert_base", 32),
    Case("vae_decoder", 1),
    Case("bert_base", 8, "fp32"),
    Case("resnet3d_50", 1, "fp32"),
    Case("nasnet", 1),
)
BY_NAME = {case.name: case for case in CASES}


def chosen(only: str) -> list[Case]:
    """Return the cases whose names match the patterns."""
    return [case for case in CASES if matches(case.name, only)]


def exported(case: Case, folder: Path) -> Path:
    """Return the ONNX file of a case, written if it is not there."""
    path = folder / f"{case.model}-{case.batch}.onnx"
    if not path.exists():
        partial = path.with_suffix(f".{case.precision}.part")  # two cases may have one model
        export(*module_of(ENTRIES[case.model], case.batch), partial)
        partial.replace(path)
    return path

"""TensorRT for RTX, whose builder needs no GPU, parses and builds what is written.

Skipped where the packages tensorrt-rtx-cu13-libs and tensorrt-rtx-cu13-bindings are not installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from packager.pipeline.export import export
from tests.samples.conftest import SAMPLES, import_sample

trt: Any = pytest.importorskip("tensorrt_rtx_bindings")
pytestmark = pytest.mark.slow


def build(path: Path, bounds: dict[str, tuple[int, int]]) -> int:
    """Build an engine for SM 89 with these bounds of the dims, and return its bytes."""
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse_from_file(str(path)), [parser.get_error(n).desc() for n in range(parser.num_errors)]
    config = builder.create_builder_config()
    if bounds:
        config.add_optimization_profile(profile_of(builder, network, bounds))
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None
    return int(plan.nbytes)


def profile_of(builder: Any, network: Any, bounds: dict[str, tuple[int, int]]) -> Any:
    profile = builder.create_optimization_profile()
    for number in range(network.num_inputs):
        tensor = network.get_input(number)
        extents = list(enumerate(tensor.shape))
        named = [(e, e) if e >= 0 else bounds[tensor.get_dimension_name(axis)] for axis, e in extents]
        least, most = [low for low, _ in named], [high for _, high in named]
        profile.set_shape(tensor.name, least, most, most)
    return profile


def test_digits(tmp_path: Path) -> None:
    made = export(SAMPLES / "digits" / "digits.onnx", tmp_path / "m.onnx", dims={"n": (1, 64)})
    assert build(made.model, dict(made.dims)) > 0


@pytest.mark.parametrize("precision", [None, "fp16"])
def test_bert_sample(precision: str | None, tmp_path: Path) -> None:
    onnx.save(import_sample("bert_cutlass/make_model.py").make_model(2, 64, 4, 16, 0), tmp_path / "bert.onnx")
    made = export(tmp_path / "bert.onnx", tmp_path / "m.onnx", dims={"n": (1, 8)}, precision=precision)
    assert build(made.model, dict(made.dims)) > 0


@pytest.mark.parametrize("name", ["unet", "llama_past", "resnet", "vit", "t5", "bilstm"])
def test_models_that_torch_exports(name: str, tmp_path: Path) -> None:
    for module in ("torch", "transformers"):
        pytest.importorskip(module)
    from tests.corpus.files import CASES

    case = CASES[f"{name}.torchscript"]
    case.make(tmp_path / "source.onnx")
    made = export(tmp_path / "source.onnx", tmp_path / "m.onnx", dims=dict(case.dims))
    assert build(made.model, dict(made.dims)) > 0

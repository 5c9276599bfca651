"""RNN, LSTM and GRU against onnxruntime: what the operator cases of onnx leave out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import packager
from packager.errors import ModelError
from packager.lower import lowering
from packager.lower.legalize.recurrent import expand_recurrent
from tests.onnx_nodes import FLOAT, check_with_onnxruntime, model_of, run_bundle

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _model(kind: str, directions: int, batch: int | str, steps: int | str = 3, **attributes: Any) -> Any:
    rng = np.random.default_rng(7)
    hidden, width, rows = 4, 5, 4 * GATES[kind]
    constants = {
        "w": rng.standard_normal((directions, rows, width)).astype(np.float32),
        "r": rng.standard_normal((directions, rows, hidden)).astype(np.float32),
        "b": rng.standard_normal((directions, 2 * rows)).astype(np.float32),
        "lengths": np.array([3, 1], np.int32),
    }
    operands = ["x", "w", "r", "b", "lengths" if attributes.pop("lengths", False) else ""]
    if attributes.pop("peepholes", False):
        constants["p"] = rng.standard_normal((directions, 3 * hidden)).astype(np.float32)
        operands += ["", "", "p"]
    outputs = ["y", "h", "c"][: 3 if kind == "LSTM" else 2]
    node = helper.make_node(kind, operands, outputs, hidden_size=hidden, **attributes)
    used = {name: value for name, value in constants.items() if name in operands}
    return model_of([node], {"x": (np.float32, (steps, batch, width))}, dict.fromkeys(outputs, FLOAT), used)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "directions", "attributes"),
    [
        ("LSTM", 2, {"direction": "bidirectional", "lengths": True, "peepholes": True}),
        ("LSTM", 1, {"activations": ["HardSigmoid", "Softsign", "Relu"], "input_forget": 1}),
        ("GRU", 1, {"direction": "reverse", "lengths": True, "linear_before_reset": 1}),
        ("GRU", 1, {"activations": ["Sigmoid", "LeakyRelu"], "activation_alpha": [0.3]}),
        ("RNN", 2, {"direction": "bidirectional", "activations": ["Relu", "Tanh"], "clip": 0.5}),
    ],
)
def test_as_onnxruntime(kind: str, directions: int, attributes: dict[str, Any], tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((3, 2, 5)).astype(np.float32)
    check_with_onnxruntime(_model(kind, directions, 2, **attributes), {"x": x}, tmp_path)


@pytest.mark.slow
def test_the_batch_may_be_symbolic(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((3, 3, 5)).astype(np.float32)
    check_with_onnxruntime(_model("GRU", 1, "batch"), {"x": x}, tmp_path, dims={"batch": (1, 4)})


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.slow
@pytest.mark.parametrize("targets", [("llvm",), ("llvm", "ccompiler")])
@pytest.mark.parametrize(("kind", "directions"), [("LSTM", 2), ("GRU", 1)])
def test_a_run_takes_as_many_steps_as_it_has(kind: str, directions: int, targets: Any, tmp_path: Path) -> None:
    """The number of steps has no limit but that of the dim, and building does not take longer with it."""
    attributes = {"direction": "bidirectional"} if directions == 2 else {"direction": "reverse"}
    model = _model(kind, directions, "batch", "steps", **attributes)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    dims = {"steps": (1, 3000), "batch": (1, 4)}
    packager.build(tmp_path / "model.onnx", tmp_path / "model.so", dims=dims, targets=targets)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with packager.load(tmp_path / "model.so") as bundle:
        for steps, batch in ((1, 1), (17, 3), (3000, 4)):
            feeds = {"x": np.random.default_rng(steps).standard_normal((steps, batch, 5)).astype(np.float32)}
            made = bundle.run(feeds)
            for value, wanted in zip(model.graph.output, session.run(None, feeds), strict=True):
                np.testing.assert_allclose(made[value.name], wanted, rtol=1e-4, atol=1e-5, err_msg=value.name)


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.slow
@pytest.mark.parametrize("batch", [2, 9])  # the largest batch with a product of its own is 8
@pytest.mark.parametrize(
    ("kind", "attributes"),
    [("LSTM", {"lengths": True, "peepholes": True}), ("GRU", {"linear_before_reset": 1}), ("GRU", {"clip": 0.5})],
)
def test_the_loops_of_a_gpu(
    kind: str, attributes: dict[str, Any], batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both directions are one loop; compiled for the CPU here."""
    monkeypatch.setattr(lowering, "expand_recurrent", lambda module, _on_gpu: expand_recurrent(module, True))
    if "lengths" in attributes:
        batch = 2
    model = _model(kind, 2, batch, "steps", direction="bidirectional", **attributes)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    packager.build(
        tmp_path / "model.onnx",
        tmp_path / "model.so",
        dims={"steps": (1, 20)},
        targets=["llvm"],
        keep_workdir=tmp_path / "work",  # the cache knows nothing of the patch
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with packager.load(tmp_path / "model.so") as bundle:
        for steps in (3, 20):
            feeds = {"x": np.random.default_rng(steps).standard_normal((steps, batch, 5)).astype(np.float32)}
            made = bundle.run(feeds)
            for value, wanted in zip(model.graph.output, session.run(None, feeds), strict=True):
                np.testing.assert_allclose(made[value.name], wanted, rtol=1e-4, atol=1e-5, err_msg=value.name)


@pytest.mark.slow
def test_final_states_alone(tmp_path: Path) -> None:
    model = _model("LSTM", 2, 2, direction="bidirectional")
    model.graph.node[0].output[0] = ""
    del model.graph.output[0]
    x = np.random.default_rng(1).standard_normal((3, 2, 5)).astype(np.float32)
    check_with_onnxruntime(model, {"x": x}, tmp_path)


def test_an_unknown_activation_is_refused(tmp_path: Path) -> None:
    x = np.zeros((3, 2, 5), np.float32)
    with pytest.raises(ModelError, match="LSTM") as caught:
        run_bundle(_model("LSTM", 1, 2, activations=["Sigmoid", "Gelu", "Tanh"]), {"x": x}, tmp_path)
    assert "Gelu" in (caught.value.detail or "")

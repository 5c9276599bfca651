from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from workplace import Workplace

import packager


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that the documents call ``model.onnx``: y = sigmoid(x @ w), float32 [2, 3], with a bundle beside it."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save

    weight = np.arange(9, dtype=np.float32).reshape(3, 3) / 8
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Sigmoid", ["z"], ["y"])],
        "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    packager.build(path, path.with_suffix(".so"), golden=0)
    return path


@pytest.fixture
def workplace(tmp_path: Path, small_model: Path) -> Workplace:
    """A user's folder, with a model and its bundle."""
    for path in (small_model, small_model.with_suffix(".so")):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return Workplace(tmp_path)

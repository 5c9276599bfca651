"""Files of ``--constants``, and how frontends use them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from packager.bundle import safetensors
from packager.errors import UsageError
from packager.frontends.load import load_model
from packager.frontends.overrides import Overrides, read_overrides


def model(path: Path, weights: dict[str, np.ndarray], text: str) -> Path:
    graph = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}')
    graph.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(graph, path)
    return path


def test_reads_npz_and_safetensors(tmp_path: Path) -> None:
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(3, np.int64)}
    np.savez(tmp_path / "a.npz", **arrays)
    image = safetensors.encode(arrays)
    size = int.from_bytes(image[:8], "little")
    text = image[8 : 8 + size].rstrip()  # data that are not aligned
    (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + image[8 + size :])
    for name in ("a.npz", "a.safetensors"):
        overrides = read_overrides(tmp_path / name)
        assert set(overrides.arrays) == {"w", "b"}
        found = overrides.find("w", "float32", (2, 3))
        assert found is not None
        assert found.flags.c_contiguous
        assert found.flags.aligned
        np.testing.assert_array_equal(found, arrays["w"])
        assert overrides.find("other", "float32", (2, 3)) is None


def test_big_endian_and_transposed_arrays_are_taken_by_value() -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3).T
    found = Overrides(Path("a.npz"), {"w": array}).find("w", "float32", (3, 2))
    assert found is not None
    assert found.tobytes() == np.arange(6, dtype="<f4").reshape(2, 3).T.tobytes()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.bin", b"", "the suffix '.bin' is neither .safetensors nor .npz"),
        ("a.npz", None, "cannot be read: .*No such file"),
        ("a.safetensors", None, "cannot be read: .*No such file"),
        ("a.npz", b"PK\3\4 not a zip file", "cannot be read"),
        ("a.npz", b"", "cannot be read"),
        ("a.npz", b"hello", "cannot be read: it is not an .npz file"),
        ("a.safetensors", b"", "it is empty"),
        ("a.safetensors", b"\x08\0\0\0\0\0\0\0{}", "cut short"),
    ],
)
def test_refuses_files(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        read_overrides(tmp_path / name)
    assert "--constants" in caught.value.message


def test_refuses_a_single_array(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(UsageError, match="one array without a name"):
        read_overrides(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("array", "described"),
    [
        (np.zeros((3, 2), np.float32), r"'w' is float32\[3, 2\], in the model it is float32\[2, 3\]"),
        (np.zeros((2, 3), np.float64), r"'w' is float64\[2, 3\], in the model it is float32\[2, 3\]"),
        (np.zeros(6, np.float32), r"'w' is float32\[6\], in the model it is float32\[2, 3\]"),
    ],
)
def test_nothing_is_cast_or_reshaped(array: np.ndarray, described: str) -> None:
    with pytest.raises(UsageError, match=described):
        Overrides(Path("a.npz"), {"w": array}).find("w", "float32", (2, 3))


def test_an_unknown_name_brings_up_the_nearest(tmp_path: Path) -> None:
    weights = {"dense_weight": np.zeros((4, 4), np.float32)}
    path = model(tmp_path / "m.onnx", weights, "m (float[4] x) => (float[4] y) { y = MatMul(x, dense_weight) }")
    overrides = Overrides(tmp_path / "a.npz", {"dense_wieght": weights["dense_weight"]})
    with pytest.raises(UsageError, match=r"no constant 'dense_wieght' \(did you mean 'dense_weight'\?\)"):
        load_model(path, {}, None, overrides=overrides)


def test_onnx_initializers_of_every_kind(tmp_path: Path) -> None:
    """Large ones, scalars and shapes that become part of the code, Constant nodes, and one that a fold consumes."""
    weights = {
        "onnx::MatMul_7": np.ones((4, 4), np.float32),
        "scale": np.array(2, np.float32),
        "shape": np.array([4, 1], np.int64),
        "rows": np.ones((4, 4), np.float32),
    }
    text = (
        'm (float[1,4] x) => (float[4,1] y) { m = MatMul(x, "onnx::MatMul_7")\n t = Transpose<perm=[1,0]>(rows)\n'
        " n = MatMul(m, t)\n c = Constant<value = float[1,4] {1,1,1,1}>()\n a = Add(n, c)\n s = Mul(a, scale)\n"
        " y = Reshape(s, shape) }"
    )
    path = model(tmp_path / "m.onnx", weights, text.replace('"onnx::MatMul_7"', "w7"))
    graph = onnx.load(path)
    graph.graph.node[0].input[1] = "onnx::MatMul_7"
    onnx.save(graph, path)
    arrays = {
        "onnx::MatMul_7": np.full((4, 4), 2, np.float32),
        "rows": np.arange(16, dtype=np.float32).reshape(4, 4),
        "scale": np.array(3, np.float32),
        "shape": np.array([2, 2], np.int64),
        "c": np.full((1, 4), 5, np.float32),
    }
    with pytest.raises(UsageError, match=r"'scale' is float32\[1\], in the model it is float32\[\]"):
        load_model(path, {}, None, overrides=Overrides(path, {"scale": np.ones(1, np.float32)}))
    arrays["shape"] = np.array([-1, 1], np.int64)
    imported = load_model(path, {}, None, overrides=Overrides(path, arrays))
    constants = imported.constants()
    assert {name: constant.sources for name, constant in constants.items()} == {
        "onnx::MatMul_7": ("onnx::MatMul_7",),
        "t": ("rows",),
        "c": ("c",),
    }
    for name in ("onnx::MatMul_7", "c"):
        np.testing.assert_array_equal(constants[name].array, arrays[name])
    np.testing.assert_array_equal(constants["t"].array, arrays["rows"].T)
    assert np.may_share_memory(constants["t"].array, imported.own_constants()["rows"])
    assert set(imported.own_constants()) == {"onnx::MatMul_7", "rows", "c"}
    assert "3.0" in str(imported.module) or "T.float32(3" in str(imported.module)


def test_bfloat16_comes_in_safetensors(tmp_path: Path) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    weights = {"w": np.ones((2, 8), bfloat16)}
    path = model(tmp_path / "m.onnx", weights, "m (bfloat16[2,8] x) => (bfloat16[2,8] y) { y = Add(x, w) }")
    other = np.arange(16).astype(bfloat16).reshape(2, 8)
    (tmp_path / "a.safetensors").write_bytes(safetensors.encode({"w": other}))
    imported = load_model(path, {}, None, overrides=read_overrides(tmp_path / "a.safetensors"))
    assert imported.weights["w"].dtype == bfloat16
    assert imported.weights["w"].tobytes() == other.tobytes()


def test_relax_constants_by_number(tmp_path: Path) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.add(x, relax.const(np.ones(4, np.float32))))
        builder.emit_func_output(out)
    path = tmp_path / "m.json"
    path.write_text(tvm.ir.save_json(builder.get()))
    other = np.arange(4, dtype=np.float32)
    imported = load_model(path, {}, None, overrides=Overrides(path, {"constant_0": other}))
    np.testing.assert_array_equal(imported.weights["constant_0"], other)


@pytest.mark.slow
def test_torch_parameters_and_buffers_of_equal_content(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = torch.nn.Linear(8, 8)
            self.register_buffer("first", torch.ones(8))
            self.register_buffer("second", torch.ones(8))

        def forward(self, x):
            return self.dense(x * self.first) + self.second

    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(Module().eval(), (torch.ones(2, 8),)), path)
    other = {"dense.weight": np.full((8, 8), 3, np.float32), "second": np.arange(8, dtype=np.float32)}
    imported = load_model(path, {}, None, overrides=Overrides(path, other))
    assert set(imported.weights) == {"dense.weight", "dense.bias", "first", "second"}
    for name, array in {**other, "first": np.ones(8, np.float32)}.items():
        np.testing.assert_array_equal(imported.weights[name], array)
    with pytest.raises(UsageError, match=r"no constant 'dense.wieght' \(did you mean 'dense.weight'\?\)"):
        load_model(path, {}, None, overrides=Overrides(path, {"dense.wieght": other["dense.weight"]}))

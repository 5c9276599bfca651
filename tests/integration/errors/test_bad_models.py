"""Models that cannot be built: every one a clear error, never a traceback, nothing left behind."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import Cli, assert_refused, tree
from graphs import graph, normal, save
from one_cpu import targets_here

import packager
from packager.errors import ModelError, PackagerError, UnsupportedOperatorsError, UsageError
from packager.frontends.onnx.ops import converters as onnx_converters

pytestmark = [pytest.mark.usefixtures("leaves_nothing"), pytest.mark.slow]


def build(model: Path, folder: Path, **options: object) -> Path:
    """Build into a folder, for one CPU. The cache of this session has the runtime, and no other build of such bytes."""
    return packager.build(model, folder / "out.so", targets=targets_here(), **options)


def assert_clear(error: PackagerError) -> None:
    """Check that an error of the model says what is wrong and is rendered without a traceback."""
    assert error.exit_code in (2, 3), error.render()
    assert error.message
    assert "Traceback" not in error.render()
    assert len(error.render()) < 4000


@pytest.fixture(scope="module")
def image() -> bytes:
    """The bytes of a model with a conv, attributes, weights and an operator of several inputs."""
    text = """convnet (float[1,3,8,8] x) => (float[1,5] y) {
      c = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w, b)  r = Relu(c)  p = GlobalAveragePool(r)
      f = Flatten<axis=1>(p)  g = Gemm<transB=1>(f, v, u)  y = Softmax<axis=1>(g) }"""
    weights = {"w": normal(4, 3, 3, 3), "b": normal(4), "v": normal(5, 4), "u": normal(5)}
    return graph(text, weights).SerializeToString()


def attempt(content: bytes, folder: Path) -> str:
    """Build a model of these bytes; return "built" or the message of its error. Anything else fails the test."""
    model = folder / "model.onnx"
    model.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, while it folds what the damage made of the weights
        try:
            build(model, folder)
        except PackagerError as error:
            assert_clear(error)
            assert not (folder / "out.so").exists()
            return error.message
    (folder / "out.so").unlink()
    return "built"


def test_every_truncation_is_an_error(image: bytes, tmp_path: Path) -> None:
    lengths = {*range(0, 40), *range(40, len(image), 37), len(image) - 1}
    for length in sorted(lengths):
        attempt(image[:length], tmp_path)
    assert attempt(image, tmp_path) == "built"


def damaged(image: bytes, seed: int) -> bytes:
    """Return the image with a few bytes flipped, removed, inserted or repeated."""
    rng = np.random.default_rng(seed)
    content = bytearray(image)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(content)))
        match int(rng.integers(4)):
            case 0:
                content[at] ^= 1 << int(rng.integers(8))
            case 1:
                content[at] = int(rng.integers(256))
            case 2:
                del content[at : at + int(rng.integers(1, 9))]
            case 3:
                content[at:at] = rng.bytes(int(rng.integers(1, 9)))
    return bytes(content)


@pytest.mark.parametrize("block", range(2))
def test_damage_is_an_error_or_another_model(image: bytes, block: int, tmp_path: Path) -> None:
    for seed in range(block * 25, block * 25 + 25):
        attempt(damaged(image, seed), tmp_path)


@pytest.mark.sampled(8, every_value=False)
@pytest.mark.parametrize("block", range(10, 20))
def test_much_damage_is_an_error_or_another_model(image: bytes, block: int, tmp_path: Path) -> None:
    for seed in range(block * 25, block * 25 + 25):
        attempt(damaged(image, seed), tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00" * 100, b"hello, world\n", b"\x7fELF" + bytes(60), b"PK\x03\x04" + bytes(60), b"\xff" * 999],
    ids=["empty", "zeros", "text", "ELF", "zip", "ones"],
)  # fmt: skip
def test_a_file_that_is_no_onnx(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(content)
    with pytest.raises(ModelError) as caught:
        build(tmp_path / "x.onnx", tmp_path)
    assert "x.onnx" in caught.value.message
    assert caught.value.hint


def test_a_truncated_model_on_the_command_line(warm_cli: Cli, image: bytes, tmp_path: Path) -> None:
    (tmp_path / "cut.onnx").write_bytes(image[: len(image) // 2])
    done = warm_cli("build", tmp_path / "cut.onnx")
    assert_refused(done, 3, "cut.onnx: cannot be read as ONNX", hint="is the file complete?")


@pytest.mark.parametrize("how", ["missing", "short", "folder"])
def test_external_data_that_cannot_be_read(how: str, models: Path, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes((models / "external.onnx").read_bytes())
    data = tmp_path / "external.data"
    if how == "short":
        data.write_bytes((models / "external.data").read_bytes()[:40])
    elif how == "folder":
        data.mkdir()
    with pytest.raises(ModelError) as caught:
        build(tmp_path / "m.onnx", tmp_path, dims={"n": 1})
    assert "external data" in caught.value.message
    assert "m.onnx" in caught.value.message
    assert "in the model's folder" in (caught.value.hint or "")


def test_external_data_outside_the_folder_is_refused(models: Path, tmp_path: Path) -> None:
    model = onnx.load(models / "external.onnx", load_external_data=False)
    (tmp_path / "secret").write_bytes(bytes(1000))
    (tmp_path / "in").mkdir()
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../secret"
    with pytest.raises(ModelError):
        build(save(model, tmp_path / "in" / "m.onnx"), tmp_path, dims={"n": 1})


UNSUPPORTED = """g (float[4] x) => (float[4] y) {
  [first] a = Frobnicate(x)
  [second] b = Relu(a)
  [third] c = Frobnicate(b)
  [fourth] d = Transmogrify(c)
  [fifth] e = custom.domain.Blend(d, x)
  y = Neg(e)
}"""


def unsupported() -> onnx.ModelProto:
    """A model with three operators that nobody has, in four nodes."""
    header = '<ir_version: 8, opset_import: ["": 17, "custom.domain": 1]>'
    return onnx.parser.parse_model(f"{header}\n{UNSUPPORTED}")


def test_all_unsupported_operators_are_listed_once(warm_cli: Cli, tmp_path: Path) -> None:
    model = unsupported()
    for node in model.graph.node:
        if node.op_type in ("Frobnicate", "Transmogrify"):  # the standard domain refuses unknown names by itself
            node.domain = "custom.domain"
    done = warm_cli("build", save(model, tmp_path / "odd.onnx"))
    assert_refused(done, 3, "3 operators are not supported", hint="replace them in the model")
    lines = [line.strip() for line in done.stderr.splitlines()]
    assert "custom.domain::Frobnicate: first, third" in lines
    assert "custom.domain::Transmogrify: fourth" in lines
    assert "custom.domain::Blend: fifth" in lines


def test_an_unknown_operator_of_the_standard_domain(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        build(save(unsupported(), tmp_path / "odd.onnx"), tmp_path)
    assert "Frobnicate" in caught.value.render()


def test_an_operator_that_tvm_imports_but_does_not_lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(onnx_converters.CONVERTERS, "TopK")  # type: ignore[arg-type]
    text = "g (float[3,7] x) => (float[3,2] v, int64[3,2] i) { [pick] v, i = TopK<axis=1>(x, k) }"
    model = graph(text, {"k": np.array([2], np.int64)})
    with pytest.raises(UnsupportedOperatorsError) as caught:
        build(save(model, tmp_path / "m.onnx"), tmp_path)
    assert list(caught.value.operators.values()) == [("pick",)]


def test_shapes_that_depend_on_data_without_a_bound(tmp_path: Path) -> None:
    model = graph("""g (int64[6] x) => (int64[k] y) {
      zero = Constant <value = int64 {0}> () one = Constant <value = int64 {1}> ()
      m = ReduceMax <keepdims = 0> (x) y = Range(zero, m, one) }""")
    with pytest.raises(ModelError) as caught:
        build(save(model, tmp_path / "m.onnx"), tmp_path)
    assert_clear(caught.value)
    assert "--dim reducemax_0=1:MAX" in (caught.value.hint or "")


def test_unbounded_dims_are_all_listed(warm_cli: Cli, tmp_path: Path) -> None:
    model = graph("g (float[n,m] x, float[k,m] z, float[n,3] u) => (float[n,m] y) { y = Neg(x) }")
    done = warm_cli("build", save(model, tmp_path / "m.onnx"), "--dim", "m=1:4")
    assert_refused(
        done, 2, "2 symbolic dims have no bounds", "n: input 'x', axis 0", "k: input 'z', axis 0", hint="--dim n=1:32"
    )


def test_a_dim_that_the_model_does_not_have(models: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        build(models / "batched.onnx", tmp_path, dims={"batch": (1, 4)})
    assert "--dim batch: the model has no such dim" in caught.value.message
    assert caught.value.hint == "its symbolic dims: n"


def test_an_input_without_a_shape(tmp_path: Path) -> None:
    model = graph("g (float[4] x) => (float[4] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError):
        build(save(model, tmp_path / "m.onnx"), tmp_path)


def test_an_input_of_strings(tmp_path: Path) -> None:
    model = graph("g (string[4] x) => (string[4] y) { y = Identity(x) }")
    with pytest.raises(ModelError) as caught:
        build(save(model, tmp_path / "m.onnx"), tmp_path)
    assert_clear(caught.value)


def test_a_sequence_as_input(tmp_path: Path) -> None:
    model = graph("g (seq(float[4]) s, int64 i) => (float[4] y) { y = SequenceAt(s, i) }")
    with pytest.raises(ModelError, match="input 's' is not a tensor"):
        build(save(model, tmp_path / "m.onnx"), tmp_path)


def test_control_flow(tmp_path: Path) -> None:
    text = """g (bool c, float[4] x) => (float[4] y) {
      y = If(c)
      <then_branch = a () => (float[4] p) { p = Neg(x) }, else_branch = b () => (float[4] q) { q = Abs(x) }> }"""
    with packager.load(build(save(graph(text), tmp_path / "m.onnx"), tmp_path)) as bundle:
        x = np.array([1, -2, 3, -4], np.float32)
        np.testing.assert_array_equal(bundle.run({"c": np.array(True), "x": x})["y"], -x)
        np.testing.assert_array_equal(bundle.run({"c": np.array(False), "x": x})["y"], np.abs(x))


def test_the_folder_of_the_model_is_not_written_to(models: Path, tmp_path: Path) -> None:
    before = tree(models)
    build(models / "external.onnx", tmp_path, dims={"n": 1})
    assert tree(models) == before

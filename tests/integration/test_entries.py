"""Several models in one bundle: shared constants, states and functions, and each right against onnxruntime."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import Cli
from graphs import graph, normal, reference, save

import packager
from packager.deploy.load.abi import BundleTable
from packager.errors import RunError, UsageError

pytestmark = pytest.mark.slow

LLVM = ("llvm",)
WEIGHTS = {"wk": normal(8, 8), "wo": normal(8, 8, seed=1)}
BODY = """k = MatMul(x, wk)  keys_out = ScatterND(keys, at, k)  kt = Transpose(keys_out)  s = MatMul(x, kt)
          p = Softmax(s)  a = MatMul(p, keys_out)  y = MatMul(a, wo) }"""


def attention(name: str, rows: int | str) -> onnx.ModelProto:
    head = f"{name} (float[{rows},8] x, float[16,8] keys, int64[{rows},1] at)"
    return graph(f"{head} => (float[{rows},8] y, float[16,8] keys_out) {{ {BODY}", WEIGHTS)


def save_both(folder: Path, prefill: onnx.ModelProto, decode: onnx.ModelProto) -> list[Path]:
    return [save(prefill, folder / "prefill.onnx"), save(decode, folder / "decode.onnx")]


def build(folder: Path, paths: list[Path], **options: Any) -> Path:
    options = {"targets": LLVM, "keep_workdir": folder / "work", **options}
    return packager.build(paths, folder / "lm.so", **options)


def generate(bundle: packager.Bundle, prefill: onnx.ModelProto, decode: onnx.ModelProto, rows: int) -> None:
    """Run one model and then the other some times, as onnxruntime does with the cache in its caller's hands."""
    rng = np.random.default_rng(0)
    sessions = {"prefill": reference(prefill), "decode": reference(decode)}
    keys = np.zeros((16, 8), np.float32)
    with bundle.session() as session:
        for step in range(6):
            entry, count = ("decode", 1) if step else ("prefill", rows)
            start = rows + step - 1 if step else 0
            feeds = {
                "x": rng.standard_normal((count, 8)).astype(np.float32),
                "at": np.arange(start, start + count).reshape(count, 1),
            }
            y, keys = sessions[entry].run(["y", "keys_out"], {**feeds, "keys": keys})
            got = session.run(feeds, entry=entry)
            assert list(got) == ["y"]
            np.testing.assert_allclose(got["y"], y, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(session.states["keys"], keys, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("targets", [LLVM, ("llvm", "ccompiler")], ids=",".join)
def test_prefill_and_decode(targets: tuple[str, ...], tmp_path: Path) -> None:
    prefill, decode = attention("prefill", 4), attention("decode", 1)
    path = build(tmp_path, save_both(tmp_path, prefill, decode), states={"keys": "keys_out"}, targets=targets)
    with packager.load(path) as bundle:
        assert list(bundle.entries) == ["prefill", "decode"]
        assert bundle.entries["decode"].inputs[0].shape == (1, 8)
        assert bundle.inputs == bundle.entries["prefill"].inputs
        assert [state.name for state in bundle.states] == ["keys"]
        generate(bundle, prefill, decode, 4)
        manifest = bundle.manifest
        assert [entry.states for entry in manifest.entries] == [("keys",), ("keys",)]
        large = [constant for constant in manifest.constants if constant.bytes >= 8 * 8 * 4]
        assert {source for constant in large for source in constant.sources} == {"wk", "wo"}
        assert sum(constant.bytes for constant in large) <= len(targets) * 2 * 8 * 8 * 4, "weights are shared"
    steps = json.loads((tmp_path / "work" / "4-plan.json").read_text())["steps"]
    assert {step["entry"] for step in steps} == {"prefill", "decode"}
    assert not [step for step in steps if "source" in step], "both write the new keys in place"


def test_equal_parts_are_compiled_once(tmp_path: Path) -> None:
    model = graph("f (float[4,8] x) => (float[4,8] y) { a = MatMul(x, wk)  b = Tanh(a)  y = MatMul(b, wo) }", WEIGHTS)
    for targets in (LLVM, ("llvm", "ccompiler")):
        folder = tmp_path / str(len(targets))
        folder.mkdir()
        paths = [save(model, folder / "one.onnx"), save(model, folder / "two.onnx")]
        with packager.load(build(folder, paths, targets=targets)) as bundle:
            calls = [primitive.calls for _, primitive in bundle.manifest.primitives()]
            assert all(count % 2 == 0 for count in calls), "each function is called by both"
            x = normal(4, 8, seed=5)
            first, second = (bundle.run({"x": x}, entry=entry)["y"] for entry in ("one", "two"))
            np.testing.assert_array_equal(first, second)


def test_dims_of_some_and_weights_of_other_contents(tmp_path: Path) -> None:
    """A dim that one model has, and a weight that means another thing in each."""
    first = graph("a (float[n,8] x) => (float[n,8] y) { y = MatMul(x, w) }", {"w": normal(8, 8)})
    second = graph(
        "b (float[m,8] x, float[n,8] z) => (float[m,8] y, float[n,8] v) { y = MatMul(x, w) v = Neg(z) }",
        {"w": normal(8, 8, seed=2)},
    )
    paths = [save(first, tmp_path / "a.onnx"), save(second, tmp_path / "b.onnx")]
    path = build(tmp_path, paths, dims={"n": (1, 8), "m": 3}, weights="external")
    rng = np.random.default_rng(0)
    with packager.load(path) as bundle, bundle.session(threads=2) as session:
        assert [[dim.name for dim in entry.dims] for entry in bundle.manifest.entries] == [["n"], ["n"]]
        for n in (1, 8, 3):
            x, z = (rng.standard_normal((size, 8)).astype(np.float32) for size in (n, n))
            np.testing.assert_allclose(
                session.run({"x": x}, entry="a")["y"], reference(first).run(None, {"x": x})[0], rtol=1e-4, atol=1e-5
            )
            x = rng.standard_normal((3, 8)).astype(np.float32)
            y, v = reference(second).run(None, {"x": x, "z": z})
            got = session.run({"x": x, "z": z}, entry="b")
            np.testing.assert_allclose(got["y"], y, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(got["v"], v)
        assert {"w", "b.w"} == {info.name for info in bundle.constants}
        session.set_constants({"w": np.zeros((8, 8), np.float32)})
        assert not session.run({"x": z}, entry="a")["y"].any()
        assert session.run({"x": x, "z": z}, entry="b")["y"].any(), "it has a weight of its own"


def test_functions_of_one_name_that_are_not_the_same(tmp_path: Path) -> None:
    """The importer writes a function of its own for Pad; those of the first two models differ, the last are equal."""
    models = {
        name: graph(f"{name} (float[2,2] x) => (float[2,{2 + count}] y) {{ y = Pad(x, pads) }}", {"pads": pads})
        for name, count, pads in (
            ("one", 1, np.array([0, 0, 0, 1])),
            ("two", 3, np.array([0, 1, 0, 2])),
            ("three", 3, np.array([0, 1, 0, 2])),
        )
    }
    x = normal(2, 2)
    with packager.load(build(tmp_path, [save(m, tmp_path / f"{name}.onnx") for name, m in models.items()])) as bundle:
        for name, model in models.items():
            np.testing.assert_array_equal(
                bundle.run({"x": x}, entry=name)["y"], reference(model).run(None, {"x": x})[0]
            )


def test_encoder_and_decoder(tmp_path: Path) -> None:
    """One model writes a state that it does not read, the other reads one that it does not write."""
    encoder = graph(
        """enc (float[4,8] x) => (float sum, float[4,8] memory_out) {
          memory_out = MatMul(x, wk)  sum = ReduceSum<keepdims=0>(x, axes) }""",
        {"wk": WEIGHTS["wk"], "axes": np.array([0, 1])},
    )
    decoder = graph(
        """dec (float[1,8] q, float[4,8] memory) => (float[1,8] y) {
          t = Transpose(memory)  s = MatMul(q, t)  p = Softmax(s)  y = MatMul(p, memory) }"""
    )
    paths = [save(encoder, tmp_path / "enc.onnx"), save(decoder, tmp_path / "dec.onnx")]
    path = build(tmp_path, paths, states={"memory": "memory_out"})
    x, q = normal(4, 8, seed=3), normal(1, 8, seed=4)
    memory = reference(encoder).run(["memory_out"], {"x": x})[0]
    with packager.load(path) as bundle, bundle.session() as session:
        session.run({"x": x}, entry="enc")
        for _ in range(2):
            y = session.run({"q": q}, entry="dec")["y"]
            np.testing.assert_allclose(
                y, reference(decoder).run(None, {"q": q, "memory": memory})[0], rtol=1e-4, atol=1e-5
            )
        np.testing.assert_allclose(session.states["memory"], memory, rtol=1e-4, atol=1e-5)


def test_profile_binding_and_errors(tmp_path: Path) -> None:
    path = build(
        tmp_path, save_both(tmp_path, attention("prefill", 4), attention("decode", 1)), states={"keys": "keys_out"}
    )
    with packager.load(path) as bundle, bundle.session() as session:
        feeds = {"x": normal(1, 8), "at": np.array([[2]])}
        assert session.profile(feeds, entry="decode")
        out = np.empty((1, 8), np.float32)
        session.bind(feeds, {"y": out}, entry="decode")()
        np.testing.assert_array_equal(out, session.run(feeds, entry="decode")["y"])
        with pytest.raises(UsageError, match="no entry 'decod'"):
            session.run(feeds, entry="decod")
        with pytest.raises(RunError, match=r"input 'x': axis 0 is 1, expected 4"):
            session.run(feeds)


def test_tables(tmp_path: Path) -> None:
    path = build(
        tmp_path, save_both(tmp_path, attention("prefill", 4), attention("decode", 1)), states={"keys": "keys_out"}
    )
    entry = ctypes.CDLL(str(path)).packager_bundle_v1
    entry.restype = ctypes.POINTER(BundleTable)
    table = entry().contents
    assert table.num_entries == 2
    assert table.entries[0] == ctypes.addressof(table)
    second = BundleTable.from_address(table.entries[1])
    assert (second.name, second.num_entries, second.num_states) == (b"decode", 2, 1)
    assert second.entries[1] == table.entries[1]
    assert second.arena_bytes == table.arena_bytes


def test_command_line_golden_header_and_inspect(tmp_path: Path, warm_cli: Cli) -> None:
    paths = save_both(tmp_path, attention("prefill", 4), attention("decode", "n"))
    output, header = tmp_path / "lm.so", tmp_path / "lm.h"
    options = ("--state", "keys=keys_out", "--dim", "n=1:4", "--golden", "1", "--header", header, "-t", "llvm")
    built = warm_cli("build", *paths, "-o", output, *options)
    assert built.returncode == 0, built.stderr
    verified = warm_cli("verify", output, "--run")
    assert verified.returncode == 0, verified.stdout
    assert "2 golden pairs" in verified.stdout
    assert "#define LM_DECODE_INPUT_AT 1" in header.read_text()
    assert "#define LM_ENTRY_DECODE 1" in header.read_text()
    assert "decode: input" in warm_cli("inspect", output).stdout
    told = json.loads(warm_cli("run", output, "--random", "1", "--entry", "decode", "--json").stdout)
    assert [row["shape"] for row in told["outputs"]] == [[4, 8]]
    assert "prefill:k" in warm_cli("inspect", output, "--json").stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dims": {"k": 4}}, "--dim k: none of the models has such a dim"),
        ({"states": {"cache": "keys_out"}}, r"--state cache=keys_out: no model has an input 'cache'"),
        ({"states": {"keys": "out"}}, r"--state keys=out: no model has an output 'out'"),
        ({"states": {"x": "y"}}, r"state 'x' is float32\[4, 8\] with output 'y' in prefill, but float32\[1, 8\]"),
        ({"constants": "w.npz"}, "--constants is for a bundle of one model"),
        ({"golden": "a.npz"}, "of several models only a seed"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    paths = save_both(tmp_path, attention("prefill", 4), attention("decode", 1))
    with pytest.raises(UsageError, match=message):
        packager.build(paths, tmp_path / "lm.so", targets=LLVM, **changes)


def test_names_of_files(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    paths = [save(attention("decode", 1), tmp_path / name) for name in ("decode.onnx", "more/decode.onnx")]
    with pytest.raises(UsageError, match="two models are named 'decode'"):
        packager.build(paths, tmp_path / "lm.so")
    with pytest.raises(UsageError, match="needs a name"):
        packager.build([paths[0], save(attention("prefill", 4), tmp_path / "prefill.onnx")])

"""Named constants: replaced at build with --constants, swapped at run time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from command_line import Cli, assert_refused
from graphs import Arrays, assert_same, feeds, graph, normal, reference, save
from tvm import relax

import packager
from packager.bundle import safetensors
from packager.deploy.load.loader import Session

pytestmark = pytest.mark.slow

# A convolution and two matrix products that are packed, one that is not, a transposed weight, one used twice.
TEXT = """net (float[n,3,9,9] x) => (float[n,10] y) {
 c = Conv<pads=[1,1,1,1]>(x, kernel, "bias")
 r = Relu(c)
 p = GlobalAveragePool(r)
 f = Flatten(p)
 g = Gemm<transB=1>(f, dense, shift)
 h = Tanh(g)
 m = MatMul(h, mix)
 k = Add(m, shift)
 q = MatMul(k, mix)
 y = MatMul(q, last)
}""".replace('"bias"', "offset")
SHAPES = {
    "kernel": (16, 3, 3, 3),
    "offset": (16,),
    "dense": (32, 16),
    "shift": (32,),
    "mix": (32, 32),
    "last": (32, 10),
}
DIMS = {"n": (1, 4)}
LLVM = ["llvm"]  # a layout of ccompiler that is padded is no view of the constant


def weights(seed: int) -> Arrays:
    return {name: normal(*shape, seed=seed) for name, shape in SHAPES.items()}


def results(seed: int, inputs: Arrays) -> Arrays:
    session = reference(graph(TEXT, weights(seed)))
    return dict(zip(["y"], session.run(["y"], inputs), strict=True))


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with the weights of seed 0."""
    return save(graph(TEXT, weights(0)), tmp_path_factory.mktemp("net") / "net.onnx")


@pytest.fixture(scope="module")
def bundle(net: Path) -> packager.Bundle:
    return packager.load(packager.build(net, net.with_suffix(".so"), targets=LLVM, dims=DIMS))


@pytest.fixture
def session(bundle: packager.Bundle) -> Session:
    return bundle.session()


@pytest.fixture(scope="module")
def inputs() -> Arrays:
    return feeds(graph(TEXT, weights(0)), {"n": 3})


def test_constants_are_listed_under_the_names_of_the_model(bundle: packager.Bundle) -> None:
    listed = {info.name: (info.dtype, info.shape) for info in bundle.constants}
    assert listed == {name: ("float32", shape) for name, shape in SHAPES.items()}
    assert bundle.fixed_constants == {}
    sources = [constant.sources for constant in bundle.manifest.constants]
    assert sorted(name for group in sources for name in group) == sorted(SHAPES)
    packed = next(constant for constant in bundle.manifest.constants if constant.sources == ("mix",))
    assert packed.shape != SHAPES["mix"]


def test_swapped_constants_give_what_the_other_model_gives(session: Session, inputs: Arrays) -> None:
    assert_same(session.run(inputs), results(0, inputs))
    for seed in (1, 2, 1):
        session.set_constants(weights(seed))
        assert_same(session.run(inputs), results(seed, inputs), f"seed {seed}")
    session.set_constants(dict.fromkeys(SHAPES))
    assert_same(session.run(inputs), results(0, inputs))


@pytest.mark.parametrize("form", ["npz", "safetensors"])
def test_the_override_at_build_equals_the_swap(
    net: Path, session: Session, inputs: Arrays, tmp_path: Path, warm_cli: Cli, form: str
) -> None:
    file = tmp_path / f"other.{form}"
    if form == "npz":
        np.savez(file, **weights(5))
    else:
        file.write_bytes(safetensors.encode(weights(5)))
    done = warm_cli("build", net, "-o", tmp_path / "other.so", "--dim", "n=1:4", "--constants", file, "-t", "llvm")
    assert done.returncode == 0, done.stderr
    with packager.load(tmp_path / "other.so") as other:
        built = other.run(inputs)
    session.set_constants(weights(5))
    np.testing.assert_array_equal(session.run(inputs)["y"], built["y"])
    assert_same(built, results(5, inputs))


def test_each_constant_alone(session: Session, inputs: Arrays) -> None:
    for name in SHAPES:
        mixed = {**weights(0), name: weights(3)[name]}
        expected = reference(graph(TEXT, mixed)).run(["y"], inputs)[0]
        session.set_constants({name: mixed[name]})
        assert_same(session.run(inputs), {"y": expected}, name)
        session.set_constants({name: None})


def test_sessions_do_not_share_what_was_swapped(bundle: packager.Bundle, inputs: Arrays) -> None:
    with bundle.session() as first, bundle.session() as second:
        first.set_constants(weights(1))
        assert_same(second.run(inputs), results(0, inputs))
        assert_same(bundle.run(inputs), results(0, inputs))
        assert_same(first.run(inputs), results(1, inputs))


def test_external_weights(net: Path, inputs: Arrays, tmp_path: Path) -> None:
    path = packager.build(net, tmp_path / "net.so", targets=LLVM, dims=DIMS, weights="external")
    before = path.with_suffix(".safetensors").read_bytes()
    with packager.load(path) as loaded, loaded.session() as session:
        session.set_constants(weights(1))
        assert_same(session.run(inputs), results(1, inputs))
        assert_same(loaded.run(inputs), results(0, inputs))
    assert path.with_suffix(".safetensors").read_bytes() == before


def test_equal_contents_are_swapped_apart(tmp_path: Path) -> None:
    text = "g (float[2,4] x) => (float[2,4] y, float[2,4] z) { y = Add(x, a)\n z = Mul(x, b) }"
    same = normal(2, 4)
    model = graph(text, {"a": same, "b": same})
    x = {"x": normal(2, 4, seed=9)}
    with packager.load(packager.build(save(model, tmp_path / "m.onnx"), tmp_path / "m.so", targets=LLVM)) as loaded:
        (stored,) = loaded.manifest.constants
        assert (stored.name, stored.aliases, stored.sources) == ("a", ("b",), ("a", "b"))
        with loaded.session() as session:
            session.set_constants({"b": same + 1})
            assert_same(session.run(x), {"y": x["x"] + same, "z": x["x"] * (same + 1)})


def test_layouts_of_a_backend(net: Path, inputs: Arrays, tmp_path: Path) -> None:
    """They are named after the constant and the layout, and packed again from new data unless they are padded."""
    path = packager.build(net, tmp_path / "net.so", targets=["llvm", "ccompiler"], dims=DIMS)
    with packager.load(path) as loaded, loaded.session() as session:
        layouts = {c.name: c.sources for c in loaded.manifest.constants if ":" in c.name}
        assert set(layouts.values()) >= {("kernel",), ("dense",), ("mix",), ("last",)}
        assert all(name.partition(":")[0].split(".")[0] in sources for name, sources in layouts.items())
        fixed = list(loaded.fixed_constants)
        assert fixed == ["last"]  # 10 columns
        for seed in (0, 1, 2):
            given = {name: array for name, array in weights(seed).items() if name not in fixed}
            session.set_constants(given)
            expected = reference(graph(TEXT, {**weights(0), **given})).run(["y"], inputs)[0]
            assert_same(session.run(inputs), {"y": expected}, f"seed {seed}")


NORM = """g (float[1,3,5,5] x) => (float[1,16,5,5] y) {
 c = Conv<pads=[1,1,1,1]>(x, kernel)
 b = BatchNormalization(c, gamma, beta, mean, variance)
 y = Add(b, plain)
}"""
NORM_SHAPES = {"kernel": (16, 3, 3, 3), "plain": (1, 16, 1, 1)} | dict.fromkeys(
    ["gamma", "beta", "mean", "variance"], (16,)
)


def norm_weights(seed: int) -> Arrays:
    return {name: np.abs(normal(*shape, seed=seed)) + np.float32(0.1) for name, shape in NORM_SHAPES.items()}


def test_what_a_batch_norm_was_folded_into_is_fixed(tmp_path: Path, warm_cli: Cli) -> None:
    model = graph(NORM, norm_weights(0))
    path = save(model, tmp_path / "m.onnx")
    x = feeds(model, {})
    with packager.load(packager.build(path, tmp_path / "m.so", targets=LLVM)) as loaded, loaded.session() as session:
        assert [info.name for info in loaded.constants] == ["plain"]
        reasons = loaded.fixed_constants
        assert set(reasons) == set(NORM_SHAPES) - {"plain"}
        assert all("computed from" in reason and "gamma" in reason for reason in reasons.values())
        before = session.run(x)
        with pytest.raises(
            packager.PackagerError, match=r"constant 'kernel' cannot be swapped: .* from kernel, gamma"
        ) as caught:
            session.set_constants({"plain": norm_weights(1)["plain"], "kernel": norm_weights(1)["kernel"]})
        assert (caught.value.status, caught.value.name) == (-15, "PACKAGER_ERROR_CONSTANT")
        assert "--constants" in (caught.value.hint or "")
        assert_same(session.run(x), before)
    np.savez(tmp_path / "other.npz", **norm_weights(1))
    done = warm_cli("build", path, "-o", tmp_path / "n.so", "--constants", tmp_path / "other.npz")
    assert done.returncode == 0, done.stderr
    with packager.load(tmp_path / "n.so") as loaded:
        (expected,) = reference(graph(NORM, norm_weights(1))).run(None, x)
        assert_same(loaded.run(x), {"y": expected})


def test_positions_that_are_looked_up_at_build_time_are_swapped(tmp_path: Path) -> None:
    """Rows that a constant list of indices takes are a part of the table; the list itself is fixed."""
    text = "g (float[1,20,4] x) => (float[1,20,4] y) { p = Gather(table, positions)\n y = Add(x, p) }"
    table, positions = normal(64, 4), np.arange(5, 25, dtype=np.int64)[None]
    model = graph(text, {"table": table, "positions": positions})
    x = feeds(model, {})
    with packager.load(packager.build(save(model, tmp_path / "m.onnx"), tmp_path / "m.so", targets=LLVM)) as loaded:
        assert [info.name for info in loaded.constants] == ["table"]
        assert list(loaded.fixed_constants) == ["positions"]
        with loaded.session() as session:
            session.set_constants({"table": table + 1})
            assert_same(session.run(x), {"y": x["x"] + (table + 1)[positions]})


def test_swapped_indices_are_clamped(tmp_path: Path) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((6, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            rows = relax.const(np.arange(40, dtype=np.int64) % 6, "int64")
            taken = builder.emit_output(relax.op.take(x, rows, axis=0))
        builder.emit_func_output(taken)
    (tmp_path / "m.json").write_text(tvm.ir.save_json(builder.get()))
    wild = np.full(40, 2**40, np.int64)
    wild[::2] = 3
    data = normal(6, 4)
    path = packager.build(tmp_path / "m.json", tmp_path / "m.so", targets=LLVM)
    with packager.load(path) as loaded, loaded.session() as session:
        session.set_constants({"constant_0": wild})
        (got,) = session.run([data]).values()
        np.testing.assert_array_equal(got[::2], np.broadcast_to(data[3], (20, 4)))
        assert {tuple(row) for row in got[1::2]} <= {tuple(row) for row in data}


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "int8", "bool"])
def test_element_types(dtype: str, tmp_path: Path) -> None:
    kind = {"float64": "double", "bool": "bool"}.get(dtype, dtype)
    op = "And" if dtype == "bool" else "Add"
    model = graph(
        f"g ({kind}[4,5] x) => ({kind}[5,4] y) {{ t = Transpose(w)\n u = Transpose(x)\n y = {op}(u, t) }}",
        {"w": np.ones((4, 5), dtype)},
    )
    x = feeds(model, {})
    other = (np.arange(20).reshape(4, 5) % 2).astype(dtype)
    path = packager.build(save(model, tmp_path / "m.onnx"), tmp_path / "m.so", targets=LLVM)
    with packager.load(path) as loaded, loaded.session() as session:
        session.set_constants({"w": other})
        expected = x["x"] & other if dtype == "bool" else x["x"] + other
        np.testing.assert_array_equal(session.run(x)["y"], expected.T)


def test_other_hosts_arrays(session: Session, inputs: Arrays) -> None:
    """Fortran order, slices and DLPack objects are taken as inputs are."""
    other = weights(1)
    wide = np.zeros((32, 64), np.float32)
    wide[:, ::2] = other["mix"]
    session.set_constants({**other, "mix": wide[:, ::2], "dense": np.asfortranarray(other["dense"])})
    other["mix"][:] = 0  # copied
    assert_same(session.run(inputs), results(1, inputs))


def test_refusals(bundle: packager.Bundle, inputs: Arrays) -> None:
    session = bundle.session()
    good = weights(1)
    refused = [
        ({"mx": good["mix"]}, -1, r"there is no constant 'mx' \(did you mean 'mix'\?\)"),
        ({"mix": good["mix"].astype(np.float64)}, -4, "tensor 'mix' has dtype float64, expected float32"),
        ({"mix": good["mix"][:, :5]}, -3, "constant 'mix': axis 1 is 5, expected 32"),
        ({"mix": good["mix"][0]}, -2, "constant 'mix': rank is 1, expected 2"),
        ({"mix": "text"}, -1, "neither a numpy array nor an object with __dlpack__"),
    ]
    for values, status, message in refused:
        with pytest.raises(packager.PackagerError, match=message) as caught:
            session.set_constants({"kernel": good["kernel"], **values})
        assert caught.value.status == status
        assert_same(session.run(inputs), results(0, inputs))
    session.set_constants({})
    session.close()
    with pytest.raises(packager.PackagerError, match="the session is closed"):
        session.set_constants({"mix": good["mix"]})


def test_swapping_while_another_thread_runs(session: Session, inputs: Arrays) -> None:
    """Every run gives what one set of weights gives, and the newest that had been set when it began."""
    expected = [results(seed, inputs)["y"] for seed in range(4)]
    newest, failures, stop = [0], [], threading.Event()

    def run() -> None:
        while not stop.is_set():
            atleast = newest[0]
            got = session.run(inputs)["y"]
            matching = [seed for seed, want in enumerate(expected) if np.allclose(got, want, rtol=1e-4, atol=1e-5)]
            possible = {step % 4 for step in range(atleast, newest[0] + 2)}  # one may be set, but not told yet
            if len(matching) != 1 or matching[0] not in possible:
                failures.append((atleast, newest[0], matching))

    runner = threading.Thread(target=run)
    runner.start()
    try:
        for step in range(1, 300):
            session.set_constants(weights(step % 4))
            newest[0] = step
    finally:
        stop.set()
        runner.join()
    assert failures == []


def test_a_thousand_swaps_need_no_more_memory(session: Session, inputs: Arrays) -> None:
    sets = [weights(seed) for seed in range(2)]
    page = os.sysconf("SC_PAGESIZE")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    for step in range(100):
        session.set_constants(sets[step % 2])
        session.run(inputs)
    before = resident()
    for step in range(1000):
        session.set_constants(sets[step % 2])
        session.run(inputs)
    # One more copy of the weights for each swap would be 25 MB.
    assert resident() - before < 4 << 20
    assert_same(session.run(inputs), results(1, inputs))


def test_the_command_line_refuses_overrides_that_do_not_fit(net: Path, tmp_path: Path, warm_cli: Cli) -> None:
    cases = [
        ({"mx": normal(32, 32)}, "the model has no constant 'mx' (did you mean 'mix'?)", "names"),
        ({"mix": normal(32, 31)}, "'mix' is float32[32, 31], in the model it is float32[32, 32]", "shape"),
        ({"mix": normal(32, 32).astype("f8")}, "'mix' is float64[32, 32], in the model it is float32[32, 32]", "cast"),
    ]
    for index, (arrays, message, hint) in enumerate(cases):
        file = tmp_path / f"{index}.npz"
        np.savez(file, **arrays)
        done = warm_cli("build", net, "-o", tmp_path / "out.so", "--dim", "n=1:4", "--constants", file)
        assert_refused(done, 2, f"--constants {file}", message, hint=hint)
    done = warm_cli("build", net, "-o", tmp_path / "out.so", "--dim", "n=1:4", "--constants", tmp_path / "absent.npz")
    assert_refused(done, 2, "absent.npz")
    assert not (tmp_path / "out.so").exists()


def test_the_cache_tells_overrides_apart(net: Path, inputs: Arrays, tmp_path: Path) -> None:
    file = tmp_path / "other.npz"
    for seed in (6, 7, 6):
        np.savez(file, **weights(seed))
        path = packager.build(net, tmp_path / f"{seed}.so", targets=LLVM, dims=DIMS, constants=file)
        with packager.load(path) as loaded:
            assert_same(loaded.run(inputs), results(seed, inputs))


def test_a_torch_module_under_its_own_names(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.dense = torch.nn.Linear(16, 32)
            self.attend = torch.nn.MultiheadAttention(32, 4, batch_first=True)
            self.register_buffer("first", torch.rand(32))
            self.register_buffer("second", torch.rand(32))

        def forward(self, x):
            h = self.dense(x) * self.first
            return self.attend(h, h, h, need_weights=False)[0] + self.second

    modules = [Module(seed).eval() for seed in range(2)]
    x = torch.rand(2, 5, 16)
    torch.export.save(torch.export.export(modules[0], (x,)), tmp_path / "m.pt2")
    with packager.load(packager.build(tmp_path / "m.pt2", tmp_path / "m.so", targets=LLVM)) as loaded:
        assert {info.name for info in loaded.constants} == set(modules[0].state_dict())
        assert loaded.fixed_constants == {}
        with loaded.session() as session, torch.no_grad():
            for module in (modules[0], modules[1]):
                session.set_constants({name: value.numpy() for name, value in module.state_dict().items()})
                (got,) = session.run([x.numpy()]).values()
                np.testing.assert_allclose(got, module(x).numpy(), rtol=1e-4, atol=1e-5)


def test_names_are_kept_whole(tmp_path: Path) -> None:
    """The prefix that torch's exporter gives to unnamed weights is part of the name."""
    model = graph("g (float[2,8] x) => (float[2,8] y) { y = MatMul(x, w) }", {"w": normal(8, 8)})
    model.graph.node[0].input[1] = model.graph.initializer[0].name = "onnx::MatMul_12"
    onnx.checker.check_model(model)
    with packager.load(packager.build(save(model, tmp_path / "m.onnx"), tmp_path / "m.so", targets=LLVM)) as loaded:
        assert [info.name for info in loaded.constants] == ["onnx::MatMul_12"]

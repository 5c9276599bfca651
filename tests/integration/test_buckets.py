"""Buckets: sizes of a dim with code of their own behind one entry, each right against onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Cli
from graphs import check, feeds, graph, normal, reference, save

import packager
from packager import Buckets
from packager.errors import ModelError, RunError, UsageError

LLVM = ("llvm",)
WEIGHTS = {"wq": normal(16, 16), "wk": normal(16, 16, seed=1)}
ENCODER = graph(
    """encoder (float[n,seq,16] x, float[n,seq] mask) => (float[n,seq,16] y, float[n,16] mean, float[n,flat] flat) {
      one = Constant<value_ints=[1]>()  row = Unsqueeze(mask, one)
      q = MatMul(x, wq)  r = MatMul(x, wk)  k = Transpose<perm=[0,2,1]>(r)  s = MatMul(q, k)  t = Add(s, row)
      p = Softmax(t)  y = MatMul(p, x)  mean = ReduceMean<axes=[1],keepdims=0>(y)  flat = Flatten(y) }""",
    WEIGHTS,
)
SEQ = Buckets(4, 8, 13)


@pytest.mark.slow
@pytest.mark.parametrize("targets", [LLVM, ("llvm", "ccompiler")], ids=",".join)
def test_each_bucket_beside_a_bounded_dim(targets: tuple[str, ...], tmp_path: Path) -> None:
    points = [{"n": 1, "seq": 4}, {"n": 3, "seq": 8}, {"n": 4, "seq": 13}, {"n": 2, "seq": 4}]
    work = tmp_path / "work"
    with check(ENCODER, tmp_path, {"n": (1, 4), "seq": SEQ}, points, targets=targets, keep_workdir=work) as bundle:
        assert [(dim.name, dim.min, dim.max, dim.buckets) for dim in bundle.manifest.dims] == [
            ("seq", 4, 13, (4, 8, 13)),
            ("n", 1, 4, ()),
        ]
        assert bundle.manifest.entries == ()
        assert [info.shape for info in bundle.inputs] == [("n", "seq", 16), ("n", "seq")]
        assert [info.shape for info in bundle.outputs] == [("n", "seq", 16), ("n", 16), ("n", "seq * 16")]
        assert bundle.outputs[2].max_shape == (4, 13 * 16)
        source = (work / "entrypoint.c").read_text()
        assert "/* seq=8 */" in source
        assert "dim_seq" not in source, "a bucket's code has its size as a number"


@pytest.mark.slow
def test_between_buckets_is_an_error_that_lists_them(tmp_path: Path) -> None:
    with check(ENCODER, tmp_path, {"n": (1, 4), "seq": SEQ}, targets=LLVM, points=[{"n": 1, "seq": 8}]) as bundle:
        with bundle.session() as session:
            for seq in (1, 5, 14, 0):
                with pytest.raises(RunError, match=rf"input 'x': dim seq = {seq} is none of its buckets: 4, 8, 13"):
                    session.run(feeds(ENCODER, {"n": 1, "seq": seq}))
            with pytest.raises(RunError, match=r"dim n = 5 is outside 1\.\.4"):
                session.run(feeds(ENCODER, {"n": 5, "seq": 8}))
            mixed = feeds(ENCODER, {"n": 1, "seq": 8}) | {"mask": np.zeros((1, 4), np.float32)}
            with pytest.raises(RunError, match=r"input 'mask': axis 1 is 4, expected 8 \(seq\)"):
                session.run(mixed)
            with pytest.raises(RunError, match=r"input 'x': rank is 2, expected 3"):
                session.run(mixed | {"x": np.zeros((1, 8), np.float32)})
            steps = [len(session.profile(feeds(ENCODER, {"n": 1, "seq": seq}))) for seq in (4, 8, 13)]
            assert max(steps) - min(steps) <= 1  # a reduction of whole vectors has one loop nest less
        with bundle.session() as session, pytest.raises(RunError, match="none of its buckets"):
            session.run(feeds(ENCODER, {"n": 1, "seq": 5}))  # before any run


@pytest.mark.slow
def test_two_bucketed_dims_of_equal_sizes(tmp_path: Path) -> None:
    """Which size is whose follows from the combinations; every one is a variant."""
    model = graph(
        """image (float[1,3,h,w] x) => (float[1,5,a,b] y, float[1,l] flat) {
          y = Conv<strides=[2,2],pads=[1,1,1,1]>(x, k)  flat = Flatten(y) }""",
        {"k": normal(5, 3, 3, 3)},
    )
    points = [{"h": h, "w": w} for h in (16, 32) for w in (16, 32, 48)]
    sizes = {"h": Buckets(16, 32), "w": Buckets(16, 32, 48)}
    with check(model, tmp_path, sizes, points, targets=LLVM) as bundle:
        assert bundle.outputs[0].shape == (1, 5, "h // 2", "w // 2")
        assert bundle.outputs[1].shape == (1, "((h * w) * 5) // 4")


@pytest.mark.slow
def test_weights_are_there_once_and_equal_functions_too(tmp_path: Path) -> None:
    """Three buckets are hardly larger than one where the weights are large; what has no size of the dim is shared."""
    weights = {"w": normal(512, 1024), "v": normal(1024, 512)}
    model = graph(
        """mlp (float[seq,512] x, float[4,8] z) => (float[seq,512] y, float[4,8] u) {
          a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, v)  u = Tanh(z) }""",
        weights,
    )
    path = save(model, tmp_path / "mlp.onnx")
    for targets in (LLVM, ("llvm", "ccompiler")):
        one = packager.build(path, tmp_path / "one.so", dims={"seq": 32}, targets=targets)
        three = packager.build(path, tmp_path / "three.so", dims={"seq": Buckets(16, 32, 64)}, targets=targets)
        assert three.stat().st_size < 1.3 * one.stat().st_size
    with packager.load(three) as bundle:
        assert {info.name for info in bundle.constants} == {"w", "v"}
        assert max(primitive.calls for _, primitive in bundle.manifest.primitives()) == 3, "tanh is compiled once"
        x, z = normal(16, 512, seed=1), normal(4, 8)
        with bundle.session() as session:
            session.set_constants({"v": np.zeros((1024, 512), np.float32)})
            for seq in (16, 32, 64):
                x = normal(seq, 512, seed=1)
                assert not session.run({"x": x, "z": z})["y"].any(), "the swapped constant is every bucket's"


@pytest.mark.slow
def test_states_have_one_shape(tmp_path: Path) -> None:
    grows = graph(
        "grows (float[m,8] x, float[m,8] k) => (float[m,8] y, float[m,8] k_out) { y = Neg(x) k_out = Add(k, x) }"
    )
    with pytest.raises(UsageError, match=r"state 'k' is float32\[4, 8\] .* in grows\[m=4\], but float32\[8, 8\]"):
        packager.build(
            save(grows, tmp_path / "grows.onnx"), dims={"m": Buckets(4, 8)}, states={"k": "k_out"}, targets=LLVM
        )
    total = graph(
        """sums (float[m,8] x, float[1,8] k) => (float[m,8] y, float[1,8] k_out) {
          s = ReduceSum<keepdims=1>(x, axes)  k_out = Add(k, s)  y = Add(x, k_out) }""",
        {"axes": np.array([0])},
    )
    path = packager.build(
        save(total, tmp_path / "sums.onnx"),
        tmp_path / "sums.so",
        dims={"m": Buckets(4, 8)},
        states={"k": "k_out"},
        targets=LLVM,
    )
    expected = np.zeros((1, 8), np.float32)
    with packager.load(path) as bundle, bundle.session() as session:
        for seed, rows in enumerate((4, 8, 8, 4)):
            x = normal(rows, 8, seed=seed)
            expected = expected + x.sum(0, keepdims=True)
            np.testing.assert_allclose(session.run({"x": x})["y"], x + expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_entries_with_and_without_buckets(tmp_path: Path) -> None:
    plain = graph("plain (float[m,16] x) => (float[m,16] y) { y = MatMul(x, wq) }", WEIGHTS)
    paths = [save(ENCODER, tmp_path / "encoder.onnx"), save(plain, tmp_path / "plain.onnx")]
    dims = {"n": 2, "seq": Buckets(4, 8), "m": (1, 8)}
    path = packager.build(paths, tmp_path / "both.so", dims=dims, targets=LLVM, golden=0)
    assert packager.verify(path, run=True).ok
    with packager.load(path) as bundle:
        assert [[dim.name for dim in entry.dims] for entry in bundle.manifest.entries] == [["seq"], ["m"]]
        assert bundle.manifest.golden is not None
        assert bundle.manifest.golden.cases == 3
        assert sum("wq" in constant.sources for constant in bundle.manifest.constants) == 1
        for seq in (4, 8):
            arrays = feeds(ENCODER, {"n": 2, "seq": seq})
            expected = reference(ENCODER).run(["y"], arrays)[0]
            np.testing.assert_allclose(bundle.run(arrays, entry="encoder")["y"], expected, rtol=1e-4, atol=1e-5)
        x = normal(3, 16)
        np.testing.assert_allclose(bundle.run({"x": x}, entry="plain")["y"], x @ WEIGHTS["wq"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_torch_program(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            h = self.linear(x)
            return torch.softmax(h @ h.transpose(1, 2), -1) @ x, h.flatten(0, 1)

    net = Net().eval()
    seq = torch.export.Dim("seq", min=2, max=64)
    program = torch.export.export(net, (torch.randn(2, 8, 8),), dynamic_shapes=({1: seq},))
    path = tmp_path / "net.pt2"
    torch.export.save(program, path)
    name = next(iter(program.range_constraints))
    bundle_path = packager.build(path, tmp_path / "net.so", dims={str(name): Buckets(4, 16)}, targets=LLVM)
    with packager.load(bundle_path) as bundle:
        for size in (4, 16):
            x = torch.randn(2, size, 8)
            expected = [y.detach().numpy() for y in net(x)]
            for got, want in zip(bundle.run([x]).values(), expected, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="outside the bounds 2:64 of the model"):
        packager.build(path, tmp_path / "net.so", dims={str(name): Buckets(4, 128)}, targets=LLVM)


@pytest.mark.slow
def test_command_line_golden_run_and_inspect(tmp_path: Path, warm_cli: Cli) -> None:
    path, output, header = save(ENCODER, tmp_path / "e.onnx"), tmp_path / "e.so", tmp_path / "e.h"
    options = ("--dim", "n=1:4", "--dim", "seq=4,8,13", "-t", "llvm", "--golden", "0", "--header", header)
    built = warm_cli("build", path, "-o", output, *options)
    assert built.returncode == 0, built.stderr
    verified = warm_cli("verify", output, "--run")
    assert verified.returncode == 0, verified.stdout
    assert "3 golden pairs" in verified.stdout
    shown = warm_cli("inspect", output).stdout
    assert "seq 4, 8, 13; n 1..4" in shown
    assert "float32  [n, seq * 16]" in shown
    shown_json = warm_cli("inspect", output, "--json").stdout
    assert json.loads(shown_json)["dims"][0]["buckets"] == [4, 8, 13]
    assert "float32[n, seq, 16]" in header.read_text()
    bench = json.loads(warm_cli("bench", output, "--runs", "3", "--json").stdout)
    assert bench["dims"] == {"seq": 13, "n": 4}
    total = sum(primitive["calls"] for primitive in json.loads(shown_json)["backends"][0]["primitives"])
    assert 3 * (bench["calls"] + 1) >= total  # buckets differ by one loop nest at most
    told = json.loads(warm_cli("run", output, "--random", "1", "--json").stdout)
    assert told["outputs"][0]["shape"] == [4, 13, 16]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dim", "seq=8,4"), "--dim seq=8,4: 4 comes after 8"),
        (("--dim", "seq=8,8"), "--dim seq=8,8: duplicate size 8"),
        (("--dim", "seq=0,8"), "--dim seq=0,8: size 0 is not in 1..2**31-1"),
        (("--dim", "len=4,8", "--dim", "seq=4"), "--dim len: the model has no such dim"),
        (("--dim", "seq=" + ",".join(map(str, range(1, 66)))), "buckets make 65 variants (65 of seq), at most 64"),
    ],
)
def test_command_line_refusals(options: tuple[str, ...], message: str, tmp_path: Path, warm_cli: Cli) -> None:
    path = save(ENCODER, tmp_path / "e.onnx")
    refused = warm_cli("build", path, "-o", tmp_path / "e.so", "--dim", "n=1:4", "-t", "llvm", *options)
    assert refused.returncode == 2
    assert message in refused.stderr


def test_a_shape_that_no_expression_tells_is_refused(tmp_path: Path) -> None:
    """The output of one size has another rank than that of the next."""
    model = graph("odd (float[s,4] x) => (float[r] y) { y = Squeeze(x) }")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match=r"output 'y' is float32\[4\] for s=1, but float32\[2, 4\] for s=2"):
        packager.build(save(model, tmp_path / "odd.onnx"), dims={"s": Buckets(1, 2)}, targets=LLVM)


@pytest.mark.slow
def test_cuda_code_for_each_bucket(tmp_path: Path) -> None:
    """No GPU is needed to build: both variants launch kernels of one module."""
    path = packager.build(
        save(ENCODER, tmp_path / "e.onnx"),
        tmp_path / "e.so",
        dims={"n": (1, 2), "seq": Buckets(4, 8)},
        targets=("llvm", "cuda -arch=sm_80"),
        keep_workdir=tmp_path / "work",
    )
    assert not [finding for finding in packager.verify(path).findings if not finding.check.startswith("machine")]
    assert packager.inspect(path).manifest.dims[0].buckets == (4, 8)
    source = (tmp_path / "work" / "entrypoint.c").read_text()
    assert ".num_variants = 2," in source
    assert "dim_seq" not in source

"""Models that are not ONNX: torch.export programs and Relax modules."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from command_line import Cli
from tvm import relax

import packager
from packager.errors import ModelError, UnsupportedOperatorsError, UsageError
from tests.one_cpu import targets_here

torch = pytest.importorskip("torch")


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Convolution, batch norm with statistics of its own, a linear layer and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(1, 2)
        self.linear = torch.nn.Linear(8, 5)
        self.register_buffer("shift", torch.arange(5.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return torch.softmax(self.linear(features) + self.shift, -1), features


@pytest.fixture(scope="module")
def net() -> Net:
    return Net().eval()


@pytest.fixture(scope="module")
def program(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .pt2 file whose batch goes from 1 to 8."""
    batch = torch.export.Dim("batch", min=1, max=8)
    exported = torch.export.export(net, (torch.randn(2, 3, 6, 6),), dynamic_shapes=({0: batch},))
    path = tmp_path_factory.mktemp("torch") / "net.pt2"
    torch.export.save(exported, path)
    return path


def relax_module() -> tvm.IRModule:
    """y = relu(x @ w) with a symbolic batch, and y's row sums."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64"), 4), "float32"))
    weight = relax.const(np.arange(12, dtype="float32").reshape(4, 3) / 6 - 1)
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.relu(relax.op.matmul(x, weight)))
            result = builder.emit_output(relax.Tuple([y, relax.op.sum(y, 1)]))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.slow
def test_torch_export_with_the_bounds_of_the_program(net: Net, program: Path, tmp_path: Path) -> None:
    with packager.load(packager.build(program, tmp_path / "net.so", targets=["llvm"])) as bundle:
        (dim,) = bundle.manifest.dims
        assert (dim.min, dim.max) == (1, 8)
        assert bundle.manifest.model.format == "torch.export"
        names = {constant.name.split(".permute")[0].split(".reshape")[0] for constant in bundle.manifest.constants}
        assert {"linear.weight", "linear.bias", "shift"} <= names
        nodes = {node for _, primitive in bundle.manifest.primitives() for node in primitive.nodes}
        assert any("conv" in node for node in nodes)
        assert any("softmax" in node for node in nodes)
        for batch in (1, 3, 8):
            x = torch.randn(batch, 3, 6, 6)
            outputs = bundle.run([x])  # DLPack: torch tensors as they are
            for ours, theirs in zip(outputs.values(), net(x), strict=True):
                np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_torch_export_with_a_fixed_and_a_narrowed_batch(net: Net, program: Path, tmp_path: Path) -> None:
    with packager.load(packager.build(program, tmp_path / "probe.so", targets=targets_here())) as bundle:
        (dim,) = bundle.manifest.dims
    with packager.load(
        packager.build(program, tmp_path / "two.so", dims={dim.name: 2}, targets=targets_here())
    ) as bundle:
        assert bundle.inputs[0].shape == (2, 3, 6, 6)
        x = torch.randn(2, 3, 6, 6)
        np.testing.assert_allclose(next(iter(bundle.run([x]).values())), net(x)[0].detach().numpy(), rtol=1e-4)
    with packager.load(
        packager.build(program, tmp_path / "few.so", dims={dim.name: (2, 4)}, targets=targets_here())
    ) as bundle:
        assert (bundle.manifest.dims[0].min, bundle.manifest.dims[0].max) == (2, 4)
    with pytest.raises(UsageError, match="outside the bounds 1:8"):
        packager.build(program, tmp_path / "many.so", dims={dim.name: (1, 9)}, targets=targets_here())


@pytest.mark.slow
def test_torch_operators_that_are_missing_are_all_listed(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(x) + torch.special.i0e(torch.special.bessel_j0(x))

    path = tmp_path / "odd.pt2"
    torch.export.save(torch.export.export(Odd(), (torch.randn(3),)), path)
    with pytest.raises(UnsupportedOperatorsError) as caught:
        packager.build(path, tmp_path / "odd.so", targets=targets_here())
    assert any("bessel_j0" in operator for operator in caught.value.operators)
    assert any(len(nodes) == 2 for nodes in caught.value.operators.values())
    assert not (tmp_path / "odd.so").exists()


def test_a_damaged_program_is_refused(program: Path, tmp_path: Path) -> None:
    content = program.read_bytes()
    path = tmp_path / "damaged.pt2"
    for size in (0, 1, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(ModelError, match=r"cannot be read as a torch\.export program"):
            packager.build(path, tmp_path / "out.so", targets=targets_here())


@pytest.mark.slow
def test_torch_export_on_the_command_line(program: Path, tmp_path: Path, cli: Cli) -> None:
    done = cli("build", program, "-o", tmp_path / "net.so")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'net.so'}\n"), done.stderr


@pytest.mark.slow
def test_pt2_without_torch(program: Path, tmp_path: Path) -> None:
    script = f"""
import sys
sys.modules["torch"] = None
import packager
try:
    packager.build({str(program)!r}, {str(tmp_path / "out.so")!r}, cache=False)
except packager.PackagerError as error:
    print(error.exit_code, error.hint)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "2 pip install 'packager[torch]'\n"


def test_relax_module(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text(tvm.ir.save_json(relax_module()))
    with packager.load(packager.build(path, tmp_path / "net.so", dims={"n": (1, 5)}, targets=targets_here())) as bundle:
        assert [spec.name for spec in bundle.outputs] == ["output_0", "output_1"]
        weight = np.arange(12, dtype="float32").reshape(4, 3) / 6 - 1
        for batch in (1, 5):
            x = np.random.default_rng(0).standard_normal((batch, 4)).astype("float32")
            first, second = bundle.run({"x": x}).values()
            expected = np.maximum(x @ weight, 0)
            np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(second, expected.sum(1), rtol=1e-5, atol=1e-6)
    with packager.load(packager.build(path, tmp_path / "four.so", dims={"n": 4}, targets=targets_here())) as bundle:
        assert bundle.inputs[0].shape == (4, 4)


def test_relax_dims_need_bounds(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text(tvm.ir.save_json(relax_module()))
    with pytest.raises(UsageError, match="no bounds") as caught:
        packager.build(path, tmp_path / "net.so", targets=targets_here())
    assert caught.value.detail == "n: input 'x', axis 0"
    assert "--dim n=1:32" in str(caught.value.hint)


def only_a_primfunc() -> str:
    @tvm.script.tirx.prim_func(s_tir=True)
    def main(a: tvm.script.tirx.Buffer((4,), "float32")) -> None:
        for i in range(4):
            a[i] = a[i] + tvm.script.tirx.float32(1)

    return str(tvm.ir.save_json(tvm.IRModule({"main": main})))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("\x00\xff", "is not"),
        ("[]", "is not a module that TVM can read"),
        ('{"nodes": 3}', "is not a module that TVM can read"),
        (json.dumps({"root_index": 0, "nodes": [{"type": "None"}]}), "holds no IRModule|is not a module"),
    ],
)
def test_what_is_no_relax_module_is_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text(content)
    with pytest.raises(ModelError, match=message):
        packager.build(path, tmp_path / "net.so", targets=targets_here())


def test_a_main_that_is_no_relax_function_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text(only_a_primfunc())
    with pytest.raises(ModelError, match="there is no Relax function 'main'"):
        packager.build(path, tmp_path / "net.so", targets=targets_here())

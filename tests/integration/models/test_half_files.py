"""Files of half precision, inputs and weights: they become what float32 files become with ``precision``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import packager
from packager.graph.dataflow import bindings_of, called_function
from packager.lower.lowering import lower
from packager.pipeline.import_models import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import make_build_request
from tests.integration.models.test_fronts import BATCH, FORMS, GPU, ROWS, WIDTH, saved
from tests.stages import placed_file

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

pytestmark = pytest.mark.slow
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
TOLERANCES = {"fp16": 4e-3, "bf16": 3e-2}


class Images(nn.Module):
    """Convolutions of each kind with a batch norm behind."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(8, 16, 3, bias=False), nn.BatchNorm2d(16), nn.SiLU())
        self.second = nn.Sequential(nn.Conv2d(16, 16, 3, groups=16), nn.BatchNorm2d(16), nn.ReLU())
        self.third = nn.Sequential(nn.ConvTranspose2d(16, 8, 2, 2), nn.BatchNorm2d(8, affine=False))

    def forward(self, x: Any) -> Any:
        return self.third(self.second(self.first(x)))


class Alone(nn.Module):
    """A batch norm that no convolution takes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Any) -> Any:
        return self.norm(x.sin())


class Norms(nn.Module):
    """A layer norm and a group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.groups = nn.LayerNorm(16), nn.GroupNorm(2, 8)

    def forward(self, x: Any) -> Any:
        return self.groups(self.rows(x))


class Modulated(nn.Module):
    """A modulated convolution of StyleGAN2 (arXiv:1912.04958)."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.randn(6, 8, 3, 3))
        self.style = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        style = self.style(x.mean((2, 3))) + 1
        filters = self.filters[None] * style[:, None, :, None, None]
        filters = filters * filters.pow(2).sum((2, 3, 4), keepdim=True).add(1e-3).rsqrt()
        n, _, height, width = x.shape
        result = F.conv2d(x.reshape(1, -1, height, width), filters.reshape(-1, *filters.shape[2:]), groups=n)
        return result.reshape(n, 6, *result.shape[2:])


class Latents(nn.Module):
    """Constants that are normalized, and one that is a view of an element."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.norm = nn.Parameter(torch.randn(16, 16)), nn.LayerNorm(16)

    def forward(self, x: Any) -> Any:
        return x * self.norm(self.latents) + torch.full((1,), 0.5, dtype=x.dtype).expand(16)


MODELS = {"latents": Latents, "images": Images, "alone": Alone, "norms": Norms, "modulated": Modulated}
NORMS = nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm


def made(name: str) -> tuple[Any, Any]:
    """Return a float32 model with statistics that are no ones and zeros, and its input."""
    torch.manual_seed(0)
    module = MODELS[name]().eval()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
        if isinstance(part, NORMS) and part.weight is not None:
            part.weight.data.uniform_(0.5, 2)
            part.bias.data.normal_()
    return module, torch.randn(2, 8, 16, 16)


def computed(model: Path, x: Any, targets: tuple[str, ...]) -> np.ndarray:
    with packager.load(packager.build(model, model.with_suffix(".so"), targets=targets)) as bundle:
        (spec,) = bundle.inputs
        (result,) = bundle.run({spec.name: x}).values()
    return torch.as_tensor(result).float().numpy() if torch.is_tensor(result) else np.asarray(result, "f4")


@pytest.mark.parametrize("form", ["half.pt2", "half.onnx", "mixed.pt2"])
@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_a_bundle_is_as_near_to_float32_as_torch(tmp_path: Path, name: str, precision: str, form: str) -> None:
    """``mixed``: norms are float32, as is usual in training; torch's older exporter writes no valid file of that."""
    module, x = made(name)
    half = copy.deepcopy(module).to(TYPES[precision])
    if form.startswith("mixed"):
        for part in half.modules():
            if isinstance(part, NORMS):
                part.float()
    given = x.to(TYPES[precision])
    model = saved(half, (given,), tmp_path / form)
    with torch.no_grad():
        want = module(x).numpy()
    got = computed(model, given if precision == "bf16" else given.numpy(), ("llvm",))
    assert np.abs(got - want).max() <= TOLERANCES[precision] * np.abs(want).max()


OPERATORS: dict[str, Callable[[Any], Any]] = {
    "power": lambda x: x.abs() ** 2.5,
    "cube": lambda x: F.gelu(x, approximate="tanh") + x**3,
    "fmod": lambda x: torch.fmod(x, 0.75),
    "floor_divide": lambda x: torch.floor_divide(x, 0.75),
    "argmax": lambda x: x.argmax(-1).to(x.dtype),
    "argmin of all": lambda x: x.argmin(1).to(x.dtype),
    "renorm": lambda x: torch.renorm(x, 2, 0, 1.0),
    "grid_sample": lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False),
    "instance norm": F.instance_norm,
    "lp pool": lambda x: F.lp_pool2d(x, 2, 2),
}


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_halves_compute_what_torch_does(tmp_path: Path, name: str, precision: str) -> None:
    class Operator(nn.Module):
        def forward(self, x: Any) -> Any:
            return OPERATORS[name](x)

    torch.manual_seed(0)
    x = torch.randn(2, 4, 8, 8).to(TYPES[precision])
    want = Operator()(x).float().numpy()
    model = saved(Operator(), (x,), tmp_path / "m.pt2")
    for targets in (("llvm",), ("llvm", "ccompiler")):
        got = computed(model, x if precision == "bf16" else x.numpy(), targets)
        assert np.abs(got - want).max() <= TOLERANCES[precision] * np.abs(want).max()


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("name", [*OPERATORS, *MODELS])
def test_gpus_have_kernels_of_halves(tmp_path: Path, name: str, precision: str) -> None:
    class Operator(nn.Module):
        def forward(self, x: Any) -> Any:
            return OPERATORS[name](x)

    module = MODELS.get(name, Operator)().to(TYPES[precision])
    path = saved(module, (torch.randn(2, 8, 16, 16).to(TYPES[precision]),), tmp_path / "m.pt2")
    assert lower(placed_file(path, targets=GPU), "cuda").groups


# A model of one operator, of x [2, 4, 8, 8].
NODES = {
    "DequantizeLinear": "q = Cast <to = 3> (x) y = DequantizeLinear (q, s)",
    "QuantizeLinear": "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = Mul (d, s)",
    "Mod": "y = Mod <fmod = 1> (x, s)",
    "Pow": "y = Pow (s, x)",
    "LpPool": "y = LpPool <kernel_shape = [2, 2], strides = [2, 2]> (x)",
    "InstanceNormalization": "y = InstanceNormalization (x, c, c)",
    "GroupNormalization": "y = GroupNormalization <num_groups = 2> (x, c, c)",
}


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("name", NODES)
def test_nodes_of_halves_compute_what_those_of_float32_do(tmp_path: Path, name: str, precision: str) -> None:
    results = []
    x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0)).to(TYPES[precision])
    for dtype in ("float", {"fp16": "float16", "bf16": "bfloat16"}[precision]):
        text = f"""g ({dtype}[2,4,8,8] x) => ({dtype}[2,4,a,b] y) {{
            f = Constant <value = float {{0.75}}> ()
            s = Cast <to = {onnx.TensorProto.DataType.Value(dtype.upper())}> (f)
            z = Constant <value = int8 {{3}}> ()
            v = Constant <value = float[4] {{0.5, -1.5, 2.0, 1.0}}> ()
            c = Cast <to = {onnx.TensorProto.DataType.Value(dtype.upper())}> (v)
            {NODES[name]}
        }}"""
        path = tmp_path / f"{dtype}.onnx"
        onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 22]>\n{text}'), path)
        given = x.float().numpy() if dtype == "float" else x if precision == "bf16" else x.numpy()
        results.append(computed(path, given, ("llvm",)))
    assert np.abs(results[1] - results[0]).max() <= TOLERANCES[precision] * np.abs(results[0]).max()


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_batch_norms_are_part_of_convolutions(tmp_path: Path, suffix: str, precision: str) -> None:
    module, x = made("images")
    half = copy.deepcopy(module).to(TYPES[precision])
    model = placed_file(saved(half, (x.to(TYPES[precision]),), tmp_path / f"m{suffix}"), targets=GPU)
    names = [called_function(binding.value) or "" for binding in bindings_of(lower(model, "cuda").main)]
    assert not any(word in name for name in names for word in ("subtract", "divide", "multiply_add")), names


# Their functions read float32 tensors of the test's own.
FLOAT32 = (
    *("two masks", "three axes", "relative positions", "windows with biases", "windows with masks", "rotary"),
    *("windows of two axes", "cosine", "cosine with a mask", "cosine packed", "factors of rows"),
    *("factors after a mask", "normalized heads", "rms of heads", "biases behind heads"),
)


@pytest.mark.sampled(8, every_value=False)
@pytest.mark.parametrize("name", [name for name in FORMS if name not in FLOAT32])
@pytest.mark.parametrize("precision", TYPES)
def test_forms_of_layers_have_no_more_kernels(tmp_path: Path, name: str, precision: str) -> None:
    module, inputs = FORMS[name]
    half = copy.deepcopy(module).to(TYPES[precision])
    given = tuple(x.to(TYPES[precision]) if x.is_floating_point() else x for x in inputs)
    halves = placed_file(saved(half, given, tmp_path / "half.pt2"), targets=GPU)
    full = placed_file(saved(module, inputs, tmp_path / "full.pt2"), targets=GPU, precision=precision)
    kinds, calls = [], []
    for model in (halves, full):
        called = [called_function(binding.value) for binding in bindings_of(lower(model, "cuda").main)]
        taken = [model.partitions[call].partition.composites[0].name for call in called if call in model.partitions]
        kinds.append(sorted(taken))
        calls.append(sum(call is not None for call in called))
    assert kinds[0] == kinds[1]
    assert calls[0] <= calls[1]


@pytest.mark.parametrize("precision", TYPES)
def test_a_mask_of_constants_that_a_product_makes_stays_in_float32(tmp_path: Path, precision: str) -> None:
    """Biases of relative positions, as Swin V2 (arXiv:2111.09883) has them, are folded, and attention is one kernel."""

    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
            self.mlp = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
            self.register_buffer("places", torch.randn(ROWS * ROWS, 2))

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(x).view(BATCH, ROWS, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
            bias = self.mlp(self.places).view(1, ROWS, ROWS, 4).permute(0, 3, 1, 2).sigmoid() * 16
            weights = (q @ k.transpose(2, 3) * 0.2 + bias).softmax(-1)
            return (weights @ v).transpose(1, 2).reshape(BATCH, ROWS, WIDTH)

    path = saved(Biased(), (torch.randn(BATCH, ROWS, WIDTH),), tmp_path / "m.pt2")
    model = placed_file(path, targets=GPU, precision=precision)
    names = {placed.partition.composites[0].name for placed in model.partitions.values()}
    assert names == {"cutlass.attention", "cutlass.dense"}
    imported = import_model(make_build_request(BuildOptions(path, targets=GPU, precision=precision)))
    assert imported.signature.inputs[0].dtype == "float32"

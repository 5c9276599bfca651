"""The CPU benchmark's models in torch: definitions that are exported to ONNX, and ONNX files of nets as modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn
from torch.nn import functional

from benchmarks.gpu.torch_models import MINILM, bert, gpt2, vit


class Inverted(nn.Module):
    """An inverted residual of MobileNetV2: 1x1 up, depthwise 3x3, 1x1 down without an activation."""

    def __init__(self, channels: int, out: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = channels * expand
        up = [*_conv(channels, hidden, 1)] if expand > 1 else []
        self.layers = nn.Sequential(*up, *_conv(hidden, hidden, 3, stride, hidden), *_conv(hidden, out, 1)[:2])
        self.is_residual = stride == 1 and channels == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, out, h, w]."""
        return x + self.layers(x) if self.is_residual else self.layers(x)


def _conv(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> tuple[nn.Module, ...]:
    conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return conv, nn.BatchNorm2d(out), nn.ReLU6()


# Expansion, channels, repeats, stride of the first: table 2 of the paper (arXiv:1801.04381).
STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip


def mobilenet_v2(_: str) -> nn.Module:
    """MobileNetV2 of width 1."""
    torch.manual_seed(0)
    layers, channels = [*_conv(3, 32, 3, 2)], 32
    for expand, out, repeats, stride in STAGES:
        for index in range(repeats):
            layers.append(Inverted(channels, out, stride if index == 0 else 1, expand))
            channels = out
    layers += [*_conv(channels, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    module = nn.Sequential(*layers)
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_in")
    return module.eval()


MODULES: dict[str, Callable[[str], nn.Module]] = {
    "mobilenet_v2": mobilenet_v2,
    "minilm": partial(bert, **MINILM),
    "bert": bert,
    "vit": vit,
    "gpt2": gpt2,
}


def module_of(name: str, path: Path) -> nn.Module:
    """Return a model in torch, in evaluation mode: transformers with torch's own attention, others by the ONNX file."""
    return MODULES[name]("sdpa") if name in MODULES and name != "mobilenet_v2" else from_onnx(path)


def from_onnx(path: Path) -> nn.Module:
    """Return the graph of an ONNX file of a convolutional net or a perceptron. Raises KeyError for other operators."""
    graph = onnx.load(path).graph
    root = nn.Module()
    traced = torch.fx.Graph()
    values: dict[str, Any] = {}
    numbers: dict[str, Any] = {}  # shapes, axes, bounds
    for index, tensor in enumerate(graph.initializer):
        array = torch.from_numpy(numpy_helper.to_array(tensor).copy())
        if array.is_floating_point():
            root.register_buffer(f"weight_{index}", array)
            values[tensor.name] = traced.get_attr(f"weight_{index}")
        else:
            numbers[tensor.name] = array.tolist()
    for value in graph.input:
        if value.name not in values and value.name not in numbers:
            values[value.name] = traced.placeholder("input")
    for node in graph.node:
        if node.op_type == "Constant":
            numbers[node.output[0]] = numpy_helper.to_array(helper.get_attribute_value(node.attribute[0])).tolist()
            continue
        operands = [values.get(name, numbers.get(name)) for name in node.input]
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        values[node.output[0]] = traced.call_function(OPERATORS[node.op_type], tuple(operands), attributes)
    traced.output(values[graph.output[0].name])
    traced.lint()
    return torch.fx.GraphModule(root, traced).eval()


def _convolution(x: Any, weight: Any, bias: Any = None, **a: Any) -> Any:
    x, padding = _padded(x, a, 0.0)
    stride, dilation = a.get("strides", [1, 1]), a.get("dilations", [1, 1])
    return functional.conv2d(x, weight, bias, stride, padding, dilation, a.get("group", 1))


def _padded(x: Any, a: dict[str, Any], value: float) -> tuple[Any, list[int]]:
    """Return a padding that torch's operators take; what is not the same on both sides is padded before."""
    top, left, bottom, right = a.get("pads", [0, 0, 0, 0])
    if (top, left) == (bottom, right):
        return x, [top, left]
    return functional.pad(x, [left, right, top, bottom], value=value), [0, 0]


def _max_pool(x: Any, **a: Any) -> Any:
    x, padding = _padded(x, a, float("-inf"))
    ceil = bool(a.get("ceil_mode", 0))
    return functional.max_pool2d(x, a["kernel_shape"], a.get("strides", [1, 1]), padding, ceil_mode=ceil)


def _average_pool(x: Any, **a: Any) -> Any:
    """Padding counts where it is asked for; elsewhere only symmetric padding is left out of the count."""
    x, padding = _padded(x, a, 0.0)
    counted = bool(a.get("count_include_pad", 0))
    return functional.avg_pool2d(x, a["kernel_shape"], a.get("strides", [1, 1]), padding, count_include_pad=counted)


def _batch_norm(x: Any, scale: Any, bias: Any, mean: Any, variance: Any, **a: Any) -> Any:
    return functional.batch_norm(x, mean, variance, scale, bias, eps=a.get("epsilon", 1e-5))


def _gemm(a: Any, b: Any, c: Any = 0, **attributes: Any) -> Any:
    a = a.t() if attributes.get("transA") else a
    b = b.t() if attributes.get("transB") else b
    return attributes.get("alpha", 1.0) * (a @ b) + attributes.get("beta", 1.0) * c


def _unsqueeze(x: Any, axes: Any = None, **a: Any) -> Any:
    for axis in axes or a["axes"]:
        x = x.unsqueeze(axis)
    return x


def _flattened(operator: Callable[..., Any]) -> Callable[..., Any]:
    """An operator of before version 13, which sees a matrix: the axes from ``axis`` on are one."""

    def apply(x: Any, **a: Any) -> Any:
        return operator(x.flatten(a.get("axis", 1)), dim=-1).reshape(x.shape)

    return apply


OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": torch.add,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Clip": torch.clamp,
    "Concat": lambda *parts, axis: torch.cat(parts, axis),
    "Conv": _convolution,
    "Dropout": lambda x, **_: x,
    "Flatten": lambda x, axis=1: x.flatten(axis),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda x: x.mean((2, 3), keepdim=True),
    "Identity": lambda x: x,
    "LRN": lambda x, size, alpha=1e-4, beta=0.75, bias=1.0: functional.local_response_norm(x, size, alpha, beta, bias),
    "MatMul": torch.matmul,
    "MaxPool": _max_pool,
    "Mul": torch.mul,
    "Relu": torch.relu,
    "Reshape": lambda x, shape: x.reshape(shape),
    "Softmax": _flattened(torch.softmax),
    "Sum": torch.add,
    "Transpose": lambda x, perm: x.permute(perm),
    "Unsqueeze": _unsqueeze,
}

"""The cases of cutlass/operators.py: what TVM's tests of CUTLASS check, and sizes drawn at random.

TVM's are those of ``tests/python/relax/test_codegen_cutlass.py`` and ``tests/python/contrib/test_cutlass.py``, as ONNX
models. Values are normal; what float16 and bfloat16 cannot hold is rounded before the reference is computed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

HEAD = '<ir_version: 10, opset_import: ["": 20]> net '
TOLERANCES = {"float16": 2e-3, "bf16": 1.5e-2, "float": 2e-6, "tf32": 2e-3}
ACTIVATIONS = {
    "": "y = Identity(a)",
    "relu": "y = Relu(a)",
    "gelu": "y = Gelu(a)",
    "gelu_tanh": 'y = Gelu<approximate = "tanh">(a)',
    "sigmoid": "y = Sigmoid(a)",
    "silu": "s = Sigmoid(a) y = Mul(a, s)",
    "hardswish": "y = HardSwish(a)",
}


@dataclass(frozen=True)
class Case:
    """A model in ONNX's text form, its weights' shapes, and the sizes of its symbolic dims to run it with."""

    name: str
    text: str
    weights: Mapping[str, tuple[int, ...]]
    tolerance: float
    sizes: Sequence[Mapping[str, int]] = ({},)
    options: str = ""
    precision: str | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dims(self) -> dict[str, tuple[int, int]]:
        """The bounds of the symbolic dims."""
        names = {name for size in self.sizes for name in size}
        return {name: (1, max(size[name] for size in self.sizes)) for name in sorted(names)}

    def model(self, element: str | None = None) -> onnx.ModelProto:
        """Return the model, with ``element`` in place of float16 if it is given."""
        text = self.text if element is None else self.text.replace("float16[", f"{element}[")
        model = onnx.parser.parse_model(HEAD + text)
        dtype = np.float16 if "float16[" in text else np.float32
        rng = np.random.default_rng(1)
        for name, shape in self.weights.items():
            fan_in = shape[0] if len(shape) == 2 else max(1, int(np.prod(shape[1:])))
            scale = fan_in**-0.5 if len(shape) > 1 else 0.5
            rounded = self._rounded(rng.standard_normal(shape, np.float32) * scale)
            model.graph.initializer.append(numpy_helper.from_array(rounded.astype(dtype), name))
        for name, value in self.constants.items():
            array = np.asarray(value)
            array = array.astype(dtype) if array.dtype.kind == "f" else array
            model.graph.initializer.append(numpy_helper.from_array(array, name))
        return model

    def inputs(self, size: Mapping[str, int]) -> dict[str, np.ndarray]:
        """Return random inputs for a size of the symbolic dims."""
        rng = np.random.default_rng(2)
        dtype = np.float16 if "float16[" in self.text else np.float32
        result = {}
        for shape, name in re.findall(r"float(?:16)?\[([^\]]*)\] (\w+)", self.text.split("=>")[0]):
            extents = tuple(size[part] if part in size else int(part) for part in shape.replace(" ", "").split(","))
            values = rng.standard_normal(extents, np.float32) * (0.125 if name == "weight" else 1.0)
            result[name] = self._rounded(values).astype(dtype)
        return result

    def _rounded(self, array: np.ndarray) -> np.ndarray:
        if "float16[" in self.text:
            return array.astype(np.float16).astype(np.float32)
        if self.precision == "bf16":
            return (array.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        return array


def reference(case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what onnxruntime computes in float32."""
    import onnxruntime

    model = case.model("float")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    given = {name: array.astype(np.float32) for name, array in inputs.items()}
    return dict(zip(names, session.run(names, given), strict=True))


def _symbolic(name: str, values: Sequence[int]) -> tuple[str, list[dict[str, int]]]:
    """Return how a text writes an extent and the sizes to run it with: a symbolic dim if there are several."""
    return (name, [{name: each} for each in values]) if len(values) > 1 else (str(values[0]), [{}])


def dense(
    *sizes: Any,
    dtype: str = "float16",
    activation: str = "",
    bias: bool = True,
    residual: bool = False,
    wide: bool = False,
    tolerance: float | None = None,
    computed: bool = False,
    **options: Any,
) -> Case:
    """[m, k] times a weight [k, n]; ``wide`` casts the result to float32, ``computed`` weights are an input.

    ``sizes`` are the name, m, n and k.
    """
    name, m, n, k = sizes
    rows, runs = _symbolic("m", m)
    inputs = f"{dtype}[{rows},{k}] x" + (f", {dtype}[{k},{n}] weight" if computed else "")
    inputs += f", {dtype}[{rows},{n}] r" if residual else ""
    weights: dict[str, tuple[int, ...]] = {} if computed else {"weight": (k, n)}
    steps, last = ["p = MatMul(x, weight)"], "p"
    if bias:
        steps.append("q = Add(p, b)")
        weights["b"], last = (n,), "q"
    if residual:
        steps.append(f"t = Add({last}, r)")
        last = "t"
    steps += [f"y = Cast<to = 1>({last})"] if wide else [f"a = Identity({last})", ACTIVATIONS[activation]]
    text = f"({inputs}) => ({'float' if wide else dtype}[{rows},{n}] y) {{ {' '.join(steps)} }}"
    found = tolerance or TOLERANCES[options.get("precision") or dtype]
    if activation == "gelu_tanh":
        found = max(found, 1e-4)  # 1 + tanh cancels below -2, in all float32 arithmetic
    return Case(name, text, weights, found, runs, **options)


def bmm(name: str, b: int, m: Sequence[int], n: int, k: int, dtype: str = "float16") -> Case:
    """[b, m, k] times [b, k, n], both inputs."""
    rows, runs = _symbolic("m", m)
    text = f"({dtype}[{b},{rows},{k}] x, {dtype}[{b},{k},{n}] z) => ({dtype}[{b},{rows},{n}] y) {{ y = MatMul(x, z) }}"
    return Case(name, text, {}, TOLERANCES[dtype], runs)


def conv(
    *sizes: Any,
    window: int = 3,
    stride: int = 1,
    padding: int = 1,
    dilation: int = 1,
    activation: str = "relu",
    residual: bool = False,
    dtype: str = "float16",
    **options: Any,
) -> Case:
    """A convolution with bias, of square images; a residual is added before the activation.

    ``sizes`` are the name, the batches, channels, filters and height.
    """
    name, batch, channels, filters, size = sizes
    count, runs = _symbolic("n", batch)
    after = (size + 2 * padding - dilation * (window - 1) - 1) // stride + 1
    attributes = f"strides = [{stride}, {stride}], pads = [{padding}, {padding}, {padding}, {padding}]"
    attributes += f", dilations = [{dilation}, {dilation}]"
    shape = f"{dtype}[{count},{filters},{after},{after}]"
    inputs = f"{dtype}[{count},{channels},{size},{size}] x" + (f", {shape} r" if residual else "")
    last = "a = Add(p, r) " if residual else "a = Identity(p) "
    text = f"({inputs}) => ({shape} y) {{ p = Conv<{attributes}>(x, weight, b) {last}{ACTIVATIONS[activation]} }}"
    weights = {"weight": (filters, channels, window, window), "b": (filters,)}
    return Case(name, text, weights, TOLERANCES[options.get("precision") or dtype], runs, **options)


def attention(name: str, b: Sequence[int], heads: int, length: int, depth: int, mask: str = "") -> Case:
    """softmax(q kT / sqrt(depth) + mask) v of [b, length, heads * depth]; the mask "causal", "keys" or none."""
    (count, runs), width, dtype = _symbolic("b", b), heads * depth, "float16"
    inputs = ", ".join(f"{dtype}[{count},{length},{width}] {each}" for each in ("q", "k", "v"))
    inputs += f", {dtype}[{count},1,1,{length}] mask" if mask == "keys" else ""
    steps = [f"{each}s = Reshape({each}, split)" for each in "qkv"]
    steps += ["qt = Transpose<perm = [0, 2, 1, 3]>(qs)", "kt = Transpose<perm = [0, 2, 3, 1]>(ks)"]
    steps += ["vt = Transpose<perm = [0, 2, 1, 3]>(vs)", "s = MatMul(qt, kt)", "c = Mul(s, scale)"]
    steps.append("d = Add(c, mask)" if mask else "d = Identity(c)")
    steps += ["p = Softmax<axis = -1>(d)", "o = MatMul(p, vt)", "t = Transpose<perm = [0, 2, 1, 3]>(o)"]
    steps.append("y = Reshape(t, join)")
    text = f"({inputs}) => ({dtype}[{count},{length},{width}] y) {{ {' '.join(steps)} }}"
    constants: dict[str, Any] = {
        "split": np.array([0, length, heads, depth]),
        "join": np.array([0, length, width]),
        "scale": np.array(depth**-0.5, np.float32),
    }
    if mask == "causal":
        constants["mask"] = np.triu(np.full((length, length), -1e4, np.float32), 1)[None, None]
    return Case(name, text, {}, 3 * TOLERANCES[dtype], runs, constants=constants)


def behaviors() -> Iterator[Case]:
    """Yield what TVM's tests check, and the edges: one row, one column, sizes that no vector divides, many rows."""
    for activation in ACTIVATIONS:
        yield dense(f"dense_{activation or 'bias'}", [64], 128, 64, activation=activation)
    yield dense("dense_plain", [64], 128, 64, bias=False)
    yield dense("dense_fp32_out", [64], 128, 64, wide=True, tolerance=1e-3)
    yield dense("dense_residual", [64], 128, 64, residual=True, activation="relu")
    yield dense("dense_computed", [64], 128, 64, computed=True, bias=False)
    yield dense("dense_alignment_1", [55], 77, 33, activation="relu")
    yield dense("dense_alignment_2", [55], 130, 66, activation="gelu")
    yield dense("dense_alignment_4", [55], 132, 68)
    yield dense("dense_one_row", [1], 768, 768, activation="gelu")
    yield dense("dense_one_column", [64], 1, 768)
    yield dense("dense_one_step", [64], 128, 8)
    yield dense("dense_huge", [16384], 64, 128)
    yield dense("dense_deep", [16], 64, 65536, bias=False)
    yield dense("dense_dynamic", [1, 2, 7, 64, 127, 1000], 768, 256, activation="gelu_tanh", residual=False)
    yield dense("dense_dynamic_odd", [1, 3, 100], 51, 37, activation="relu")
    yield dense("dense_bf16", [64], 128, 64, dtype="float", precision="bf16", activation="gelu")
    yield dense("dense_bf16_dynamic", [1, 50, 333], 256, 192, dtype="float", precision="bf16", residual=True)
    yield dense("dense_3xtf32", [64], 128, 64, dtype="float", activation="gelu")
    yield dense("dense_3xtf32_odd", [33], 51, 37, dtype="float")
    yield dense("dense_tf32", [64], 128, 64, dtype="float", options="-use_3xtf32=0", tolerance=TOLERANCES["tf32"])
    yield dense("dense_fast_math", [64], 128, 64, activation="gelu_tanh", options="-use_fast_math=1", tolerance=5e-3)
    for slices in (1, 8):
        yield dense(f"dense_split_k_{slices}", [64], 128, 4096, options=f"-split_k_slices={slices}", activation="relu")
    yield dense("dense_split_k_dynamic", [1, 60, 200], 256, 2048, options="-split_k_slices=4", residual=True)
    yield dense("dense_alignments", [64], 128, 64, options="-profile_all_alignments=1 -candidates=6")
    for name, m in (("static", [128]), ("dynamic", [1, 16, 77, 128])):
        yield bmm(f"bmm_{name}", 12, m, 64, 128)
    yield bmm("bmm_odd", 5, [17], 33, 9)
    yield bmm("bmm_3xtf32", 12, [128], 64, 128, "float")
    for channels in (3, 16):
        yield conv(f"conv_ic{channels}", [1], channels, 32, 28)
        yield conv(f"conv_dynamic_ic{channels}", [1, 2, 8], channels, 32, 28)
    yield conv("conv_silu", [2], 64, 64, 14, activation="silu")
    yield conv("conv_hardswish", [2], 64, 64, 14, activation="hardswish")
    yield conv("conv_sigmoid", [2], 64, 64, 14, activation="sigmoid")
    yield conv("conv_residual_relu", [2], 64, 64, 14, residual=True)
    yield conv("conv_residual", [2], 64, 64, 14, residual=True, activation="")
    yield conv("conv_stride_2", [2], 64, 128, 28, stride=2)
    yield conv("conv_dilated", [2], 64, 64, 28, dilation=2, padding=2)
    yield conv("conv_stem", [2], 3, 64, 64, window=7, stride=2, padding=3)
    yield conv("conv_1x1", [2], 64, 256, 14, window=1, padding=0)
    yield conv("conv_1x1_stride_2", [2], 64, 128, 28, window=1, padding=0, stride=2)
    yield conv("conv_fast_math", [2], 64, 64, 14, activation="silu", options="-use_fast_math=1")
    yield conv("conv_bf16", [2], 64, 64, 14, dtype="float", precision="bf16")
    yield conv("conv_3xtf32", [2], 64, 64, 14, dtype="float")
    yield conv("conv_odd", [3], 10, 21, 9)
    for mask in ("", "causal", "keys"):
        yield attention(f"attention_{mask or 'plain'}", [2], 4, 128, 64, mask=mask)
        yield attention(f"attention_dynamic_{mask or 'plain'}", [1, 3, 8], 4, 64, 32, mask=mask)
    yield attention("attention_vit", [2], 12, 197, 64)
    yield attention("attention_long", [1], 4, 1024, 128)
    yield attention("attention_narrow", [2], 3, 50, 40)


def drawn(count: int = 12) -> Iterator[Case]:
    """Yield cases of sizes and forms drawn at random, always the same ones."""
    rng = np.random.default_rng(2026)

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    for index in range(count):
        n, k = (int(rng.integers(1, 40)) * pick(1, 2, 4, 8, 8, 8) for _ in range(2))
        m = sorted({int(2 ** rng.uniform(0, 11)) for _ in range(3)} | {1})
        yield dense(
            f"drawn_dense_{index}",
            *(m, n, k),
            activation=pick(*ACTIVATIONS),
            residual=pick(True, False),
            dtype=pick("float16", "float16", "float"),
        )
    for index in range(count // 2):
        n, k = (int(rng.integers(1, 20)) * pick(1, 8, 8) for _ in range(2))
        yield bmm(f"drawn_bmm_{index}", int(rng.integers(1, 20)), [int(rng.integers(1, 200))], n, k)
    for index in range(count):
        window, stride = pick(1, 3, 3, 5), pick(1, 1, 2)
        yield conv(
            f"drawn_conv_{index}",
            sorted({1, int(rng.integers(2, 6))}),
            *(int(rng.integers(1, 12)) * pick(1, 8, 8), int(rng.integers(1, 12)) * pick(1, 8, 8)),
            int(rng.integers(7, 40)),
            window=window,
            stride=stride,
            padding=pick(0, window // 2),
            activation=pick("relu", "", "silu"),
            residual=pick(False, True),
        )
    for index in range(count // 2):
        b, heads = sorted({1, int(rng.integers(1, 6))}), int(rng.integers(1, 9))
        length, depth = int(rng.integers(1, 40)) * 8, int(rng.integers(1, 17)) * 8
        yield attention(f"drawn_attention_{index}", b, heads, length, depth, mask=pick("", "causal", "keys"))


CASES = (*behaviors(), *drawn())

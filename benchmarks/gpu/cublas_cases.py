"""The models of benchmarks.gpu.cublas: their weights, inputs, and what they compute."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from benchmarks.harness.pairs import Arrays

PERIOD = 4099
PRODUCTS = """<ir_version: 10, opset_import: ["": 21]>
products (float16[n,768] x, float16[n,3072] r, float16[n,33] o, float16[n,12,64,96] q, float16[n,12,96,80] k,
    bfloat16[n,768] h, float16[n,64,14,14] image) => (
    float16[n,3072] plain, float16[n,3072] relu, float16[n,3072] residual, float16[n,3072] gelu, float16[n,3072] scaled,
    float16[n,45] odd, float16[n,12,64,80] batched, bfloat16[n,3072] brain, float16[n,128,14,14] pointwise) {
  plain = MatMul(x, w0)
  a1 = MatMul(x, w1) b1 = Add(a1, b) relu = Relu(b1)
  a2 = MatMul(x, w2) b2 = Add(a2, b) c2 = Add(b2, r) residual = Relu(c2)
  a3 = MatMul(x, w3) b3 = Add(a3, b) gelu = Gelu(b3)
  a4 = MatMul(x, w4) b4 = Mul(a4, eighth) scaled = Add(b4, b)
  a5 = MatMul(o, w5) odd = Add(a5, c)
  batched = MatMul(q, k)
  a6 = MatMul(h, w6) b6 = Add(a6, d) brain = Relu(b6)
  a7 = Conv(image, f, g) pointwise = Relu(a7)
}"""
WEIGHTS = {
    **{f"w{i}": (768, 3072) for i in (0, 1, 2, 3, 4, 6)},
    **{"w5": (33, 45), "b": (3072,), "c": (45,), "d": (3072,), "f": (128, 64, 1, 1), "g": (128,)},
}
BRAIN = ("h", "w6", "d")
MLP = """<ir_version: 10, opset_import: ["": 21]>
mlp (float16[128,4096] x) => (float16[128,4096] y) {
  g = MatMul(x, gate) s = Sigmoid(g) a = Mul(g, s) u = MatMul(x, up) m = Mul(a, u) y = MatMul(m, down)
}"""
LINEAR = """<ir_version: 10, opset_import: ["": 21]>
linear (float16[2048,768] x) => (float16[2048,3072] y) { p = MatMul(x, w) a = Add(p, b) y = Relu(a) }"""


def periodic(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> np.ndarray:
    """Return random numbers that repeat with a prime period, so that a bundle is quick to copy."""
    return np.resize(np.random.default_rng(seed).standard_normal(PERIOD) * scale, shape)


def half(name: str, array: np.ndarray) -> np.ndarray:
    """Return an array in the half precision that its name has in PRODUCTS."""
    return array.astype(ml_dtypes.bfloat16 if name in BRAIN else np.float16)


def save(text: str, weights: Arrays, path: Path) -> Path:
    """Write a model with these weights."""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(model, path)
    return path


def gelu(x: np.ndarray) -> np.ndarray:
    """Return GELU by erf."""
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def product_weights() -> Arrays:
    """Return the constants of PRODUCTS."""
    found = {name: half(name, periodic(shape, i, 0.05)) for i, (name, shape) in enumerate(WEIGHTS.items())}
    return {**found, "eighth": np.array(0.125, np.float16)}


def product_inputs(rows: int) -> Arrays:
    """Return inputs of PRODUCTS."""
    shapes = {"x": (768,), "r": (3072,), "o": (33,), "q": (12, 64, 96), "k": (12, 96, 80), "h": (768,)}
    shapes["image"] = (64, 14, 14)
    rng = np.random.default_rng(rows)
    return {name: half(name, rng.standard_normal((rows, *shape))) for name, shape in shapes.items()}


def product_outputs(inputs: Arrays) -> Arrays:
    """Return what PRODUCTS computes, in float64."""
    v = {name: array.astype(np.float64) for name, array in {**inputs, **product_weights()}.items()}
    x, b = v["x"], v["b"]
    image = np.einsum("nchw,fc->nfhw", v["image"], v["f"][:, :, 0, 0]) + v["g"].reshape(1, -1, 1, 1)
    return {
        "plain": x @ v["w0"],
        "relu": np.maximum(x @ v["w1"] + b, 0),
        "residual": np.maximum(x @ v["w2"] + b + v["r"], 0),
        "gelu": gelu(x @ v["w3"] + b),
        "scaled": x @ v["w4"] * 0.125 + b,
        "odd": v["o"] @ v["w5"] + v["c"],
        "batched": v["q"] @ v["k"],
        "brain": np.maximum(v["h"] @ v["w6"] + v["d"], 0),
        "pointwise": np.maximum(image, 0),
    }


def linear_weights() -> Arrays:
    """Return the constants of LINEAR."""
    return {"w": periodic((768, 3072), 1, 0.05).astype(np.float16), "b": periodic((3072,), 2).astype(np.float16)}


def mlp_weights() -> Arrays:
    """Return the constants of MLP."""
    shapes = {"gate": (4096, 11008), "up": (4096, 11008), "down": (11008, 4096)}
    return {name: periodic(shape, i, 0.02).astype(np.float16) for i, (name, shape) in enumerate(shapes.items())}


QUANTIZED = """<ir_version: 10, opset_import: ["": 21]>
quantized (float[1024,768] x) => (float[1024,768] y) {
  xq = QuantizeLinear(x, sx, z) xd = DequantizeLinear(xq, sx, z) ud = DequantizeLinear(up, su, z)
  p = MatMul(xd, ud) a = Add(p, b) r = Relu(a) hq = QuantizeLinear(r, sh, z) hd = DequantizeLinear(hq, sh, z)
  dd = DequantizeLinear(down, sd, z) q = MatMul(hd, dd) y = Add(q, c) }"""
STEPS = {"sx": 1 / 32, "su": 1 / 64, "sh": 1 / 16, "sd": 1 / 64}


def quantized(kind: str, path: Path) -> list[tuple[Arrays, Arrays]]:
    """Write a perceptron of QDQ, of "int8" or "float8_e4m3fn", and return its input beside what float64 computes."""
    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    least, most = (-128, 127) if kind == "int8" else (-448, 448)

    def rounded(array: np.ndarray, step: float) -> np.ndarray:
        scaled = np.clip(array / step, least, most)
        return (np.rint(scaled) if kind == "int8" else scaled).astype(np.float32).astype(dtype)

    up, down = (rounded(periodic(shape, i, 0.25), 1 / 64) for i, shape in enumerate(((768, 3072), (3072, 768))))
    b, c = (periodic((size,), i).astype(np.float32) for i, size in ((2, 3072), (3, 768)))
    arrays = {"up": up, "down": down, "b": b, "c": c, "z": np.zeros((), dtype)}
    arrays |= {name: np.asarray(step, np.float32) for name, step in STEPS.items()}
    model = onnx.parser.parse_model(QUANTIZED)
    for name, array in arrays.items():
        code = onnx.helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype)
        made = onnx.helper.make_tensor(name, code, array.shape, np.asarray(array).tobytes(), raw=True)
        model.graph.initializer.append(made)
    onnx.save(model, path)
    x = periodic((1024, 768), 4).astype(np.float32)
    hidden = rounded(x, STEPS["sx"]).astype(np.float64) @ up.astype(np.float64) * (STEPS["sx"] * STEPS["su"]) + b
    middle = rounded(np.maximum(hidden, 0), STEPS["sh"]).astype(np.float64)
    return [({"x": x}, {"y": middle @ down.astype(np.float64) * (STEPS["sh"] * STEPS["sd"]) + c})]

"""onnxruntime's attention over caches and packed sequences, and its quantized LSTM."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import packager
from tests.one_cpu import targets_here
from tests.stages import placed_file

RNG = np.random.default_rng(11)
MICROSOFT = "com.microsoft"
FLOAT, INT32 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32
HEADS, GROUPS, DEPTH, POSITIONS = 4, 2, 16, 40
Shape = Sequence[int | str]

pytestmark = pytest.mark.slow


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model_of(nodes: Sequence[onnx.NodeProto], inputs: dict[str, tuple[int, Shape]], outputs: dict[str, Shape],
             constants: dict[str, np.ndarray]) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(
        list(nodes),
        "decoder",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    versions = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=10)


def onnxruntime_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def built(model: onnx.ModelProto, folder: Path, dims: Any = None) -> packager.Bundle:
    onnx.save(model, folder / "m.onnx")
    return packager.load(packager.build(folder / "m.onnx", folder / "m.so", dims=dims, targets=targets_here()))


def group_query(past: int | str | None, rows: int | str, batch: int | str, *, room: bool = False, extra: Any = None,
                packed: bool = False, **attributes: Any) -> onnx.ModelProto:  # fmt: skip
    """A GroupQueryAttention with its projections; ``room``: the present is as large as the past."""
    width = HEADS * DEPTH
    names = ["qkv"] if packed else ["q", "k", "v"]
    sizes = [(HEADS + 2 * GROUPS) * DEPTH] if packed else [width, GROUPS * DEPTH, GROUPS * DEPTH]
    constants = {f"w_{name}": f(width, size) / 8 for name, size in zip(names, sizes, strict=True)}
    constants |= {"cos": f(POSITIONS, DEPTH // 2), "sin": f(POSITIONS, DEPTH // 2), "sink": f(HEADS)}
    nodes = [helper.make_node("MatMul", ["x", f"w_{name}"], [name]) for name in names]
    operands = [*names, *([""] * (3 - len(names))), *(["", ""] if past is None else ["past_key", "past_value"])]
    rotary = ["cos", "sin"] if attributes.get("do_rotary") else ["", ""]
    operands += ["lengths", "total", *rotary, "", *(["", extra] if extra == "sink" else [extra or ""])]
    given = {"num_heads": HEADS, "kv_num_heads": GROUPS} | attributes
    nodes.append(helper.make_node("GroupQueryAttention", operands, ["y", "present_key", "present_value"], "gqa",
                                  domain=MICROSOFT, **given))  # fmt: skip
    cache: Shape = [batch, GROUPS, past or 0, DEPTH]
    inputs: dict[str, tuple[int, Shape]] = {"x": (FLOAT, [batch, rows, width])}
    inputs |= {} if past is None else {"past_key": (FLOAT, cache), "past_value": (FLOAT, cache)}
    inputs |= {"lengths": (INT32, [batch]), "total": (INT32, [])}
    present = cache if room else [batch, GROUPS, "present", DEPTH]
    return model_of(nodes, inputs, {"y": [batch, rows, width], "present_key": present, "present_value": present},
                    constants)  # fmt: skip


def feeds(past: int | None, rows: int, lengths: Sequence[int]) -> dict[str, np.ndarray]:
    """Inputs; ``lengths`` are those of each sequence with the new rows."""
    batch = len(lengths)
    made = {"x": f(batch, rows, HEADS * DEPTH), "lengths": np.asarray(lengths, np.int32) - 1}
    made["total"] = np.asarray(max(lengths), np.int32)
    if past is not None:
        made |= {name: f(batch, GROUPS, past, DEPTH) for name in ("past_key", "past_value")}
    return made


def check(model: onnx.ModelProto, bundle: packager.Bundle, given: dict[str, np.ndarray], prompt: bool = False) -> None:
    """Compare with onnxruntime; of the present keys what counts, and of a prompt the rows that are no padding."""
    wanted = onnxruntime_of(model).run(None, given)
    found = bundle.run({info.name: given[info.name] for info in bundle.inputs})
    for name, want in zip(found, wanted, strict=True):
        assert found[name].dtype == want.dtype
        for row, length in enumerate(given["lengths"] + 1):
            used = (slice(None), slice(length)) if name != "y" else (slice(length),) if prompt else (slice(None),)
            np.testing.assert_allclose(found[name][row][used], want[row][used], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"do_rotary": 1},
        {"do_rotary": 1, "rotary_interleaved": 1, "packed": True},
        {"local_window_size": 4, "softcap": 2.0, "scale": 0.3},
        {"smooth_softmax": 1, "local_window_size": 4},
        {"extra": "sink", "softcap": 3.0, "do_rotary": 1},
    ],
    ids=lambda given: "-".join(given) or "plain",
)
def test_group_query_attention_steps(attributes: dict[str, Any], tmp_path: Path) -> None:
    """One step of several sequences of different lengths, and several rows of one, with symbolic dims."""
    model = group_query("past", "rows", "batch", **attributes)
    with built(model, tmp_path, {"past": (1, 20), "rows": (1, 4), "batch": (1, 3)}) as bundle:
        check(model, bundle, feeds(6, 1, [7, 7]))
        check(model, bundle, feeds(9, 1, [10, 5, 2]))
        check(model, bundle, feeds(5, 3, [8]))


@pytest.mark.sampled(3, every_value=False)
@pytest.mark.parametrize("attributes", [{"do_rotary": 1}, {"local_window_size": 3}, {"smooth_softmax": 1}],
                         ids=lambda given: next(iter(given)))  # fmt: skip
def test_group_query_attention_of_a_prompt(attributes: dict[str, Any], tmp_path: Path) -> None:
    model = group_query(None, "rows", "batch", **attributes)
    with built(model, tmp_path, {"rows": (1, 9), "batch": (1, 3)}) as bundle:
        check(model, bundle, feeds(None, 9, [9, 9]), prompt=True)
        check(model, bundle, feeds(None, 5, [5, 3]), prompt=True)


def test_a_cache_with_room(tmp_path: Path) -> None:
    """Where the present is declared with the extent of the past, a step writes into the room."""
    model = group_query(12, 1, 2, room=True, do_rotary=1)
    given = feeds(12, 1, [7, 4])
    with built(model, tmp_path) as bundle:
        found = bundle.run({info.name: given[info.name] for info in bundle.inputs})
    assert found["present_key"].shape == (2, GROUPS, 12, DEPTH)
    wanted = onnxruntime_of(model).run(None, given)
    for name, want in zip(found, wanted, strict=True):
        used = found[name][:, :, :4] if name != "y" else found[name]
        np.testing.assert_allclose(used, want[:, :, :4] if name != "y" else want, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("encoder", [False, True])
def test_decoder_masked_attention(encoder: bool, tmp_path: Path) -> None:
    width = HEADS * DEPTH
    cache: Shape = ["batch", HEADS, "room", DEPTH]
    inputs: dict[str, tuple[int, Shape]] = {"q": (FLOAT, ["batch", 1, width])}
    constants = {"bias": f(3 * width)}
    if encoder:
        operands = ["q", "k", "v", "mask", "", "", "", "", "", "", "bias"]
        inputs |= {"k": (FLOAT, cache), "v": (FLOAT, cache), "mask": (INT32, ["batch", "room"])}
    else:
        operands = ["q", "k", "v", "", "", "past_key", "past_value", "past", "", "", "bias"]
        inputs |= {name: (FLOAT, ["batch", 1, width]) for name in "kv"}
        inputs |= {"past_key": (FLOAT, cache), "past_value": (FLOAT, cache), "past": (INT32, [1])}
    outputs: dict[str, Shape] = {"y": ["batch", 1, width]}
    outputs |= {} if encoder else {"present_key": cache, "present_value": cache}
    node = helper.make_node("DecoderMaskedMultiHeadAttention", operands, list(outputs), "dm", domain=MICROSOFT,
                            num_heads=HEADS, past_present_share_buffer=int(not encoder))  # fmt: skip
    model = model_of([node], inputs, outputs, constants)
    with built(model, tmp_path, {"batch": (1, 3), "room": (1, 12)}) as bundle:
        sizes = {"batch": 2, "room": 9}
        shapes = {name: [sizes.get(str(extent), extent) for extent in shape] for name, (_, shape) in inputs.items()}
        given = {name: f(*shape) for name, shape in shapes.items() if inputs[name][0] == FLOAT}
        more = {"mask": np.array([[1] * 9, [1] * 4 + [0] * 5], np.int32), "past": np.array([6], np.int32)}
        given |= {name: more[name] for name in inputs if name in more}
        # onnxruntime writes into the past
        wanted = onnxruntime_of(model).run(None, {name: array.copy() for name, array in given.items()})
        found = bundle.run(given)
    for name, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(found[name], want, rtol=1e-4, atol=1e-5, err_msg=name)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, ends: Sequence[int], heads: int) -> np.ndarray:
    """Attention of sequences one behind the other."""
    result, depth = np.zeros_like(v), q.shape[1] // heads
    for first, last in itertools.pairwise(ends):
        for head in range(heads):
            part = (slice(first, last), slice(head * depth, (head + 1) * depth))
            weights = np.exp(q[part] @ k[part].T / np.sqrt(depth))
            result[part] = weights / weights.sum(-1, keepdims=True) @ v[part]
    return result


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("operator", ["PackedAttention", "PackedMultiHeadAttention", "side by side"])
def test_packed_sequences(operator: str, tmp_path: Path) -> None:
    """Against numpy: onnxruntime has these on GPUs only."""
    ends, bias = [0, 3, 3, 7], f(24)
    q, k, v = (f(7, 8) for _ in range(3))
    constants = {"bias": bias}
    given = {"offsets": np.zeros((2, 4), np.int32), "ends": np.asarray(ends, np.int32)}
    if operator == "PackedAttention":
        constants["w"] = f(8, 24)
        given |= {"x": q}
        operands = ["x", "w", "bias", "offsets", "ends"]
        whole = q @ constants["w"] + bias
        q, k, v = whole[:, :8], whole[:, 8:16], whole[:, 16:]
    elif operator == "PackedMultiHeadAttention":
        given |= {"q": q, "k": k, "v": v}
        operands = ["q", "k", "v", "bias", "offsets", "ends"]
        q, k, v = (part + bias[8 * i : 8 * i + 8] for i, part in enumerate((q, k, v)))
    else:
        given |= {"qkv": np.stack([part.reshape(7, 2, 4) for part in (q, k, v)], 2)}
        operands, operator = ["qkv", "", "", "", "offsets", "ends"], "PackedMultiHeadAttention"
    dims = {"offsets": ["batch", "longest"], "ends": ["count"]}
    inputs = {name: ({"f": FLOAT, "i": INT32}[a.dtype.kind], dims.get(name, ["tokens", *a.shape[1:]]))
              for name, a in given.items()}  # fmt: skip
    node = helper.make_node(operator, operands, ["y"], "packed", domain=MICROSOFT, num_heads=2)
    model = model_of([node], inputs, {"y": ["tokens", 8]}, constants)
    bounds = {"tokens": (1, 16), "batch": (1, 4), "longest": (1, 8), "count": (2, 5)}
    with built(model, tmp_path, bounds) as bundle:
        found = bundle.run({info.name: given[info.name] for info in bundle.inputs})["y"]
    np.testing.assert_allclose(found, attention(q, k, v, ends, 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("packed", ["all", "keys"])
def test_packed_heads(packed: str, tmp_path: Path) -> None:
    """Against the same operands apart: onnxruntime has packed ones on GPUs only."""
    q, k, v = f(2, 5, 8), f(2, 5, 8), f(2, 5, 8)
    parts = [part.reshape(2, 5, 2, 1, 4) for part in (q, k, v)]
    given = {"q": np.concatenate(parts, 3)} if packed == "all" else {"q": q, "k": np.concatenate(parts[1:], 3)}
    node = helper.make_node("MultiHeadAttention", list(given), ["y"], "mha", domain=MICROSOFT, num_heads=2)
    inputs = {name: (FLOAT, ["n", *array.shape[1:]]) for name, array in given.items()}
    apart = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], "mha", domain=MICROSOFT, num_heads=2)
    plain = model_of([apart], {name: (FLOAT, [2, 5, 8]) for name in "qkv"}, {"y": [2, 5, 8]}, {})
    (want,) = onnxruntime_of(plain).run(None, {"q": q, "k": k, "v": v})
    with built(model_of([node], inputs, {"y": ["n", 5, 8]}, {}), tmp_path, {"n": (1, 3)}) as bundle:
        np.testing.assert_allclose(bundle.run(given)["y"], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("directions", "direction"), [(1, "reverse"), (2, "bidirectional")])
def test_dynamically_quantized_lstm(directions: int, direction: str, tmp_path: Path) -> None:
    """onnxruntime quantizes the inputs of each product, too: within a step of 8 bits."""
    hidden, width = 4, 5
    constants = {"w": RNG.integers(-127, 128, (directions, width, 4 * hidden)).astype(np.int8),
                 "r": RNG.integers(-127, 128, (directions, hidden, 4 * hidden)).astype(np.int8),
                 "b": f(directions, 8 * hidden), "s": np.full(directions, 0.01, np.float32),
                 "z": np.zeros(directions, np.int8)}  # fmt: skip
    node = helper.make_node("DynamicQuantizeLSTM", ["x", "w", "r", "b", "", "", "", "", "s", "z", "s", "z"],
                            ["y", "h", "c"], domain=MICROSOFT, hidden_size=hidden, direction=direction)  # fmt: skip
    outputs: dict[str, Shape] = {"y": [6, directions, "n", hidden], "h": [directions, "n", hidden]}
    outputs["c"] = outputs["h"]
    model = model_of([node], {"x": (FLOAT, [6, "n", width])}, outputs, constants)
    x = f(6, 2, width)
    with built(model, tmp_path, {"n": (1, 4)}) as bundle:
        found = bundle.run({"x": x})
    for name, want in zip(found, onnxruntime_of(model).run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(found[name], want, rtol=0, atol=0.02, err_msg=name)


@pytest.mark.parametrize(
    ("sizes", "dims"),
    [
        ((12, 1, 2), {}),
        (("past", 1, "batch"), {"past": (1, 900), "batch": (1, 4)}),
        ((None, "rows", "batch"), {"rows": (1, 64), "batch": (1, 4)}),
    ],
    ids=["static", "step", "prompt"],
)
@pytest.mark.parametrize("attributes", [{"extra": "sink"}, {"smooth_softmax": 1}], ids=lambda given: next(iter(given)))
def test_sinks_are_of_the_kernel(sizes: Any, dims: Any, attributes: dict[str, Any], tmp_path: Path) -> None:
    """As gpt-oss has them: a kernel of a GPU computes attention with them, of any number of keys, too."""
    onnx.save(group_query(*sizes, **attributes), tmp_path / "m.onnx")
    targets = ("cuda -arch=sm_90a", "cutlass")
    partitions = placed_file(tmp_path / "m.onnx", targets=targets, precision="fp16", dims=dims).partitions
    taken = [composite.name for each in partitions.values() for composite in each.partition.composites]
    assert taken.count("cutlass.attention") == 1

"""Operators that draw random numbers: their distributions, and what is the same in two runs and what is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from scipy import stats

import packager
from packager.bundle.origin import RandomNode
from tests.one_cpu import targets_here
from tests.onnx_nodes import BOOL, FLOAT, INT64, model_of

SEED = 0x1234_5678_9ABC_DEF0
LEAST = 1e-6  # probability of what a right generator does, below which a test fails: the seeds are fixed


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, outputs, name=f"n_{outputs[0]}", **attributes)


def bundle_of(folder: Path, nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Any], outputs: Mapping[str, int],
              constants: Mapping[str, Any] | None = None, **options: Any) -> packager.Bundle:  # fmt: skip
    model = model_of(nodes, inputs, outputs, {name: np.asarray(v) for name, v in (constants or {}).items()}, opset=22)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return packager.load(packager.build(folder / "m.onnx", folder / "m.so", **{"targets": targets_here(), **options}))


def seed(number: int) -> dict[str, np.ndarray]:
    return {"random_seed": np.asarray(number, np.int64)}


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10 in Python's integers."""
    words, keys = list(counter), list(key)
    for _ in range(10):
        a, b = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [b >> 32 ^ words[1] ^ keys[0], b & 0xFFFFFFFF, a >> 32 ^ words[3] ^ keys[1], a & 0xFFFFFFFF]
        keys = [(k + step) & 0xFFFFFFFF for k, step in zip(keys, (0x9E3779B9, 0xBB67AE85), strict=True)]
    return words


def test_the_reference_is_philox() -> None:
    """The vectors of known answers of the Random123 library."""
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    counter, key = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]
    assert philox(counter, key) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.slow
def test_numbers_are_those_of_the_generator(tmp_path: Path) -> None:
    nodes = [
        node("RandomUniform", [], ["u"], shape=[2, 3]),
        node("RandomUniform", [], ["d"], shape=[5], dtype=TensorProto.DOUBLE, low=-1.0, high=3.0),
        node("RandomUniform", [], ["s"], shape=[4], seed=2.5),
        node("RandomNormalLike", ["t"], ["z"], dtype=TensorProto.DOUBLE),
    ]
    kinds = {"u": FLOAT, "d": TensorProto.DOUBLE, "s": FLOAT, "z": TensorProto.DOUBLE}
    with bundle_of(tmp_path, nodes, {"t": ("float32", ())}, kinds) as bundle:
        made = bundle.run({"t": np.zeros((), np.float32), **seed(SEED)})
    key = [SEED & 0xFFFFFFFF, SEED >> 32]

    def unit(a: int, b: int) -> float:
        return ((a >> 5) * 2**26 + (b >> 6)) * 2.0**-53

    words = [philox([i, 0, 0, 0], key)[0] for i in range(6)]
    np.testing.assert_array_equal(made["u"].reshape(-1), [np.float32((w >> 8) * 2.0**-24) for w in words])
    np.testing.assert_allclose(made["d"], [unit(*philox([i, 0, 1, 0], key)[:2]) * 4 - 1 for i in range(5)], rtol=1e-15)
    bits = [int(np.float32(2.5).view(np.uint32)), 0]
    words = [philox([i, 0, 0xFFFFFFFF, 0], bits)[0] for i in range(4)]
    np.testing.assert_array_equal(made["s"], [np.float32((w >> 8) * 2.0**-24) for w in words])
    a, b, c, d = philox([0, 0, 3, 0], key)
    radius = np.sqrt(-2 * np.log(unit(a, b) + 2.0**-54))
    np.testing.assert_allclose(made["z"], radius * np.cos(2 * np.pi * unit(c, d)), rtol=1e-12)


@pytest.mark.slow
def test_distributions(tmp_path: Path) -> None:
    half, double = TensorProto.FLOAT16, TensorProto.DOUBLE
    nodes = [
        node("RandomNormalLike", ["x"], ["normal"], mean=1.0, scale=2.0),
        node("RandomNormalLike", ["x"], ["normal64"], dtype=double, mean=-3.0, scale=0.5),
        node("RandomNormalLike", ["x"], ["normal16"], dtype=half),
        node("RandomUniformLike", ["x"], ["uniform"], low=-2.0, high=6.0),
        node("RandomUniformLike", ["x"], ["uniform64"], dtype=double, low=1.0, high=2.0),
        node("RandomUniformLike", ["x"], ["uniform16"], dtype=half, low=1.0, high=2.0),
    ]
    kinds = {"normal": FLOAT, "normal64": double, "normal16": half}
    kinds |= {"uniform": FLOAT, "uniform64": double, "uniform16": half}
    with bundle_of(tmp_path, nodes, {"x": ("float32", ("rows", 200))}, kinds, dims={"rows": (1, 600)}) as bundle:
        made = bundle.run({"x": np.zeros((500, 200), np.float32), **seed(7)})
        again = bundle.run({"x": np.ones((500, 200), np.float32), **seed(7)})
        other = bundle.run({"x": np.zeros((500, 200), np.float32), **seed(8)})
    wanted = {
        "normal": stats.norm(1, 2),
        "normal64": stats.norm(-3, 0.5),
        "uniform": stats.uniform(-2, 8),
        "uniform64": stats.uniform(1, 1),
    }
    for name, law in wanted.items():
        values = made[name].astype(np.float64).reshape(-1)
        assert stats.kstest(values, law.cdf).pvalue > LEAST, name
        assert abs(values.mean() - law.mean()) < 5 * law.std() / np.sqrt(values.size), name
        assert abs(values.std() / law.std() - 1) < 5 / np.sqrt(values.size), name
    for name in kinds:
        assert made[name].shape == (500, 200)
        np.testing.assert_array_equal(made[name], again[name], err_msg=name)
        values = made[name].astype(np.float64)
        assert abs(np.corrcoef(values.reshape(-1), other[name].astype(np.float64).reshape(-1))[0, 1]) < 0.02, name
        for lag in (1, 2, 200):  # neighbors in rows and columns
            flat = values.reshape(-1)
            assert abs(np.corrcoef(flat[:-lag], flat[lag:])[0, 1]) < 0.02, (name, lag)
    between = np.corrcoef(np.stack([value.astype(np.float64).reshape(-1) for value in made.values()]))
    assert np.abs(between - np.eye(len(between))).max() < 0.02
    assert made["uniform16"].min() >= 1
    assert made["uniform16"].max() < 2
    assert made["normal16"].dtype == np.float16
    assert abs(made["normal16"].astype(np.float64).std() - 1) < 0.02


@pytest.mark.slow
def test_bernoulli_and_multinomial(tmp_path: Path) -> None:
    nodes = [
        node("Bernoulli", ["p"], ["b"]),
        node("Bernoulli", ["p"], ["flags"], dtype=BOOL),
        node("Multinomial", ["logits"], ["m"], sample_size=20000, dtype=INT64),
        node("Multinomial", ["logits"], ["one"]),
    ]
    chances = np.array([0.6, 0.0, 0.1, 0.3, 0.0])
    with np.errstate(divide="ignore"):
        logits = np.stack([np.log(chances) + 40, np.log(chances[::-1])]).astype(np.float32)
    inputs = {"p": ("float32", ("n", 50)), "logits": ("float32", ("batch", 5))}
    outputs = {"b": FLOAT, "flags": BOOL, "m": INT64, "one": TensorProto.INT32}
    p = np.tile(np.linspace(0, 1, 50, dtype=np.float32), (4000, 1))
    with bundle_of(tmp_path, nodes, inputs, outputs, dims={"n": (1, 4000), "batch": (1, 4)}) as bundle:
        made = bundle.run({"p": p, "logits": logits, **seed(1)})
    assert set(np.unique(made["b"])) == {0, 1}
    assert not made["b"][:, 0].any()
    assert made["b"][:, -1].all()
    spread = np.sqrt(p[0] * (1 - p[0]) / 4000)
    for name in ("b", "flags"):
        assert np.all(np.abs(made[name].mean(0) - p[0]) <= 5 * spread), name
    assert made["m"].shape == (2, 20000)
    assert made["one"].shape == (2, 1)
    for row, law in zip(made["m"], (chances, chances[::-1]), strict=True):
        counts = np.bincount(row, minlength=5)
        assert not counts[law == 0].any()
        assert stats.chisquare(counts[law > 0], law[law > 0] * row.size).pvalue > LEAST


@pytest.mark.slow
def test_dropout_in_training(tmp_path: Path) -> None:
    nodes = [
        node("Dropout", ["x", "ratio", "yes"], ["y", "mask"]),
        node("Dropout", ["x", "ratio", "mode"], ["z", "kept"]),
        node("Dropout", ["x", "", "yes"], ["half"]),
        node("Dropout", ["x", "ratio", "yes"], ["fixed"], seed=5),
    ]
    x = np.random.default_rng(1).standard_normal((200, 100)).astype(np.float32) + 10
    inputs = {"x": ("float32", ("n", 100)), "mode": ("bool", ())}
    outputs = {"y": FLOAT, "mask": BOOL, "z": FLOAT, "kept": BOOL, "half": FLOAT, "fixed": FLOAT}
    constants = {"ratio": np.float32(0.3), "yes": np.asarray(True)}
    with bundle_of(tmp_path, nodes, inputs, outputs, constants, dims={"n": (1, 200)}) as bundle:
        made = bundle.run({"x": x, "mode": np.asarray(True), **seed(1)})
        off = bundle.run({"x": x, "mode": np.asarray(False), **seed(2)})
    for result, mask in (("y", "mask"), ("z", "kept")):
        np.testing.assert_allclose(made[result], np.where(made[mask], x / np.float32(0.7), 0), rtol=1e-6)
        assert abs(made[mask].mean() - 0.7) < 5 * np.sqrt(0.21 / x.size)
    assert not np.array_equal(made["mask"], made["kept"])
    assert abs((made["half"] != 0).mean() - 0.5) < 5 * np.sqrt(0.25 / x.size)
    np.testing.assert_array_equal(off["z"], x)
    assert off["kept"].all()
    np.testing.assert_array_equal(made["fixed"], off["fixed"])
    assert not np.array_equal(made["mask"], off["mask"])


@pytest.mark.slow
def test_streams(tmp_path: Path) -> None:
    """Equal seeds give equal numbers; iterations of an unrolled loop do not; the manifest says what is random."""
    body = helper.make_graph(
        [
            helper.make_node("RandomUniform", [], ["r"], "in_loop", shape=[50], seed=4.0),
            helper.make_node("RandomUniform", [], ["f"], "free", shape=[50]),
            helper.make_node("Identity", ["going"], ["still"]),
        ],
        "body",
        [helper.make_tensor_value_info("i", INT64, []), helper.make_tensor_value_info("going", BOOL, [])],
        [
            helper.make_tensor_value_info("still", BOOL, []),
            *(helper.make_tensor_value_info(name, FLOAT, [50]) for name in "rf"),
        ],
    )
    nodes = [
        node("Loop", ["steps", "going_in"], ["rs", "fs"], body=body),
        node("RandomUniform", [], ["a"], shape=[50], seed=4.0),
        node("RandomUniform", [], ["b"], shape=[10, 5], seed=4.0),
        node("RandomUniform", [], ["c"], shape=[50], seed=4.5),
    ]
    constants = {"steps": np.asarray(3), "going_in": np.asarray(True)}
    outputs = dict.fromkeys(("rs", "fs", "a", "b", "c"), FLOAT)
    with bundle_of(tmp_path, nodes, {}, outputs, constants) as bundle:
        made, other = bundle.run(seed(1)), bundle.run(seed(-1))
        drawn = [bundle.run({})["fs"] for _ in range(2)]
        in_order = bundle.run([])["fs"]
    np.testing.assert_array_equal(made["a"], made["b"].reshape(-1))
    np.testing.assert_array_equal(made["a"], made["rs"][0])
    for name in ("rs", "fs"):
        assert np.unique(made[name]).size > 140, name
    assert not np.intersect1d(made["a"], made["c"]).size
    np.testing.assert_array_equal(made["rs"], other["rs"])
    assert not np.array_equal(made["fs"], other["fs"])
    assert not np.array_equal(*drawn)
    assert not np.array_equal(drawn[0], in_order)
    by_name = {item.node: item for item in bundle.manifest.model.random}
    assert by_name["free"] == RandomNode("free", "RandomUniform", "random_seed")
    assert by_name["in_loop"] == RandomNode("in_loop", "RandomUniform", None)
    assert set(by_name) == {"free", "in_loop", "n_a", "n_b", "n_c"}


def loop_of(
    number: str, nodes: Sequence[onnx.NodeProto], outputs: Mapping[str, Sequence[int | str]]
) -> onnx.GraphProto:
    """Return the body of a loop without states that goes on to its trip count."""
    return helper.make_graph(
        [*nodes, helper.make_node("Identity", [f"{number}_going"], [f"{number}_still"])],
        f"{number}_body",
        [helper.make_tensor_value_info(number, INT64, []), helper.make_tensor_value_info(f"{number}_going", BOOL, [])],
        [
            helper.make_tensor_value_info(f"{number}_still", BOOL, []),
            *(helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs.items()),
        ],
    )


@pytest.mark.slow
def test_each_iteration_of_a_loop_has_its_own_numbers(tmp_path: Path) -> None:
    """The keys of iterations are what the generator gives for their numbers, from the outermost loop inwards."""
    drawn = [
        helper.make_node("RandomUniform", [], ["r"], "inside", shape=[2]),
        helper.make_node("RandomUniform", [], ["f"], "fixed", shape=[2], seed=2.5),
    ]
    inner = loop_of("j", drawn, {"r": [2], "f": [2]})
    outer = loop_of("i", [node("Loop", ["inner", "going"], ["rs", "fs"], body=inner)], {"rs": ["n", 2], "fs": ["n", 2]})
    nodes = [
        node("Min", ["given", "limit"], ["steps"]),
        node("Size", ["x"], ["inner"]),
        node("Loop", ["steps", "going"], ["y", "z"], body=outer),
    ]
    constants = {"limit": np.asarray(4), "going": np.asarray(True)}
    inputs, outputs = {"given": ("int64", ()), "x": ("float32", ("n",))}, {"y": FLOAT, "z": FLOAT}
    with bundle_of(tmp_path, nodes, inputs, outputs, constants, dims={"n": (1, 4)}) as bundle:

        def run(outer: int, inner: int, number: int) -> dict[str, np.ndarray]:
            return bundle.run({"given": np.asarray(outer), "x": np.zeros(inner, np.float32), **seed(number)})

        made, other, fewer = run(2, 3, SEED), run(2, 3, 1), run(1, 2, SEED)
    last = 0xFFFFFFFF

    def expected(word: int, stream: int) -> np.ndarray:
        found = np.empty((2, 3, 2), np.float32)
        for i, j, at in np.ndindex(2, 3, 2):
            key = [word & last, word >> 32]
            for number in (i, j):
                key = philox([number, 0, last, last], key)[:2]
            found[i, j, at] = (philox([at, 0, stream, 0], key)[0] >> 8) * 2.0**-24
        return found

    np.testing.assert_array_equal(made["y"], expected(SEED, 0))
    np.testing.assert_array_equal(made["z"], expected(int(np.float32(2.5).view(np.uint32)), last))
    np.testing.assert_array_equal(other["z"], made["z"])
    assert not np.intersect1d(other["y"], made["y"]).size
    assert fewer["y"].shape == (1, 2, 2)
    np.testing.assert_array_equal(fewer["y"], made["y"][:1, :2])
    by_name = {item.node: item for item in bundle.manifest.model.random}
    assert by_name["inside"] == RandomNode("inside", "RandomUniform", "random_seed")
    assert by_name["fixed"] == RandomNode("fixed", "RandomUniform", None)


@pytest.mark.slow
def test_there_is_a_seed_only_where_it_is_needed(tmp_path: Path) -> None:
    unused = [
        node("Dropout", ["x", "", "no"], ["y"]),
        node("RandomNormal", [], ["dead"], shape=[3]),
        node("RandomNormalLike", ["x"], ["random_seed"], seed=1.0),
    ]
    outputs = {"y": FLOAT, "random_seed": FLOAT}
    with bundle_of(tmp_path, unused, {"x": ("float32", (3,))}, outputs, {"no": np.asarray(False)}) as bundle:
        assert [info.name for info in bundle.inputs] == ["x"]
        assert [item.node for item in bundle.manifest.model.random] == ["n_random_seed"]
    needed = [node("RandomNormalLike", ["x"], ["random_seed"])]
    with bundle_of(tmp_path, needed, {"x": ("float32", (3,))}, {"random_seed": FLOAT}) as bundle:
        assert [info.name for info in bundle.inputs] == ["x", "random_seed_"]
        assert [item.seed for item in bundle.manifest.model.random] == ["random_seed_"]
    frozen = {"random_seed_": 5}
    with bundle_of(tmp_path, needed, {"x": ("float32", (3,))}, {"random_seed": FLOAT}, freeze=frozen) as bundle:
        assert [info.name for info in bundle.inputs] == ["x"]
        assert [item.seed for item in bundle.manifest.model.random] == [None]
        x = np.zeros(3, np.float32)
        np.testing.assert_array_equal(*(bundle.run({"x": x})["random_seed"] for _ in range(2)))

"""Which parts of a model a backend gets, and that the whole computes what it should: from TVM's own tests of BYOC."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tvm
from placing import build_and_check, parse, placed
from tvm import relax

import packager
import packager.errors
from packager.pipeline.explain import explain
from packager.pipeline.options import BuildOptions
from packager.progress import Event


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(-3, 4, shape).astype("float32")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float", "int32"])
def test_single_operator(dtype: str, tmp_path: Path) -> None:
    model = parse(f"g ({dtype}[4,3] x, {dtype}[4,3] y) => ({dtype}[4,3] z) {{ z = Add(x, y) }}")
    built = build_and_check(model, tmp_path, ["llvm", "toy"])
    assert built.provided_by("toy") == ["toy.add"]
    assert built.provided_by("llvm") == []
    assert built.table["rest"] == {}


@pytest.mark.slow
def test_two_partitions_and_a_remainder(tmp_path: Path) -> None:
    model = parse("""g (float[8] x, float[8] y) => (float[8] z) {
        a = Add(x, y)
        b = Exp(a)
        z = Mul(b, y)
    }""")
    built = build_and_check(model, tmp_path, ["llvm", "toy"])
    assert built.provided_by("toy") == ["toy.add", "toy.multiply"]
    assert built.table["rest"] == {"exp": 1}


@pytest.mark.slow
def test_only_the_named_backend_is_used(tmp_path: Path) -> None:
    model = parse("g (float[8] x, float[8] y) => (float[8] z) { z = Add(x, y) }")
    built = build_and_check(model, tmp_path, ["llvm"])
    assert built.table["partitions"] == []
    assert built.provided_by("llvm")


def test_three_chained_with_inputs_in_swapped_order(tmp_path: Path) -> None:
    model = parse("""g (float[5] x, float[5] y) => (float[5] z) {
        a = Sub(x, y)
        b = Sub(y, a)
        z = Sub(b, x)
    }""")
    built = build_and_check(model, tmp_path, ["llvm", "toy"])
    (row,) = built.partitions("toy")
    assert len(row["sites"]) == 3  # one function, three calls


def test_a_partition_called_twice_is_compiled_once(tmp_path: Path) -> None:
    model = parse(
        """g (float[2,4] x) => (float[2,4] z) {
        a = MatMul(x, w)
        b = MatMul(a, v)
        c = Sigmoid(b)
        z = MatMul(c, w)
    }""",
        {"w": weight(4, 4), "v": weight(4, 4, seed=1)},
    )
    built = build_and_check(model, tmp_path, ["llvm", "toy -operators=matmul"])
    (row,) = built.partitions("toy")
    assert [site["constants"] for site in row["sites"]] == [["w"], ["v"], ["w"]]
    assert built.provided_by("toy") == ["toy.matmul"]


def test_functions_of_other_shapes_are_other_partitions(tmp_path: Path) -> None:
    model = parse("""g (float[4] x, float[6] y) => (float[4] a, float[6] b) {
        a = Add(x, x)
        b = Add(y, y)
    }""")
    assert len(build_and_check(model, tmp_path, ["llvm", "toy"]).partitions("toy")) == 2


def test_constants_are_checked_by_execution(tmp_path: Path) -> None:
    weights = {"c": weight(3, 4), "d": weight(3, 4, seed=1)}
    model = parse("g (float[3,4] x) => (float[3,4] z) { a = Mul(x, c)\n z = Add(a, d) }", weights)
    built = build_and_check(model, tmp_path, ["llvm", "toymerge"])
    (row,) = built.partitions("toymerge")
    assert row["sites"][0]["constants"] == ["c", "d"]


@pytest.mark.parametrize(("readers", "partitions"), [(8, 1), (12, 13)])
def test_a_value_that_many_read_is_written_once(readers: int, partitions: int, tmp_path: Path) -> None:
    """Merged with all of them, its function would write as many results: PWC-Net's images have 81 readers."""
    lines = "".join(f"s{n} = Slice(r, b{n}, e{n}, a)\n y{n} = Mul(s{n}, x{n})\n" for n in range(readers))
    inputs = ", ".join(f"float[2,{n + 1}] x{n}" for n in range(readers))
    results = ", ".join(f"float[2,{n + 1}] y{n}" for n in range(readers))
    numbers = {f"b{n}": np.array([0]) for n in range(readers)} | {f"e{n}": np.array([n + 1]) for n in range(readers)}
    model = parse(
        f"g (float[2,16] x, {inputs}) => ({results}) {{ r = Relu(x)\n {lines} }}", numbers | {"a": np.array([1])}
    )
    rows = build_and_check(model, tmp_path, ["llvm", "ccompiler"]).partitions("ccompiler")
    assert sum(len(row["sites"]) for row in rows) == partitions


@pytest.mark.slow
def test_the_largest_match_wins(tmp_path: Path) -> None:
    model = parse(
        "g (float[2,4] x, float[2,3] y) => (float[2,3] z) { a = MatMul(x, w)\n z = Add(a, y) }", {"w": weight(4, 3)}
    )
    built = build_and_check(model, tmp_path, ["llvm", "toy"])
    assert built.provided_by("toy") == ["toy.dense_add"]


@pytest.mark.slow
def test_an_intermediate_value_that_is_used_outside_is_a_further_result(tmp_path: Path) -> None:
    model = parse(
        """g (float[2,4] x, float[2,3] y) => (float[2,3] z, float[2,3] t) {
        a = MatMul(x, w)
        z = Add(a, y)
        t = Tanh(a)
    }""",
        {"w": weight(4, 3)},
    )
    built = build_and_check(model, tmp_path, ["llvm", "toy"])
    assert built.provided_by("toy") == ["toy.dense_add"]
    assert built.table["rest"] == {"tanh": 1}


def test_several_results_and_an_output_that_is_also_read(tmp_path: Path) -> None:
    model = parse("""g (float[6] x, float[6] y) => (float[6] a, float[6] b, float[6] c) {
        a = Add(x, y)
        b = Mul(a, y)
        c = Sub(a, b)
    }""")
    built = build_and_check(model, tmp_path, ["llvm", "toymerge"])
    assert [len(row["operators"]) for row in built.partitions("toymerge")] == [3]


def test_diamond_that_closes_over_another_operator(tmp_path: Path) -> None:
    """The path through Exp leaves the backend's operators and enters them again: they cannot be one partition."""
    model = parse("""g (float[6] x, float[6] y) => (float[6] z) {
        a = Add(x, y)
        b = Exp(a)
        c = Mul(a, y)
        z = Add(b, c)
    }""")
    built = build_and_check(model, tmp_path, ["llvm", "toymerge"])
    assert sorted(len(row["operators"]) for row in built.partitions("toymerge")) == [1, 2]


@pytest.mark.slow
def test_diamond_within_a_backend_is_one_partition(tmp_path: Path) -> None:
    model = parse("""g (float[6] x, float[6] y) => (float[6] z) {
        a = Add(x, y)
        b = Relu(a)
        c = Mul(a, y)
        z = Add(b, c)
    }""")
    built = build_and_check(model, tmp_path, ["llvm", "toymerge"])
    assert [len(row["operators"]) for row in built.partitions("toymerge")] == [4]


def test_two_backends_and_tvm(tmp_path: Path) -> None:
    model = parse(
        """g (float[2,4] x) => (float[2,4] z) {
        a = MatMul(x, w)
        b = Mul(a, a)
        c = Exp(b)
        z = Add(c, a)
    }""",
        {"w": weight(4, 4)},
    )
    built = build_and_check(model, tmp_path, ["llvm", "toy -operators=matmul", "toymerge"])
    assert built.provided_by("toy") == ["toy.matmul"]
    assert sorted(built.provided_by("toymerge")) == ["toymerge.add", "toymerge.multiply"]
    assert built.table["rest"] == {"exp": 1}


@pytest.mark.slow
def test_the_first_backend_of_the_list_takes_what_both_can(tmp_path: Path) -> None:
    model = parse("g (float[6] x, float[6] y) => (float[6] z) { z = Add(x, y) }")
    assert build_and_check(model, tmp_path, ["llvm", "toymerge", "toy"]).provided_by("toymerge") == ["toymerge.add"]


def test_two_backends_that_interleave_cannot_wait_for_each_other(tmp_path: Path) -> None:
    """toy's matmul with its sum, and toymerge's operators around it, would form a cycle if they were merged blindly."""
    model = parse(
        """g (float[4,4] x, float[4,4] y) => (float[4,4] z) {
        m = MatMul(x, w)
        a = Mul(m, y)
        s = Sub(a, x)
        z = Add(m, s)
    }""",
        {"w": weight(4, 4)},
    )
    build_and_check(model, tmp_path, ["llvm", "toy -operators=matmul,add", "toymerge"])


def test_what_a_backend_gives_back_is_offered_to_the_next(tmp_path: Path) -> None:
    model = parse("""g (float[6] x, float[6] y) => (float[6] z) {
        a = Mul(x, y)
        z = Add(a, y)
    }""")
    said: list[Event] = []
    targets = ["llvm", "toy -give_back=multiply", "toymerge"]
    built = build_and_check(model, tmp_path, targets, progress=said.append)
    assert built.undone() == {"toy_0": "asked to"}
    (warning,) = (event.text for event in said if event.warning)
    assert warning.startswith("toy gave back multiply (")
    assert warning.endswith("): asked to")
    foreseen = explain(BuildOptions(tmp_path / "model.onnx", targets=targets))
    assert json.loads(json.dumps(foreseen.table)) == built.table
    assert built.provided_by("toy") == ["toy.add"]
    assert built.provided_by("toymerge") == ["toymerge.multiply"]


def test_what_a_backend_leaves_out_is_compiled_by_tvm_and_what_is_around_it_by_the_backend(tmp_path: Path) -> None:
    model = parse("""g (float[6] x, float[6] y) => (float[6] z) {
        a = Mul(x, y)
        b = Add(a, y)
        c = Sub(b, x)
        d = Add(c, y)
        z = Mul(d, y)
    }""")
    said: list[Event] = []
    built = build_and_check(model, tmp_path, ["llvm", "toymerge -leave_out=subtract"], progress=said.append)
    assert built.provided_by("toymerge") == ["toymerge.multiply+toymerge.add", "toymerge.add+toymerge.multiply"]
    assert built.table["rest"] == {"subtract": 1}
    assert [event.text for event in said if event.warning] == ["toymerge left out subtract of 5 operators: it cannot"]


def test_what_every_backend_gives_back_is_compiled_by_tvm(tmp_path: Path) -> None:
    """All operators of an undone partition are in main again, composites included."""
    model = parse(
        "g (float[2,4] x, float[2,3] y) => (float[2,3] z) { a = MatMul(x, w)\n z = Add(a, y) }", {"w": weight(4, 3)}
    )
    built = build_and_check(model, tmp_path, ["llvm", "toy -give_back=matmul"])
    assert built.provided_by("toy") == []
    assert built.table["rest"] == {"add": 1, "matmul": 1}


def test_partitions_that_are_not_worth_a_call_are_undone(tmp_path: Path) -> None:
    model = parse(
        "g (float[2,4] x) => (float[2,3] z) { a = MatMul(x, w)\n b = Add(a, a)\n z = Exp(b) }", {"w": weight(4, 3)}
    )
    built = build_and_check(model, tmp_path, ["llvm", "toy -operators=matmul,add -min_partition_flops=40"])
    assert built.provided_by("toy") == ["toy.dense_add"]
    built = placed(model, tmp_path, ["llvm", "toy -operators=matmul,add -min_partition_flops=60"])
    assert list(built.undone().values()) == ["54 FLOPs a call, less than min_partition_flops=60"]


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "sizes"), [(0, [5]), (2, [2, 2, 1]), (4, [4, 1])])
def test_max_partition_depth(depth: int, sizes: list[int], tmp_path: Path) -> None:
    chain = "\n".join(f"v{i + 1} = Add(v{i}, y)" for i in range(5))
    model = parse(f"g (float[6] v0, float[6] y) => (float[6] v5) {{ {chain} }}")
    built = build_and_check(model, tmp_path, ["llvm", f"toymerge -max_partition_depth={depth}"])
    assert (
        sorted((len(row["operators"]) for row in built.partitions("toymerge") for _ in row["sites"]), reverse=True)
        == sizes
    )


def test_every_intermediate_can_be_looked_at(tmp_path: Path) -> None:
    model = parse("g (float[6] x) => (float[6] z) { a = Add(x, x)\n z = Exp(a) }")
    build_and_check(model, tmp_path, ["llvm", "toy"])
    text = (tmp_path / "work" / "2-partitioned.py").read_text()
    assert 'R.call_dps_packed("toy_0"' in text
    assert "R.add(" in text
    assert (tmp_path / "work" / "toy" / "toy.c").exists()


def test_constants_of_the_backend_itself(tmp_path: Path) -> None:
    """const_name_to_ndarray: a table that no model names, once for all functions that read it."""
    model = parse("""g (uint8[6] x, uint8[4] y) => (float[6] a, float[4] b) {
        a = Cast <to = 1> (x)
        b = Cast <to = 1> (y)
    }""")
    built = build_and_check(model, tmp_path, ["llvm", "toy"])
    (constant,) = packager.inspect(built.path).manifest.constants
    assert (constant.name, constant.sources, constant.shape) == ("toy.bytes", (), (256,))


def test_call_sites_of_different_dims_share_a_function(tmp_path: Path) -> None:
    """The rows of both products are symbolic, n and 3 * n: expressions become dims of the one function."""
    model = parse(
        """g (float[n,4] x, float[n,12] y) => (float[n,4] a, float[m,4] b) {
        a = MatMul(x, w)
        t = Reshape(y, shape)
        b = MatMul(t, w)
    }""",
        {"w": weight(4, 4), "shape": np.array([-1, 4])},
    )
    table = placed(model, tmp_path, ["llvm", "ccompiler -operators=dense"], dims={"n": (1, 8)}).table
    assert [len(row["sites"]) for row in table["partitions"]] == [2]
    assert table["partitions"][0]["flops"] == 2 * 24 * 4 * 4


@pytest.mark.parametrize("entry", ["main", "other"])
def test_an_entry_function_other_than_main(entry: str, tmp_path: Path) -> None:
    builder = relax.BlockBuilder()
    for name, operator in (("main", relax.op.add), ("other", relax.op.multiply)):
        x = relax.Var("x", relax.TensorType((4,), "float32"))
        with builder.function(name, [x]):
            with builder.dataflow():
                result = builder.emit_output(builder.emit(operator(x, x)))
            builder.emit_func_output(result)
    path = tmp_path / "two.json"
    path.write_text(tvm.ir.save_json(builder.get()))
    bundle = packager.build(path, tmp_path / "two.so", targets=["llvm", "toy"], entry=entry)
    x = np.array([1, 2, 3, 4], np.float32)
    with packager.load(bundle) as loaded:
        np.testing.assert_array_equal(loaded.run([x])["output"], x + x if entry == "main" else x * x)
    assert [p.composite for _, p in packager.inspect(bundle).manifest.primitives()] == [
        "toy.add" if entry == "main" else "toy.multiply"
    ]


def test_an_entry_function_that_is_not_there(tmp_path: Path) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("encode", [x]):
        builder.emit_func_output(x)
    path = tmp_path / "one.json"
    path.write_text(tvm.ir.save_json(builder.get()))
    with pytest.raises(packager.errors.ModelError, match="no Relax function 'decode'") as failure:
        packager.build(path, tmp_path / "one.so", entry="decode")
    assert failure.value.hint == "its Relax functions: encode; name one with --entry"

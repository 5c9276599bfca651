"""``packager explain``: what a build would meet."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from command_line import Cli
from graphs import graph, normal, save

pytestmark = pytest.mark.slow

SUPPORTED = """g (float[n,3,8,8] x) => (float[n,4,8,8] y) {
  [conv] c = Conv<pads=[1,1,1,1]>(x, w)  [ceil] d = Ceil(c)  [act] y = Relu(d) }"""


def test_a_model_that_is_supported(warm_cli: Cli, tmp_path: Path) -> None:
    path = save(graph(SUPPORTED, {"w": normal(4, 3, 3, 3)}), tmp_path / "m.onnx")
    done = warm_cli("explain", path, "-q")
    assert (done.returncode, done.stderr) == (0, "")
    assert "input      x  float32[n, 3, 8, 8]" in done.stdout
    assert "dim        n has no bounds: 1:8 assumed, a build wants --dim n=MIN:MAX" in done.stdout
    assert "1 nn.conv2d" in done.stdout
    assert done.stdout.rstrip().endswith("supported: a build would compile all of it")


def test_who_would_take_what_and_why_not(warm_cli: Cli, tmp_path: Path) -> None:
    path = save(graph(SUPPORTED, {"w": normal(4, 3, 3, 3)}), tmp_path / "m.onnx")
    done = warm_cli("explain", path, "--dim", "n=2", "-t", "ccompiler -operators=dense", "--json")
    found = json.loads(done.stdout)
    assert found["inputs"][0]["shape"] == [2, 3, 8, 8]
    assert (found["assumed"], found["refusal"]) == ({}, None)
    reasons = {left["operator"]: left["reasons"]["ccompiler"] for left in found["leftovers"]}
    assert reasons["nn.conv2d"] == "has no pattern that ends with this operator"
    plain = json.loads(warm_cli("explain", path, "--dim", "n=2", "--json").stdout)
    assert plain["table"]["partitions"][0]["sites"][0]["nodes"][0] == "conv"


def test_an_explanation_and_a_build_agree(warm_cli: Cli, tmp_path: Path) -> None:
    """On means of too many neighbors, and a product with numbers in the graph, of which partitions were given back."""
    text = """g (float[1,3,8,8] x, float[2,1] z) => (float[1,40,8,8] y, float[2,1] p) {
      a = Conv(x, w)  b = LRN<size=33>(a)  y = Relu(b)  q = MatMul(z, one)  p = Exp(q) }"""
    model = graph(text, {"w": normal(40, 3, 1, 1), "one": normal(1, 1)})
    path = save(model, tmp_path / "m.onnx")
    table = json.loads(warm_cli("explain", path, "--json").stdout)["table"]
    done = warm_cli("build", path, "-o", tmp_path / "m.so", "--keep-workdir", tmp_path / "work")
    assert "warning" not in done.stderr
    assert table == json.loads((tmp_path / "work" / "2-partitions.json").read_text())
    assert any("nn.relu" in row["operators"] for row in table["partitions"])


def test_all_that_is_not_supported_is_named(warm_cli: Cli, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "acme": 1]>
    g (float[2] x) => (float[2] y) {
      [first] a = acme.Twist(x)  [second] b = acme.Twist(a)  [third] y = acme.Turn(b) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    done = warm_cli("explain", tmp_path / "m.onnx")
    assert done.returncode == 3
    assert "refused: 2 operators are not supported" in done.stdout
    assert "acme::Twist: first, second" in done.stdout
    assert "acme::Turn: third" in done.stdout
    assert "hint: " in done.stdout


def test_a_dry_run_prints_the_table_of_an_explanation(warm_cli: Cli, tmp_path: Path) -> None:
    path = save(graph(SUPPORTED, {"w": normal(4, 3, 3, 3)}), tmp_path / "m.onnx")
    explained = warm_cli("explain", path).stdout
    done = warm_cli("build", path, "-o", tmp_path / "m.so", "--dry-run", "-q")
    assert done.returncode == 0
    assert done.stdout.startswith("partition")
    assert done.stdout in explained
    assert done.stderr.startswith("dim        n has no bounds: 1:8 assumed")
    assert not (tmp_path / "m.so").exists()
    assert warm_cli("build", path, "--dry-run", "--json").stdout == warm_cli("explain", path, "--json").stdout


def test_a_dry_run_refuses_what_a_build_refuses(warm_cli: Cli, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "acme": 1]>
    g (float[2] x) => (float[2] y) { [only] y = acme.Twist(x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    dry, built = (
        warm_cli("build", tmp_path / "m.onnx", "-o", tmp_path / "m.so", *more) for more in (("--dry-run", "-q"), ())
    )
    assert (dry.returncode, dry.stdout) == (built.returncode, "") == (3, "")
    assert dry.stderr.startswith("error: 1 operator is not supported")
    assert built.stderr.endswith(dry.stderr)
    assert warm_cli("build", tmp_path / "m.onnx", "--dry-run", "--json", "-q").stderr == dry.stderr


def test_several_models_and_their_states(warm_cli: Cli, tmp_path: Path) -> None:
    text = "g (float[2] s, float[2] x) => (float[2] y) { y = Add(s, x) }"
    paths = [save(graph(text, {}), tmp_path / f"{name}.onnx") for name in ("a", "b")]
    found = json.loads(warm_cli("explain", *paths, "--name", "both", "--state", "s=y", "--json").stdout)
    assert (found["model"], found["refusal"]) == ("both", None)
    assert [spec["name"] for spec in found["inputs"]] == ["s", "x", "s", "x"]


def test_wrong_arguments_are_usage_errors(warm_cli: Cli, tmp_path: Path) -> None:
    path = save(graph(SUPPORTED, {"w": normal(4, 3, 3, 3)}), tmp_path / "m.onnx")
    done = warm_cli("explain", path, "--dim", "m=2")
    assert done.returncode == 2
    assert "--dim m: the model has no such dim" in done.stderr

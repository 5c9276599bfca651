"""``tune`` and ``finalize`` ``--on ray``: a node of a cluster measures, and what it found is written here."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import Cli, assert_refused, command, environment, relu_input

import packager
from packager.bundle.gpu.engines import read_engines
from packager.bundle.tuning_records import read_records


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A head, and a node that says that it has a GPU; yields the address."""
    pytest.importorskip("ray", reason="packager[cluster] is not installed")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1, num_gpus=1, resources={"accelerator_type:H100": 1})
    yield nodes.address
    nodes.shutdown()


@pytest.fixture(scope="module")
def trial(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with alternatives to measure."""
    output = tmp_path_factory.mktemp("trial") / "trial.so"
    targets = ["ccompiler -operators=dense", "llvm"]
    return packager.build(models / "batched.onnx", output, targets=targets, dims={"n": 4}, golden=0, place="trial")


@pytest.mark.slow
def test_a_node_measures(cli: Cli, trial: Path, cluster: str, tmp_path: Path) -> None:
    records, tuned, measured = (tmp_path / name for name in ("records.json", "tuned.so", "here.json"))
    options = ("--rounds", 3, "--seconds", 2)
    done = cli("tune", trial, *options, "-o", records, "--bind", tuned, "--on", "ray", "--json",
               env={"RAY_ADDRESS": cluster})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"] == str(trial)
    assert "waiting for a node of ray" in done.stderr
    assert "another packager" not in done.stderr
    assert cli("tune", trial, *options, "-o", measured).returncode == 0
    here, there = read_records([measured]), read_records([records])
    assert here.placements[0].choices.keys() == there.placements[0].choices.keys()
    assert packager.verify(tuned, run=True).ok
    with packager.load(trial) as before, packager.load(tuned) as after:
        for name, output in before.run(relu_input(4)).items():
            np.testing.assert_allclose(after.run(relu_input(4))[name], output, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_errors_of_nodes_are_those_of_packager(cli: Cli, batched: Path, cluster: str) -> None:
    here, there = (cli("tune", batched, *on, env={"RAY_ADDRESS": cluster}) for on in ((), ("--on", "ray")))
    assert_refused(there, 2, "error: batched.so has one candidate per function", hint="--place trial")
    assert "one candidate per function" in here.stderr


@pytest.mark.slow
def test_a_gpu_that_no_node_has_is_waited_for_until_an_interruption(trial: Path, cluster: str, tmp_path: Path) -> None:
    argv = command("tune", trial, "--on", "ray", "--gpu", "GH9")
    changed = environment({"RAY_ADDRESS": cluster}, tmp_path / "tmp")
    with subprocess.Popen(argv, env=changed, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert "no node of the cluster has CPU 1 of name GH9 (GPUs there: H100): waiting for one" in said
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read().endswith("interrupted\n")


@pytest.mark.slow
def test_a_node_builds_engines(cli: Cli, cluster: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    text = '<ir_version: 10, opset_import: ["": 21]> net (float[8,32] x) => (float[8,64] y) { y = MatMul(x, w) }'
    model = onnx.parser.parse_model(text)
    weights = np.linspace(-1, 1, 32 * 64, dtype=np.float32).reshape(32, 64)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "model.onnx")
    targets = ("cuda -arch=sm_86", "tensorrt -library=tensorrt_rtx -min_partition_flops=0 -engines=pending")
    pending = packager.build(tmp_path / "model.onnx", tmp_path / "pending.so", targets=targets)
    output = tmp_path / "out.so"
    on = ("--on", "ray", "--gpu", "H100", "--no-cache", "--json")
    done = cli("finalize", pending, "-o", output, "--use", "engines", *on, env={"RAY_ADDRESS": cluster})
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["bundle"], result["output"]) == (str(pending), str(output))
    assert "building engine 1 of 1" in done.stderr
    assert [record.state for record in read_engines(pending)] == ["pending"]
    assert [record.state for record in read_engines(output)] == ["appended"]
    assert packager.inspect(output).manifest.choices[0].chosen == 0
    assert_refused(cli("finalize", output, "-o", output, *on), 2, "is the bundle itself")


def test_options_that_contradict_a_cluster(cli: Cli, batched: Path) -> None:
    assert_refused(cli("tune", batched, "--gpu", "H100"), 2, "--gpu is for --on")
    for words in (("tune", batched), ("finalize", batched, "-o", "x.so")):
        assert_refused(cli(*words, "--on", "ray", "--device", 1), 2, "exclude each other")
    refused = cli("tune", batched, "--on", "ray", "--tuning", "x.json", "--bind", "y.so")
    assert_refused(refused, 2, "nothing is measured")

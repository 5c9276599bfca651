"""What the integration tests share: the command line as a process, models and bundles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from command_line import Cli, ForkedCommands, run, tree
from graphs import graph, normal, save

import packager


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run ``packager ARGUMENTS`` in a process of its own, in an empty folder; see command_line.run."""
    return lambda *arguments, **options: run(arguments, tmp_path, **options)


@pytest.fixture(scope="session")
def forked_commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedCommands]:
    """A process that has imported TVM, for ``warm_cli``."""
    commands = ForkedCommands(tmp_path_factory.mktemp("forked"))
    yield commands
    commands.close()


@pytest.fixture
def warm_cli(forked_commands: ForkedCommands, tmp_path: Path) -> Cli:
    """Run ``packager ARGUMENTS`` like ``cli``, in a fork of a process that has imported TVM."""
    return lambda *arguments, **options: forked_commands.run(arguments, tmp_path, **options)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small models: mlp.onnx (static), batched.onnx (dim n), external.onnx with its data beside it."""
    folder = tmp_path_factory.mktemp("models")
    weights = {"w": normal(6, 4), "b": normal(4)}
    save(
        graph("mlp (float[2,6] x) => (float[2,4] y) { t = Gemm(x, w, b)\n y = Relu(t) }", weights), folder / "mlp.onnx"
    )
    text = "batched (float[n,6] x) => (float[n,4] y) { t = Gemm(x, w, b)\n y = Relu(t) }"
    save(graph(text, weights), folder / "batched.onnx")
    model = graph(text, weights)
    onnx.save(model, folder / "external.onnx", save_as_external_data=True, location="external.data", size_threshold=0)
    return folder


@pytest.fixture(scope="session")
def mlp(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of mlp.onnx, with golden pairs. Not to be written to."""
    return packager.build(models / "mlp.onnx", tmp_path_factory.mktemp("mlp") / "mlp.so", golden=7)


@pytest.fixture(scope="session")
def batched(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of batched.onnx for n in 1..8, without golden pairs. Not to be written to."""
    return packager.build(
        models / "batched.onnx", tmp_path_factory.mktemp("batched") / "batched.so", dims={"n": (1, 8)}, targets=["llvm"]
    )


@pytest.fixture
def leaves_nothing(tmp_path: Path) -> Iterator[None]:
    """Fail the test unless its working and temporary folders hold after it what they held before."""
    watched = [tmp_path / "cwd", tmp_path / "tmp"]
    for folder in watched:
        folder.mkdir(exist_ok=True)
    before = [tree(folder) for folder in watched]
    yield
    assert [tree(folder) for folder in watched] == before

"""``packager matrix``: many bundles of one file; a build that fails ends no other."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import Cli, command, environment

import packager

BUILDS = """
options = "--golden 0"

[models]
batched = "batched.onnx"
broken = "broken.onnx"

[targets]
llvm = "-t llvm"
ccompiler = "-t ccompiler"

[dims]
one = "--dim n=1"
four = "--dim n=1:4 --name four"
"""


@pytest.fixture
def builds(models: Path, tmp_path: Path) -> Path:
    """A file of builds in a folder of its own, of a model and of one that is damaged."""
    folder = tmp_path / "builds"
    folder.mkdir()
    shutil.copyfile(models / "batched.onnx", folder / "batched.onnx")
    (folder / "broken.onnx").write_bytes((models / "batched.onnx").read_bytes()[:50])
    (folder / "builds.toml").write_text(BUILDS)
    return folder / "builds.toml"


def test_a_dry_run_lists_the_builds(cli: Cli, builds: Path) -> None:
    with builds.open("r+") as file:
        content = file.read()
        file.seek(0)
        file.write('exclude = ["broken-*-four"]\n' + content)
    done = cli("matrix", builds, "--dry-run")
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == [
        *(f"batched-{target}-{dims}" for target in ("llvm", "ccompiler") for dims in ("one", "four")),
        *("broken-llvm-one", "broken-ccompiler-one"),
    ]
    assert "batched-llvm-four batched.onnx -t llvm --dim n=1:4 --name four --golden 0" in done.stdout
    assert cli("matrix", builds, "--dry-run", "--only", "broken-llvm-*").stdout.split()[0] == "broken-llvm-one"


@pytest.mark.slow
def test_one_that_fails_ends_no_other(cli: Cli, builds: Path, tmp_path: Path) -> None:
    only = ("--only", "*-llvm-one", "--at-once", 2)
    done = cli("matrix", builds, "-o", tmp_path / "out", *only, "--json")
    assert done.returncode == 3, done.stderr
    right, wrong = json.loads(done.stdout)["builds"]
    assert (right["name"], wrong["name"]) == ("batched-llvm-one", "broken-llvm-one")
    assert (right["code"], wrong["code"]) == (0, 3)
    assert "broken.onnx" in wrong["error"]
    assert "warning: broken-llvm-one failed: " in done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["batched-llvm-one.so"]
    alone = packager.build(builds.with_name("batched.onnx"), tmp_path / "alone.so", targets=["llvm"], dims={"n": 1},
                           golden=0)  # fmt: skip
    assert alone.read_bytes() == (tmp_path / "out" / "batched-llvm-one.so").read_bytes()
    table = cli("matrix", builds, "-o", tmp_path / "out", *only).stdout
    assert table.startswith("1 of 2 built\n")


@pytest.mark.slow
def test_twelve_builds_end_with_one_failure_and_eleven_right(cli: Cli, builds: Path, tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(12)]
    lines = [f'{name} = "{"broken" if name == "m5" else "batched"}.onnx --name {name}"' for name in names]
    builds.write_text("\n".join(['options = "-t llvm --dim n=1 --golden 0"', "[models]", *lines]))
    done = cli("matrix", builds, "-o", tmp_path / "out", "--json")
    outcomes = json.loads(done.stdout)["builds"]
    assert [outcome["name"] for outcome in outcomes if outcome["code"]] == ["m5"]
    right = [outcome for outcome in outcomes if not outcome["code"]]
    assert len(right) == 11
    for outcome in right:
        assert packager.verify(outcome["output"], run=True).ok
        assert packager.inspect(outcome["output"]).manifest.model.name == outcome["name"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("models = 3", "$.models"),
        ("[", "cannot read the builds"),
        ('model = {a = "a.onnx"}', "models"),
        ('models = {a = "a.onnx \'"}', "No closing quotation"),
        ('models = {a = "a.onnx -o x.so"}', "-o and -j are those of the matrix"),
        ('models = {"a/b" = "a.onnx"}', "cannot be part of a file's name"),
        ('models = {a = "a.onnx"}\nexclude = ["*"]', "there is nothing to build"),
    ],
)
def test_files_that_cannot_be_meant(cli: Cli, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "builds.toml").write_text(content)
    done = cli("matrix", tmp_path / "builds.toml")
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_an_interruption_ends_the_builds_too(builds: Path, tmp_path: Path) -> None:
    argv = command("matrix", builds, "-o", tmp_path / "out", "--at-once", 2)
    changed = environment({"XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path / "tmp")
    with subprocess.Popen(argv, env=changed, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        assert "building 1 of 8" in process.stderr.readline()
        time.sleep(1)
        process.send_signal(signal.SIGTERM)  # to it alone: from a terminal all get one
        assert process.wait(60) == 130
        assert process.stderr.read().endswith("interrupted\n")
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in left
    assert not [path for path in (tmp_path / "tmp").iterdir() if path.is_dir()]


@pytest.fixture
def cluster() -> Iterator[tuple[str, Callable[[], None]]]:
    """Two nodes of Ray on this machine: yields the address, and what kills the second node."""
    pytest.importorskip("ray", reason="packager[cluster] is not installed")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = nodes.add_node(num_cpus=1)
    yield nodes.address, lambda: nodes.remove_node(second, allow_graceful=False)
    nodes.shutdown()


@pytest.mark.slow
def test_a_cluster_builds_the_same_bytes_though_a_node_is_lost(
    cli: Cli, builds: Path, tmp_path: Path, cluster: tuple[str, Callable[[], None]]
) -> None:
    address, kill = cluster
    lines = [f'm{number} = "batched.onnx --name m{number}"' for number in range(4)]
    builds.write_text(
        "\n".join(['options = "-t llvm --dim n=1 --golden 0"', "[models]", *lines, 'bad = "broken.onnx"'])
    )
    here = cli("matrix", builds, "-o", tmp_path / "here", "--json")
    argv = command("matrix", builds, "-o", tmp_path / "there", "--on", "ray", "-j", 1, "--json")
    changed = environment({"RAY_ADDRESS": address, "XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path / "tmp")
    with subprocess.Popen(argv, env=changed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(12)
        kill()
        said, errors = process.communicate(timeout=300)
    assert process.returncode == 3, errors
    expected, found = (
        {outcome["name"]: (outcome["code"], outcome["sha256"]) for outcome in json.loads(text)["builds"]}
        for text in (here.stdout, said)
    )
    assert found == expected
    assert sorted(found) == ["bad", "m0", "m1", "m2", "m3"]
    assert "other versions" not in errors


def test_a_cluster_that_cannot_be(cli: Cli, builds: Path) -> None:
    done = cli("matrix", builds, "--on", "slurm")
    assert (done.returncode, "is no cluster" in done.stderr) == (2, True)


def test_nothing_of_ray_is_imported_without_it(builds: Path) -> None:
    code = "import sys; from packager.cli.main import main\ntry: main()\nfinally: assert 'ray' not in sys.modules"
    argv = [sys.executable, "-c", code, "matrix", builds, "--dry-run"]
    assert subprocess.run(argv, capture_output=True, check=False).returncode == 0

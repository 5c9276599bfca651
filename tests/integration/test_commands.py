"""The commands as a user runs them: what they print where, and the deploy side without the build side."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import ROOT, Cli, command, environment, relu_input

import packager

BUILD_MODULES = ("tvm", "tvm_ffi", "torch", "onnx", "jinja2", "capstone", "iced_x86", "typer", "rich")


def test_build_prints_the_path_alone_and_progress_to_stderr(cli: Cli, models: Path, tmp_path: Path) -> None:
    done = cli(
        "build",
        models / "batched.onnx",
        "-o",
        tmp_path / "out.so",
        "--dim",
        "n=1:4",
        "--keep-workdir",
        "work",
        "-t",
        "llvm",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'out.so'}\n"
    assert all(re.fullmatch(r"\[ *\d+\.\d s\] .+", line) for line in done.stderr.splitlines())
    stages = [line.split("] ")[1] for line in done.stderr.splitlines()]
    assert stages == ["checking the Targets", "importing the model", "preparing the model", "lowering",
                      "scheduling primitive function 1 of 1", "planning", "compiling primitive function 1 of 2",
                      "linking"]  # fmt: skip
    assert (tmp_path / "out.so").stat().st_mode & 0o777 == 0o666 & ~_umask()


def test_a_quiet_build_prints_warnings_alone(cli: Cli, models: Path, tmp_path: Path) -> None:
    options = ("-o", tmp_path / "out.so", "--dim", "n=1", "-t", "llvm", "--quiet", "--keep-workdir")
    done = cli("build", models / "batched.onnx", *options, "work")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path / 'out.so'}\n", "")
    done = cli("build", models / "batched.onnx", *options, "trial", "--place", "trial")
    assert (done.returncode, done.stderr[:30]) == (0, "warning: a trial of one Target")


def test_build_as_json_says_how_long_it_took(cli: Cli, models: Path, tmp_path: Path) -> None:
    done = cli(
        "build", models / "mlp.onnx", "-o", tmp_path / "out.so", "-t", "llvm", "--keep-workdir", "work", "--json"
    )
    found = json.loads(done.stdout)
    assert found["bundle"] == str(tmp_path / "out.so")
    assert [entry["stage"] for entry in found["timings"]["stages"]] == [
        *("import", "prepare", "partition", "lower", "plan", "generate", "link", "seal")
    ]
    assert {call["tool"] for call in found["timings"]["calls"]} >= {"gcc", "ld"}


def test_progress_on_a_terminal_is_drawn_and_leaves_one_line(models: Path, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    arguments = (
        "build",
        models / "mlp.onnx",
        "-o",
        tmp_path / "out.so",
        "-t",
        "llvm",
        "--keep-workdir",
        tmp_path / "work",
    )
    env = environment({"TERM": "xterm"}, tmp_path / "tmp")
    with subprocess.Popen(command(*arguments), env=env, stdout=subprocess.PIPE, stderr=follower) as process:
        os.close(follower)
        drawn = b""
        while part := _read(leader):
            drawn += part
        os.close(leader)
    assert process.returncode == 0
    text = drawn.decode()
    assert "compiling primitive function 1 of" in text
    assert "\x1b[2K" in text  # what is drawn is erased again
    assert re.fullmatch(r"done in \d+\.\d s\r\n", text.rpartition("\x1b[2K")[2])


def _read(terminal: int) -> bytes:
    """Read from a terminal; nothing once its other end is closed, which Linux reports as EIO."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


def test_version_help_and_completion(cli: Cli) -> None:
    done = cli("--version")
    assert (done.returncode, done.stdout) == (0, f"packager {packager.__version__}\n")
    for command_line in ((), ("build",), ("tune",)):
        short, long = cli(*command_line, "-h"), cli(*command_line, "--help")
        assert short.returncode == 0
        assert short.stdout == long.stdout
    words = {"_PACKAGER_COMPLETE": "complete_bash", "COMP_WORDS": "packager ver", "COMP_CWORD": "1"}
    assert cli(env=words).stdout.strip() == "verify"


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (("doctor",), {"schema_version", "findings"}),
        (("cache",), {"schema_version", "folder", "entries", "nbytes", "limit", "stores"}),
    ],
)
def test_tables_are_json_too(cli: Cli, arguments: tuple[str, ...], keys: set[str]) -> None:
    assert json.loads(cli(*arguments, "--json").stdout).keys() == keys


@pytest.mark.slow
def test_the_work_folder_may_be_on_another_file_system(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are moved to their places, or copied where that cannot be: both give the same files."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    options = {"dims": {"n": 1}, "targets": ["llvm"], "weights": "external", "cache": False}
    here, there = tmp_path / "here" / "a.so", tmp_path / "there" / "a.so"
    for output, work in ((here, tmp_path), (there, shared)):
        output.parent.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(work))
        packager.build(models / "external.onnx", output, **options)
    for suffix in (".so", ".safetensors"):
        one, other = here.with_suffix(suffix), there.with_suffix(suffix)
        assert one.read_bytes() == other.read_bytes()
        assert one.stat().st_mode == other.stat().st_mode
    assert len(list(there.parent.iterdir())) == 2


def _umask() -> int:
    import os

    mask = os.umask(0)
    os.umask(mask)
    return mask


LOADED = """
import sys
from packager.cli.main import main
try:
    main()
finally:
    print("torch" in sys.modules, "tvm" in sys.modules, file=sys.stderr)
"""


@pytest.mark.slow
def test_a_build_that_needs_no_torch_does_not_import_it(models: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    options = ["build", models / "mlp.onnx", "-o", tmp_path / "mlp.so", "--keep-workdir", tmp_path / "work"]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *options], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "False True"


def test_the_default_output_lies_in_the_current_folder(cli: Cli, models: Path, tmp_path: Path, mlp: Path) -> None:
    done = cli("build", models / "mlp.onnx", "--golden", 7, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "mlp.so\n"
    assert (tmp_path / "mlp.so").read_bytes() == mlp.read_bytes()


def test_inspect(cli: Cli, batched: Path) -> None:
    done = cli("inspect", batched, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    manifest = json.loads(done.stdout)
    assert manifest["model"]["name"] == "batched"
    assert manifest["dims"] == [{"name": "n", "min": 1, "max": 8, "buckets": []}]
    assert manifest["outputs"] == [{"name": "y", "dtype": "float32", "shape": ["n", 4], "labels": []}]
    table = cli("inspect", batched)
    assert (table.returncode, table.stderr) == (0, "")
    assert "batched" in table.stdout
    assert "\x1b" not in table.stdout


def test_the_manifest_tells_what_the_model_does(cli: Cli, batched: Path) -> None:
    manifest = json.loads(cli("inspect", batched, "--json").stdout)
    (primitive,) = manifest["backends"][0]["primitives"]
    # x[8,6] @ w[6,4] + b, then relu: a multiplication and an addition per term, an addition and a maximum per element
    assert primitive["flops"] == 8 * 4 * (6 * 2 + 1 + 1)
    assert primitive["bytes_read"] == 4 * (8 * 6 + 6 * 4 + 4)
    assert primitive["bytes_written"] == 4 * 8 * 4
    assert primitive["calls"] == 1
    assert {constant["name"] for constant in manifest["constants"]} == {"w", "b"}


def test_verify_finds_nothing_in_a_fresh_bundle(cli: Cli, mlp: Path) -> None:
    done = cli("verify", mlp, "--run", "--json", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["ok"] is True


@pytest.mark.slow
def test_verify_reads_the_machine_that_machine_describes(cli: Cli, mlp: Path, tmp_path: Path) -> None:
    described = cli("machine", "--json")
    assert (described.returncode, described.stderr) == (0, "")
    machine = json.loads(described.stdout)
    (tmp_path / "here.json").write_text(described.stdout)
    assert cli("verify", mlp, "--machine", tmp_path / "here.json").returncode == 0
    (tmp_path / "old.json").write_text(json.dumps(machine | {"cpu_features": ["sse2"]}))
    refused = cli("verify", mlp, "--machine", tmp_path / "old.json")
    assert refused.returncode == 1
    assert "avx" in refused.stdout


def test_run_with_arrays(cli: Cli, batched: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", **relu_input(3))
    np.save(tmp_path / "x.npy", relu_input(3)["x"])
    expected = packager.load(batched).run(relu_input(3))["y"]
    for index, given in enumerate((["--inputs", tmp_path / "in.npz"], ["--input", f"x={tmp_path / 'x.npy'}"])):
        out = tmp_path / f"out{index}.npz"
        done = cli("run", batched, *given, "-o", out)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        with np.load(out) as outputs:
            assert outputs.files == ["y"]
            np.testing.assert_array_equal(outputs["y"], expected)


def test_run_at_random(cli: Cli, batched: Path) -> None:
    done = cli("run", batched, "--random", 3, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (output,) = json.loads(done.stdout)["outputs"]
    assert (output["name"], output["shape"], output["non_finite"]) == ("y", [8, 4], 0)


@pytest.mark.slow
def test_bench(cli: Cli, batched: Path) -> None:
    done = cli("bench", batched, "--runs", 5, "--warmup", 1, "--json", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["schema_version"] == 1
    assert cli("bench", batched, "--runs", 5).stdout


@pytest.mark.slow
def test_bench_profile(cli: Cli, batched: Path, tmp_path: Path) -> None:
    profile, trace = tmp_path / "profile.json", tmp_path / "trace.json"
    done = cli("bench", batched, "--runs", 5, "--threads", 2, "--profile-json", profile, "--trace", trace, "-q")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Primitives by time" in done.stdout
    found = json.loads(profile.read_text())
    assert found["runs"] == 5
    symbols = {item["symbol"] for item in found["primitives"]}
    assert {symbol for symbol, _, _ in found["trace"]} == symbols
    assert {item["symbol"] for item in found["primitives"] if item["backend"]} == {
        primitive.symbol for _, primitive in packager.inspect(batched).manifest.primitives()
    }
    assert all(item["us"] >= 0 for item in found["primitives"])
    assert len(json.loads(trace.read_text())["traceEvents"]) == 2 + len(found["trace"])


@pytest.mark.parametrize("what", ["manifest", "policy"])
def test_schema(cli: Cli, what: str) -> None:
    import jsonschema

    done = cli("schema", what)
    assert (done.returncode, done.stderr) == (0, "")
    jsonschema.Draft202012Validator.check_schema(json.loads(done.stdout))


def test_the_manifest_of_a_build_fits_its_schema(cli: Cli, batched: Path) -> None:
    import jsonschema

    schema, manifest = (
        json.loads(cli(*words).stdout) for words in (("schema", "manifest"), ("inspect", batched, "--json"))
    )
    jsonschema.validate(manifest, schema)


@pytest.mark.slow
def test_doctor_names_what_is_there(cli: Cli) -> None:
    done = cli("doctor")
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    for what in ("apache-tvm", "C compiler", "backend llvm"):
        assert what in done.stdout


def test_doctor_without_a_compiler_says_what_to_install(cli: Cli) -> None:
    done = cli("doctor", env={"PATH": "/nonexistent"})
    assert done.returncode == 4
    assert "gcc is not on PATH" in done.stdout
    assert "apt-get install gcc" in done.stdout


@pytest.mark.slow
def test_cache_shows_and_clears(cli: Cli, models: Path, tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert "bundle: 0 entries" in cli("cache", env=env).stdout
    assert cli("build", models / "mlp.onnx", "-o", tmp_path / "a.so", env=env).returncode == 0
    assert "bundle: 1 entries" in cli("cache", env=env).stdout
    again = cli("build", models / "mlp.onnx", "-o", tmp_path / "b.so", env=env)
    assert "found in the cache" in again.stderr
    assert (tmp_path / "a.so").read_bytes() == (tmp_path / "b.so").read_bytes()
    assert "removed 2 entries" in cli("cache", "--clear", env=env).stdout
    assert "bundle: 0 entries" in cli("cache", env=env).stdout
    small = env | {"PACKAGER_CACHE_LIMIT": "1K"}
    assert cli("build", models / "mlp.onnx", "-o", tmp_path / "c.so", env=small).returncode == 0
    shown = cli("cache", env=small).stdout
    assert "bundle: 0 entries" in shown
    assert "limit: 0.0 MiB" in shown


@pytest.mark.slow
def test_no_command_without_help(cli: Cli) -> None:
    commands = ("build", "inspect", "verify", "run", "bench", "machine", "doctor", "schema", "cache", "targets")
    overview = cli("--help").stdout
    for name in commands:
        assert name in overview
        assert cli(name, "--help").returncode == 0


def test_a_bundle_runs_where_nothing_of_the_build_side_is(batched: Path, tmp_path: Path) -> None:
    """-I -S: no site-packages, no environment; the path has this package and numpy alone, and an import hook."""
    site = Path(np.__file__).parents[1]
    only_numpy = tmp_path / "path"
    only_numpy.mkdir()
    for name in ("numpy", "numpy.libs"):
        if (site / name).exists():
            (only_numpy / name).symlink_to(site / name)
    script = tmp_path / "deployed.py"
    script.write_text(f"""
import sys, time
sys.path[:0] = [{str(only_numpy)!r}, {str(ROOT)!r}]
forbidden = {set(BUILD_MODULES)!r}
class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in forbidden:
            raise AssertionError(f"the deploy side imports {{name}}")
sys.meta_path.insert(0, Forbid())
start = time.perf_counter()
import packager
assert time.perf_counter() - start < 0.3
import numpy as np
bundle = packager.load({str(batched)!r}, verify=True)
out = bundle.run({{"x": np.ones((3, 6), np.float32)}})["y"]
assert out.shape == (3, 4) and np.isfinite(out).all()
forbidden -= {{"capstone", "iced_x86"}}  # verify looks for disassemblers, and does without them
checked = packager.verify({str(batched)!r})
assert checked.ok and [c.status for c in checked.checks if c.name == "code"] == ["skipped"]
print("fine")
""")
    done = subprocess.run(
        [sys.executable, "-I", "-S", script], env={"PATH": "/nonexistent"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


@pytest.mark.slow
def test_a_static_archive_comes_with_a_header_that_a_program_compiles_with(
    cli: Cli, models: Path, tmp_path: Path
) -> None:
    done = cli(*("build", models / "mlp.onnx", "--static", "--prefix", "mlp", "--header", "mlp.h"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "libmlp.a\n"), done.stderr
    (tmp_path / "main.c").write_text("""
#include "mlp.h"
#include <stdio.h>
int main(void) {
  const packager_bundle_v1_t *bundle = mlp_bundle_v1();
  printf("%s %d %s\\n", bundle->name, (int)MLP_NUM_INPUTS, bundle->outputs[MLP_OUTPUT_Y].name);
  return 0;
}
""")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "main.c", "libmlp.a", "-lm", "-o", "main"], cwd=tmp_path, check=True)
    ran = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
    assert ran.stdout == "mlp 1 y\n"
    assert cli("verify", tmp_path / "libmlp.a").returncode == 0

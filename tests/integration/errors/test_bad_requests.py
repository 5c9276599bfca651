"""Wrong arguments and outputs: refused by name before the work, with a hint, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import Cli, assert_refused, relu_input, tree

import packager
from packager.errors import PackagerError, RunError, UsageError

pytestmark = [pytest.mark.usefixtures("leaves_nothing"), pytest.mark.slow]


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (["--dim", "n"], "--dim 'n' cannot be read", "--dim NAME=SIZE"),
        (["--dim", "n=4:2"], "bounds must satisfy 1 <= MIN <= MAX", ""),
        (["--dim", "n=0:4"], "bounds must satisfy 1 <= MIN <= MAX", ""),
        (["--dim", "n=1", "--dim", "n=2"], "--dim n is given twice", ""),
        (["-t", "lvm"], "unknown Target kind 'lvm'", "did you mean 'llvm'?"),
        (["-t", "llvm -mcp=x"], "has no attribute 'mcp'", "did you mean 'mcpu'?"),
        (["-t", "llvm -mtriple=sparc-linux-gnu"], "'sparc-linux-gnu'", "valid triples"),
        (["-t", "llvm", "-t", "llvm"], "2 Targets of kind 'llvm'", "give one llvm Target"),
        (["--static"], "--static and --prefix go together", "--static --prefix mnist"),
        (["--prefix", "p"], "--static and --prefix go together", "--static --prefix mnist"),
        (["--static", "--prefix", "1p"], "--prefix '1p' is not a C identifier", ""),
        (["--static", "--prefix", "p-q"], "--prefix 'p-q' is not a C identifier", ""),
        (["--weights", "inside"], "--weights 'inside' is unknown", "valid: embedded, external"),
        (["--jobs", "0"], "--jobs 0: at least 1", ""),
        (["-o", "no/such/out.so"], "the folder no/such does not exist", ""),
        (["-o", "."], "is a folder", "name a file"),
        (["--header", "no/such/out.h"], "the folder no/such does not exist", ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option(cli: Cli, models: Path, options: list[str], message: str, hint: str) -> None:
    assert_refused(cli("build", models / "batched.onnx", *options), 2, message, hint=hint)


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("missing.onnx", "missing.onnx: no such file", "give the path of a model"),
        ("model.tflite", "the suffix '.tflite' is not a model format", "models are .onnx"),
        ("model", "the suffix '' is not a model format", "models are .onnx"),
        ("model.pth", "the suffix '.pth' is not a model format", "torch.export.save(torch.export.export(model"),
        ("model.h5", "the suffix '.h5' is not a model format", "tf2onnx"),
        ("model.pkl", "the suffix '.pkl' is not a model format", "skl2onnx"),
        ("folder.onnx", "folder.onnx: not a file", "give the path of a model"),
    ],
)
def test_a_wrong_model(cli: Cli, tmp_path: Path, name: str, message: str, hint: str) -> None:
    (tmp_path / "model.tflite").write_bytes(b"x")
    (tmp_path / "model").write_bytes(b"x")
    (tmp_path / "folder.onnx").mkdir()
    assert_refused(cli("build", tmp_path / name), 2, message, hint=hint)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["build"],
        ["build", "a.onnx", "b.onnx"],
        ["buid", "x"],
        ["build", "--x"],
        ["build", "x.onnx", "--jobs", "many"],
    ],
)
def test_a_wrong_command_line(cli: Cli, arguments: list[str]) -> None:
    done = cli(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_mcpu_that_llvm_does_not_know(cli: Cli, models: Path) -> None:
    done = cli("build", models / "mlp.onnx", "-t", "llvm -mcpu=pentium9")
    assert_refused(done, 2, "attribute 'mcpu' of Target 'llvm' is 'pentium9'", hint="x86-64-v3")


def test_what_stood_at_the_output_and_is_no_bundle_stays(cli: Cli, models: Path, tmp_path: Path) -> None:
    notes = tmp_path / "cwd" / "notes.txt"
    notes.write_text("precious")
    try:
        done = cli("build", models / "mlp.onnx", "-o", "notes.txt")
        assert_refused(done, 2, "notes.txt exists and is not a bundle that packager wrote", hint="remove it")
        assert notes.read_text() == "precious"
        done = cli("build", models / "mlp.onnx", "-o", "out.so", "--header", "notes.txt")
        assert_refused(done, 2, "notes.txt exists and is not a header that packager wrote", hint="remove it")
        assert notes.read_text() == "precious"
    finally:
        notes.unlink()


def test_a_weights_file_of_another_origin_stays(models: Path, tmp_path: Path) -> None:
    """``--weights external`` must not overwrite somebody's weights that happen to lie there."""
    precious = tmp_path / "out.safetensors"
    precious.write_bytes(b"precious")
    with pytest.raises(UsageError, match=r"out\.safetensors exists and is not"):
        packager.build(models / "batched.onnx", tmp_path / "out.so", dims={"n": 1}, weights="external", cache=False)
    assert precious.read_bytes() == b"precious"
    assert not (tmp_path / "out.so").exists()


def test_an_older_bundle_is_replaced_with_its_header_and_weights(models: Path, tmp_path: Path) -> None:
    def build(weights: str) -> dict[str, bytes]:
        options = {"dims": {"n": 1}, "weights": weights, "header": tmp_path / "o.h"}
        packager.build(models / "batched.onnx", tmp_path / "o.so", **options)
        return tree(tmp_path)

    (tmp_path / "cwd").rmdir()
    (tmp_path / "tmp").rmdir()
    first, second = build("external"), build("external")
    assert set(first) == {"o.so", "o.h", "o.safetensors"}
    assert first == second
    assert build("embedded")["o.so"] != first["o.so"]
    (tmp_path / "cwd").mkdir()
    (tmp_path / "tmp").mkdir()


@pytest.mark.parametrize("model_is_output", [True, False])
def test_the_model_is_never_overwritten(model_is_output: bool, models: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes((models / "mlp.onnx").read_bytes())
    options = {"header": tmp_path / "o.h"} if model_is_output else {"header": model}
    with pytest.raises(UsageError):
        packager.build(model, model if model_is_output else tmp_path / "o.so", **options)
    assert model.read_bytes() == (models / "mlp.onnx").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cwd", "m.onnx", "tmp"]


def test_the_bundle_and_the_header_are_two_files(models: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        packager.build(models / "mlp.onnx", tmp_path / "x", header=tmp_path / "x")
    assert not (tmp_path / "x").exists()


class TestGolden:
    """``--golden FILE.npz``: what does not fit is told before it is in a bundle."""

    @pytest.fixture
    def build(self, models: Path, tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
        def run(file: Path) -> Path:
            options = {"dims": {"n": (1, 4)}, "targets": ["llvm"], "golden": file}
            return packager.build(models / "batched.onnx", tmp_path / "out.so", **options)

        yield run
        (tmp_path / "out.so").unlink(missing_ok=True)

    def refused(self, build: Callable[[Path], Path], file: Path, kind: type[PackagerError] = UsageError) -> str:
        with pytest.raises(kind) as caught:
            build(file)
        assert caught.value.exit_code in (2, 5)
        assert not (file.parent / "out.so").exists()
        return caught.value.render()

    def save(self, tmp_path: Path, **arrays: np.ndarray) -> Path:
        np.savez(tmp_path / "g.npz", **arrays)
        return tmp_path / "g.npz"

    def test_inputs_alone_and_with_the_right_outputs(self, build: Callable[[Path], Path], tmp_path: Path) -> None:
        out = build(self.save(tmp_path, **relu_input(3)))
        assert packager.verify(out, run=True).ok
        with packager.load(out) as bundle:
            expected = bundle.run(relu_input(3))
        assert packager.verify(build(self.save(tmp_path, **relu_input(3), **expected)), run=True).ok

    def test_outputs_that_do_not_match(self, build: Callable[[Path], Path], tmp_path: Path) -> None:
        wrong = np.full((3, 4), 7, np.float32)
        text = self.refused(build, self.save(tmp_path, **relu_input(3), y=wrong), PackagerError)
        assert "does not reproduce the golden outputs: output 'y': 12 of 12 elements differ" in text

    def test_outputs_of_another_shape_or_type(self, build: Callable[[Path], Path], tmp_path: Path) -> None:
        for wrong in (np.zeros((2, 4), np.float32), np.zeros((3, 4), np.float64)):
            assert "output 'y' is float32[3, 4]" in self.refused(
                build, self.save(tmp_path, **relu_input(3), y=wrong), PackagerError
            )

    def test_a_wrong_name(self, build: Callable[[Path], Path], tmp_path: Path) -> None:
        text = self.refused(build, self.save(tmp_path, image=relu_input()["x"]))
        assert "has no array 'x'" in text
        assert "hint: name the arrays after inputs and outputs" in text
        assert "'other'" in self.refused(build, self.save(tmp_path, **relu_input(), other=np.zeros(1)))

    @pytest.mark.parametrize(
        "wrong",
        [np.zeros((3, 5), np.float32), np.zeros((5, 6), np.float32), np.zeros(6, np.float32), np.zeros((3, 6))],
        ids=["extent", "beyond the bounds", "rank", "dtype"],
    )  # fmt: skip
    def test_inputs_that_do_not_fit(self, build: Callable[[Path], Path], tmp_path: Path, wrong: np.ndarray) -> None:
        assert "'x'" in self.refused(build, self.save(tmp_path, x=wrong), RunError)

    @pytest.mark.parametrize("content", ["missing", "empty", "text", "npy", "cut", "damaged", "pickle"])
    def test_a_file_that_cannot_be_read(self, build: Callable[[Path], Path], tmp_path: Path, content: str) -> None:
        file = self.save(tmp_path, x=np.arange(4000).astype(np.float32))
        image = file.read_bytes()
        match content:
            case "missing":
                file.unlink()
            case "empty":
                file.write_bytes(b"")
            case "text":
                file.write_text("x = 1\n")
            case "npy":
                np.save(file.with_suffix(".npy"), np.zeros(3))
                file.with_suffix(".npy").rename(file)
            case "cut":
                file.write_bytes(image[: len(image) // 2])
            case "damaged":
                file.write_bytes(image[:1000] + bytes(100) + image[1100:])
            case "pickle":
                np.savez(file, x=np.array([{}, {}], dtype=object))
        assert f"--golden {file}" in self.refused(build, file)


def test_a_workdir_is_kept_and_must_be_new(models: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    options = {"dims": {"n": (1, 4)}, "keep_workdir": work}
    packager.build(models / "batched.onnx", tmp_path / "o.so", **options)
    kept = sorted(path.name for path in work.iterdir())
    stages = {"1-imported.py", "2-partitioned.py", "2-partitions.json", "3-lowered.py", "4-plan.json", "timings.json"}
    assert stages | {"llvm", "entrypoint.c", "data.S", "bundle.so"} <= set(kept)
    assert (work / "bundle.so").read_bytes() == (tmp_path / "o.so").read_bytes()
    with pytest.raises(UsageError, match="exists and is not an empty folder") as caught:
        packager.build(models / "batched.onnx", tmp_path / "p.so", **options)
    assert caught.value.hint
    assert sorted(path.name for path in work.iterdir()) == kept
    assert not (tmp_path / "p.so").exists()


def test_a_kept_workdir_may_be_an_empty_folder_and_no_file(models: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    packager.build(models / "mlp.onnx", tmp_path / "o.so", keep_workdir=tmp_path / "empty")
    assert any((tmp_path / "empty").iterdir())
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError):
        packager.build(models / "mlp.onnx", tmp_path / "p.so", keep_workdir=tmp_path / "file")
    with pytest.raises(PackagerError):
        packager.build(models / "mlp.onnx", tmp_path / "p.so", keep_workdir=tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "x"
    assert not (tmp_path / "p.so").exists()


def test_deploy_commands_refuse_what_is_no_bundle(cli: Cli, models: Path, tmp_path: Path) -> None:
    for command in (["inspect"], ["verify"], ["run", "--random", "1"], ["bench"]):
        assert_refused(cli(*command, models / "mlp.onnx"), 6, "mlp.onnx")
        assert_refused(cli(*command, tmp_path / "missing.so"), 2, "missing.so")


def test_run_without_inputs_says_how_to_give_them(cli: Cli, batched: Path) -> None:
    assert_refused(cli("run", batched), 2, "no inputs are given", hint="--random 0 makes them up; --input x=FILE.npy")


def test_run_refuses_tensors_that_do_not_fit(cli: Cli, batched: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 5), np.float32))
    assert_refused(cli("run", batched, "--input", f"x={tmp_path / 'x.npy'}"), 2, "'x'")
    assert_refused(cli("run", batched, "--input", f"z={tmp_path / 'x.npy'}"), 2, "'z'")

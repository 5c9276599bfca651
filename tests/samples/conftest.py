"""What the tests of the samples share: the sample scripts as modules, bundles built once, processes without TVM."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples"
# Of the build side; a deploy-side process must do without them.
BUILD_MODULES = ("tvm", "tvm_ffi", "torch", "transformers", "onnx", "onnxruntime", "jinja2", "capstone", "iced_x86",
                 "sklearn")  # fmt: skip

Run = Callable[[Sequence[object]], "subprocess.CompletedProcess[str]"]


def import_sample(path: str) -> ModuleType:
    """Import ``samples/<path>`` as a module; the samples are scripts, not a package."""
    spec = importlib.util.spec_from_file_location(f"sample_{Path(path).stem}", SAMPLES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def require(program: str) -> str:
    """Return a program that ``.ci/run`` installs; elsewhere a test that lacks it is skipped."""
    if shutil.which(program) is None:
        reason = f"{program} is not installed"
        if os.environ.get("CI") and program in (ROOT / ".ci" / "run").read_text():
            pytest.fail(reason)
        pytest.skip(reason)
    return program


def assert_close(got: np.ndarray, wanted: np.ndarray) -> None:
    """Compare with rtol 1e-4 and an atol of 1e-5 of the largest value."""
    scale = float(np.abs(wanted).max())
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * scale)


@pytest.fixture(scope="session")
def run_cli() -> Run:
    """Run ``python -m packager`` with arguments in a process of its own; fails the test when it exits with an error."""

    def run(arguments: Sequence[object]) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "packager", *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    return run


@pytest.fixture
def run_deployed(tmp_path: Path) -> Run:
    """Run a Python script where importing any build-side module fails and no compiler is on the PATH."""
    barred = tmp_path / "barred"
    barred.mkdir()
    for name in BUILD_MODULES:
        (barred / f"{name}.py").write_text(f'raise RuntimeError("the deploy side imported {name}")\n')
    environment = {"PYTHONPATH": f"{barred}{os.pathsep}{ROOT}", "PATH": str(barred), "HOME": str(tmp_path)}

    def run(arguments: Sequence[object]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def digits_bundle(tmp_path_factory: pytest.TempPathFactory, run_cli: Run) -> Path:
    """The digits model with a batch of 1 to 64."""
    bundle = tmp_path_factory.mktemp("digits") / "digits.so"
    run_cli(["build", SAMPLES / "digits" / "digits.onnx", "-o", bundle, "--dim", "n=1:64"])
    return bundle


@pytest.fixture(scope="session")
def digits_images() -> np.ndarray:
    """The held-out images, float32 [360, 1, 8, 8] in 0..1."""
    with np.load(SAMPLES / "digits" / "digits_test.npz") as test:
        return test["images"].astype(np.float32) / 16

"""Fixtures: the models, and bundles that are built once per session by the real pipeline."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

import packager

from .models import DIGITS, Model, make_half, make_mlp, make_twin
from .programs import AARCH64, NATIVE, compile_host

# build(model, target="llvm", batch=(1, 32), prefix=None, weights="embedded") -> path; ``batch`` is a size, or bounds
Build = Callable[..., Path]


@pytest.fixture(scope="session")
def digits() -> Model:
    """The digits sample."""
    return DIGITS


@pytest.fixture(scope="session")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A net whose primitive functions have the names of digits'."""
    return make_twin(tmp_path_factory.mktemp("twin") / "twin.onnx")


@pytest.fixture(scope="session")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A net with calls of the math library and a constant under two names."""
    return make_mlp(tmp_path_factory.mktemp("mlp") / "mlp.onnx")


@pytest.fixture(scope="session")
def half(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A net that computes in float16."""
    return make_half(tmp_path_factory.mktemp("half") / "half.onnx")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build a bundle (Targets as ``A > B``), ``work/`` and an archive's header beside it; once for equal calls."""

    @functools.cache
    def make(
        model: Model, target: str, batch: int | tuple[int, int], prefix: str | None, weights: str, place: str
    ) -> Path:
        folder = tmp_path_factory.mktemp(model.name)
        return packager.build(
            model.path,
            folder / (f"lib{prefix}.a" if prefix else f"{model.name}.so"),
            targets=target.split(" > "),
            place=place,
            dims={"n": batch},
            static=prefix is not None,
            prefix=prefix,
            weights=weights,
            header=folder / f"{prefix}.h" if prefix else None,
            keep_workdir=folder / "work",
        )

    def build(
        model: Model,
        target: str = "llvm",
        batch: int | tuple[int, int] = (1, 32),
        prefix: str | None = None,
        weights: str = "embedded",
        place: str = "greedy",
    ) -> Path:
        return make(model, target, batch, prefix, weights, place)

    return build


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C host program for this machine."""
    return compile_host(NATIVE, tmp_path_factory.mktemp("host"))


@pytest.fixture(scope="session")
def aarch64_host(tmp_path_factory: pytest.TempPathFactory) -> list[str | Path]:
    """The command that runs the C host program for aarch64."""
    return [*AARCH64.runner, compile_host(AARCH64, tmp_path_factory.mktemp("aarch64"))]

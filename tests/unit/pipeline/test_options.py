"""The one list of a build's options: the API and the command line have it, and the cache key covers it."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import packager
from packager.cli.options import with_build_options
from packager.codegen.toolchain import Toolchain
from packager.frontends.dims import DimRequest
from packager.pipeline import cache_key
from packager.pipeline.options import OPTIONS, BuildOptions
from packager.pipeline.request import Request, make_build_request

TOOLCHAIN = Toolchain("x86_64", "gcc", "ld", "ar", "objcopy", {"cc": "gcc 1", "ld": "ld 1"})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"any")
    return path


def test_the_api_has_every_option_with_its_default_and_documentation() -> None:
    signature = inspect.signature(packager.build)
    assert list(signature.parameters) == list(OPTIONS)
    positional = [
        name for name, parameter in signature.parameters.items() if parameter.kind is not parameter.KEYWORD_ONLY
    ]
    assert positional == ["model", "output"]
    assert signature.parameters["cache"].default is True
    for name, info in OPTIONS.items():
        assert f"{name}: {info.doc}" in (packager.build.__doc__ or "")


def test_a_misspelled_option_says_what_is_valid() -> None:
    with pytest.raises(
        TypeError, match=r"build\(\) got an unexpected keyword argument 'target': did you mean 'targets'"
    ):
        packager.build("net.onnx", target=["llvm"])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'model'"):
        packager.build()  # type: ignore[call-arg]


def read(*arguments: str, explained: bool = False) -> BuildOptions:
    """Return what a command gets of a command line."""
    got: list[BuildOptions] = []

    def command(options: BuildOptions) -> None:
        got.append(options)

    app = typer.Typer()
    app.command()(with_build_options(command, explained=explained))
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return got[0]


def test_the_command_line_gives_what_the_api_takes() -> None:
    assert read("a.onnx") == BuildOptions([Path("a.onnx")])
    texts = "a.onnx b.onnx -o out.so -t llvm -t ccompiler --dim n=1:8 --no-cache --static --prefix p --golden 3 -j 0"
    assert read(*texts.split(), "--state", "a=b", "--freeze", "x=[1, 2]") == BuildOptions(
        [Path("a.onnx"), Path("b.onnx")],
        Path("out.so"),
        targets=["llvm", "ccompiler"],
        dims={"n": DimRequest(1, 8)},
        cache=False,
        static=True,
        prefix="p",
        golden="3",
        jobs=0,
        states={"a": "b"},
        freeze={"x": [1, 2]},
    )


def test_explain_has_the_options_that_say_what_is_compiled() -> None:
    assert read("a.onnx", "--precision", "fp16", explained=True).precision == "fp16"
    for flags in (info.flags for info in OPTIONS.values() if info.flags and not info.explained):
        with pytest.raises(AssertionError, match="No such option"):
            read("a.onnx", flags[0], explained=True)


def test_every_field_of_a_request_is_in_the_cache_key_or_said_to_have_no_effect() -> None:
    names = {field.name for field in dataclasses.fields(Request)}
    assert names == cache_key.PARTS.keys() | cache_key.WITHOUT_EFFECT
    assert not cache_key.PARTS.keys() & cache_key.WITHOUT_EFFECT


def test_a_field_without_a_decision_has_no_key(model: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Longer(Request):
        new: int = 0

    request = make_build_request(BuildOptions(model))
    longer = Longer(**{field.name: getattr(request, field.name) for field in dataclasses.fields(request)})
    with pytest.raises(KeyError, match="new"):
        cache_key.of_bundle(longer, TOOLCHAIN)


CHANGES: dict[str, Any] = {
    "targets": ["llvm"],
    "dims": {"n": (1, 8)},
    "name": "other",
    "prefix": "p",
    "weights": "external",
    "golden": 1,
    "constants": "c.npz",
    "entry": "forward",
    "precision": "fp16",
    "freeze": {"x": 1.0},
    "states": {"a": "b"},
}


def key(model: Path, **options: Any) -> str:
    options |= {"static": True} if "prefix" in options else {}
    return cache_key.of_bundle(make_build_request(BuildOptions(model, **options)), TOOLCHAIN)


def test_what_changes_the_bundle_changes_its_key(model: Path, tmp_path: Path) -> None:
    keys = {name: key(model, **{name: value}) for name, value in CHANGES.items()}
    keys["weights file"] = key(model, output="other.so", weights="external")
    keys["static"] = key(model, output="other.so", static=True, prefix="q")
    keys["nothing"] = key(model)
    other = tmp_path / "more.onnx"
    other.write_bytes(b"any")
    keys["more models"] = key([model, other])  # type: ignore[arg-type]
    assert len(set(keys.values())) == len(keys)
    model.write_bytes(b"other")
    assert key(model) != keys["nothing"]


@pytest.mark.parametrize(
    "more", [{"output": "o.so"}, {"header": "o.h"}, {"jobs": 3}, {"keep_workdir": "w"}, {"cache": False}]
)
def test_what_changes_no_byte_keeps_the_key(model: Path, more: dict[str, Any]) -> None:
    assert key(model, **more) == key(model)

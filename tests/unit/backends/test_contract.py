"""What is checked of an object before it counts as a backend."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from packager.backends.base import API_VERSION, CodeGenerator, PartitionBackend, PartitionOptions, attribute
from packager.backends.contract import violation
from packager.backends.llvm.backend import LlvmBackend
from packager.backends.registry import BUILT_IN, distribution, find_backend, origin

ROOT = Path(__file__).parents[3]


@dataclasses.dataclass(frozen=True)
class Options(PartitionOptions):
    level: int = attribute(2, "How hard to try", choices=(1, 2), minimum=0)


class Good:
    api_version: Any = API_VERSION
    kind: Any = "good"
    device: Any = "cpu"
    merges: Any = False
    options: Any = Options
    summary: Any = "takes nothing"

    def canonical(self, options: Any, base: Any) -> Any: ...
    def probe(self, target: Any) -> Any: ...
    def patterns(self, target: Any) -> Any: ...
    def compile(self, partitions: Any, target: Any, context: Any) -> Any: ...


@pytest.mark.parametrize("kind", BUILT_IN)
def test_packagers_own_backends_keep_the_contract(kind: str) -> None:
    backend = find_backend(kind)
    assert violation(backend, kind) is None
    assert backend.api_version == API_VERSION
    assert isinstance(backend, CodeGenerator if kind in ("llvm", "cuda") else PartitionBackend)
    assert (origin(kind), distribution(kind)) == ("packager", None)


def test_a_good_one() -> None:
    assert violation(Good(), "good") is None


def changed(**attributes: Any) -> Any:
    return type("Changed", (Good,), attributes)()


def lacking(name: str) -> Any:
    namespace = {key: value for key, value in vars(Good).items() if key not in (name, "__dict__", "__weakref__")}
    return type("Lacking", (), namespace)()


def options(annotation: Any, default: Any, *, frozen: bool = True, base: type = PartitionOptions) -> type:
    namespace = {"x": default, "__annotations__": {"x": annotation}}
    bases = (base,) if frozen else ()
    return dataclasses.dataclass(frozen=frozen)(type("Made", bases, namespace))


@pytest.mark.parametrize("name", ["kind", "device", "options", "summary", "canonical", "probe", "patterns", "merges"])
def test_what_is_missing_is_named(name: str) -> None:
    assert violation(lacking(name), "good") == f"it has no {name!r}"


def test_an_object_of_another_sort() -> None:
    assert (
        violation(3, "good") == "it has no 'api_version', 'kind', 'device', 'options', 'summary', 'canonical', 'probe'"
    )


@pytest.mark.parametrize(
    ("backend", "problem"),
    [
        (changed(kind="better"), "its kind is 'better', and its entry point is named 'good'"),
        (changed(device="tpu"), "its device is 'tpu', expected one of cpu, cuda"),
        (changed(summary=" "), "its summary is not a line of text"),
        (changed(generate=print), "it has both of 'generate' and 'compile', expected one of them"),
        (lacking("compile"), "it has neither of 'generate' and 'compile', expected one of them"),
        (changed(options=3), "options is not a dataclass"),
        (changed(options=Options()), "options is not a dataclass"),
        (changed(options=options(int, attribute(1, "x"), frozen=False)), "options is not frozen"),
        (changed(options=options(int, attribute(1, "x"), base=object)), "do not derive from PartitionOptions"),
        (changed(options=options(int, 1)), "attribute 'x' is not declared with attribute(default, doc)"),
        (changed(options=options(int, attribute(1, " "))), "attribute 'x' is not declared with attribute"),
        (changed(options=options(int, attribute(True, "x"))), "the default True of attribute 'x' is not of type int"),
        (changed(options=options(float, attribute(1, "x"))), "the default 1 of attribute 'x' is not of type float"),
        (changed(options=options(dict, attribute(1, "x"))), "attribute 'x' is not one of the types bool, int, float"),
        (changed(options=options("Nowhere", attribute(1, "x"))), "name 'Nowhere' is not defined"),
        (
            changed(options=dataclasses.make_dataclass("K", [("kind", str, attribute("", "x"))], frozen=True)),
            "the name of attribute 'kind' is reserved",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_violations(backend: Any, problem: str) -> None:
    assert problem in (violation(backend, "good") or "")


def test_a_code_generator_of_the_cpu_says_for_which_machine() -> None:
    class Generator(LlvmBackend):
        options = dataclasses.make_dataclass("O", [("mtriple", str, attribute("", "x"))], frozen=True)  # type: ignore[assignment]

    assert violation(Generator(), "llvm") == "its options have no attribute 'mcpu' of type list of str or str"
    Generator.device = "cuda"
    assert violation(Generator(), "llvm") is None


def test_importing_the_registry_scans_nothing_and_imports_no_backend() -> None:
    script = (
        "import sys, packager.targets.target_list; from packager.backends.registry import BUILT_IN; "
        "rooms = tuple(f'packager.backends.{kind}' for kind in BUILT_IN); "
        "print(*sorted(name for name in sys.modules if name == 'tvm' or name == 'importlib.metadata'"
        " or name.startswith(rooms)))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

"""A bundle that opens libraries says so: verify, policies, inspect; and no manifest can say otherwise."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from acme import make_library
from command_line import Cli
from graphs import graph, save

import packager
from packager.bundle.reader import read_bundle
from packager.deploy.trust.sbom import bill_of_materials
from packager.deploy.verify.machine import Machine, this_machine
from packager.errors import BackendError, BundleError
from tests.artifact.mutants import resealed

pytestmark = pytest.mark.slow

THIRD_PARTY = Path(__file__).parents[2] / "third_party"
MODEL = "m (float[4,8] x) => (float[4,8] y) { a = Sin (x)\n b = Relu (a)\n y = Cos (b) }"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A bundle that needs the library, one that can do without, an archive, and one that opens none."""
    folder = tmp_path_factory.mktemp("bundles")
    model = save(graph(MODEL), folder / "m.onnx")
    loader = "loader -chosen_with=2.1.3"

    def build(name: str, *targets: str, **options: Any) -> Path:
        return packager.build(model, folder / name, targets=list(targets), **options)

    return {
        "needed": build("needed.so", "llvm", loader),
        "optional": build("optional.so", "loaderopt -chosen_with=2.1.3", "llvm", place="trial"),
        "archive": build("libarchive.a", "llvm", loader, static=True, prefix="m"),
        "none": build("none.so", "llvm"),
    }


def findings(path: Path, **options: Any) -> dict[str, tuple[str, str]]:
    return {found.check: (found.severity, found.what) for found in packager.verify(path, **options).findings}


@pytest.mark.parametrize("name", ["needed", "archive"])
def test_policies_refuse_what_is_not_allowed(name: str, bundles: dict[str, Path], tmp_path: Path) -> None:
    found = findings(bundles[name], libraries=[make_library(tmp_path / "a")])
    assert found == {"policy.allowed_loaded_libraries": ("error", "sessions open libacme.so.1, libacme.so.2")}
    policy = tmp_path / "policy.toml"
    policy.write_text('schema_version = 1\nname = "p"\nallowed_loaded_libraries = ["libacme.so.2", "libacme.so.1"]\n')
    assert not findings(bundles[name], libraries=[tmp_path / "a"], policy=str(policy))


def test_default_warns_of_an_optional_library_and_hermetic_refuses_it(bundles: dict[str, Path]) -> None:
    what = "sessions open libacme.so.1, libacme.so.2, and can do without"
    assert findings(bundles["optional"])["policy.allowed_loaded_libraries"] == ("warning", what)
    assert findings(bundles["optional"], policy="hermetic")["policy.allowed_loaded_libraries"] == ("error", what)
    assert packager.verify(bundles["optional"]).ok
    assert not findings(bundles["none"])


def test_this_machine_is_searched(bundles: dict[str, Path], tmp_path: Path) -> None:
    what = "sessions open libacme.so.2 or libacme.so.1 of version 2.1 or newer; the machine has none"
    assert findings(bundles["needed"])["machine.library"] == ("error", what)
    assert findings(bundles["optional"])["machine.library"] == ("warning", what)
    beside = Path(shutil.copy(bundles["needed"], tmp_path))
    make_library(tmp_path, "libacme.so.1")
    assert "machine.library" not in findings(beside)


@pytest.mark.parametrize(
    ("libraries", "check", "what"),
    [
        ({"libacme.so.2": "2.0.9"}, "machine.library", "the machine has libacme.so.2 2.0.9"),
        ({"libacme.so.2": "2.4.0"}, "machine.library_version", "the machine has 2.4.0"),
        ({"libacme.so.2": "2.1.3"}, None, ""),
        ({"libacme.so.2": "1.0", "libacme.so.1": None}, None, ""),
        (None, "machine.library", "the description of the machine does not know about"),
    ],
)
def test_a_described_machine_is_compared(
    libraries: dict[str, str | None] | None, check: str | None, what: str, bundles: dict[str, Path]
) -> None:
    here = this_machine()
    machine = Machine(1, here.machine, here.os, here.glibc, here.cpu, here.cpu_features, None, libraries)
    found = {name: said for name, said in findings(bundles["needed"], machine=machine).items() if "machine" in name}
    assert list(found) == ([check] if check else [])
    assert all(what in said for _, said in found.values())


def _libraries(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = manifest["requirements"]["libraries"]
    return found


def _forget(manifest: dict[str, Any]) -> None:
    manifest["requirements"]["libraries"] = []
    for backend in manifest["backends"]:
        for primitive in backend["primitives"]:
            primitive["libraries"] = []
    for choice in (manifest["placement"] or {"choices": []})["choices"]:
        choice["fallback"] = None
        for alternative in choice["alternatives"]:
            alternative["libraries"] = []


MUTANTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "forgotten": _forget,
    "key removed": lambda m: m["requirements"].pop("libraries"),
    "another soname": lambda m: _libraries(m)[0].update(sonames=["libm.so.6"]),
    "one soname": lambda m: _libraries(m)[0]["sonames"].pop(),
    "no sonames": lambda m: _libraries(m)[0].update(sonames=[]),
    "a path": lambda m: _libraries(m)[0]["sonames"].insert(0, "/tmp/libacme.so.2"),
    "a path upwards": lambda m: _libraries(m)[0]["sonames"].insert(0, "../libacme.so.2"),
    "order": lambda m: _libraries(m)[0]["sonames"].reverse(),
    "older": lambda m: _libraries(m)[0].update(least="1.0"),
    "any version": lambda m: _libraries(m)[0].update(chosen_with=None),
    "no functions": lambda m: _libraries(m)[0].update(functions=[]),
    "other functions": lambda m: _libraries(m)[0]["functions"].pop(),
    "presence": lambda m: _libraries(m)[0].update(optional=not _libraries(m)[0]["optional"]),
    "another symbol": lambda m: _libraries(m)[0].update(symbol="other"),
    "twice": lambda m: _libraries(m).append(_libraries(m)[0]),
    "one more": lambda m: _libraries(m).append(_libraries(m)[0] | {"symbol": "other"}),
    "nobody calls it": lambda m: [p.update(libraries=[]) for b in m["backends"] for p in b["primitives"]],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["needed", "optional", "archive"])
@pytest.mark.parametrize("change", MUTANTS)
def test_hostile_manifests_do_not_verify(change: str, name: str, bundles: dict[str, Path], tmp_path: Path) -> None:
    original = read_bundle(bundles[name])
    mutant = tmp_path / f"lib{bundles[name].name}"
    mutant.write_bytes(resealed(bundles[name].read_bytes(), original.section, MUTANTS[change]))
    assert mutant.read_bytes() != bundles[name].read_bytes()
    try:
        checks = {found.check for found in packager.verify(mutant).findings if found.severity == "error"}
    except BundleError:
        return
    assert checks & {"manifest.loaded_libraries"}


@pytest.mark.parametrize("fallback", [None, 7, "with a library"])
def test_fallbacks_are_checked(fallback: int | str | None, bundles: dict[str, Path], tmp_path: Path) -> None:
    original = read_bundle(bundles["optional"])
    ways = original.manifest.choices[0].alternatives
    wrong = next(i for i, way in enumerate(ways) if way.libraries) if isinstance(fallback, str) else fallback
    mutant = tmp_path / "mutant.so"
    data = bundles["optional"].read_bytes()
    mutant.write_bytes(resealed(data, original.section, lambda m: m["placement"]["choices"][0].update(fallback=wrong)))
    with pytest.raises(BundleError, match=r"choices\[0\].fallback"):
        packager.verify(mutant)


def test_the_list_in_the_file_is_compared(bundles: dict[str, Path], tmp_path: Path) -> None:
    original = read_bundle(bundles["needed"])
    data = bytearray(bundles["needed"].read_bytes())
    at = data.index(b"libacme.so.2\0", original.elf.sections[".packager.libraries"].offset)
    for text in (b"libacmf.so.2", b"../../aa.so.", b"lib\xff\xff\xff\xff.so.2"):
        mutant = tmp_path / "mutant.so"
        mutant.write_bytes(resealed(data[:at] + text + data[at + len(text) :], original.section))
        assert findings(mutant)["manifest.loaded_libraries"][0] == "error"


def test_inspect_lists_them(bundles: dict[str, Path], cli: Cli) -> None:
    shown = cli("inspect", bundles["optional"])
    assert "Libraries that sessions open" in shown.stdout
    assert "libacme.so.2 or libacme.so.1  2.1 or newer  2.1.3" in shown.stdout
    (found,) = json.loads(cli("inspect", bundles["needed"], "--json").stdout)["requirements"]["libraries"]
    assert found == {
        "symbol": "loader_acme",
        "sonames": ["libacme.so.2", "libacme.so.1"],
        "least": "2.1",
        "chosen_with": "2.1.3",
        "functions": ["acme_version", "acme_sin", "acme_cos"],
        "optional": False,
        "embedded": False,
    }
    assert "Libraries that sessions open" not in cli("inspect", bundles["none"]).stdout


def test_the_command_line_says_where_and_what(bundles: dict[str, Path], cli: Cli, tmp_path: Path) -> None:
    folder = make_library(tmp_path / "a")
    assert cli("run", bundles["needed"], "--random", 1, "--libraries", folder).returncode == 0
    refused = cli("run", bundles["needed"], "--random", 1)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: libacme.so.2 or libacme.so.1 of version 2.1 or newer, which the model")
    assert "hint: give its folder" in refused.stderr
    slower = cli("run", bundles["optional"], "--random", 1)
    assert (slower.returncode, slower.stderr.count("warning: m: slower alternatives are used")) == (0, 1)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ("-sonames=/tmp/libacme.so", "must be a soname"),
        ("-sonames=../libacme.so.1", "must be a soname"),
        ("-sonames=", "has no sonames"),
        ("-least=two", "must be a version"),
        ("-chosen_with=1.2.3.4", "must be a version"),
    ],
)
def test_declarations_are_checked(attributes: str, message: str, tmp_path: Path) -> None:
    model = save(graph(MODEL), tmp_path / "m.onnx")
    with pytest.raises(BackendError, match=message) as raised:
        packager.build(model, tmp_path / "m.so", targets=["llvm", f"loader {attributes}"])
    assert raised.value.message.startswith("loader: loader.o: loaded library 'loader_acme'")
    assert raised.value.hint


def test_copies_are_put_beside_the_bundle(cli: Cli, tmp_path: Path) -> None:
    model = save(graph(MODEL), tmp_path / "m.onnx")
    folder = make_library(tmp_path / "here", "libacme.so.1", 20100)
    make_library(folder, "libacme_part.so.1")  # which it is said to open
    out = tmp_path / "out"
    out.mkdir()
    path = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(THIRD_PARTY)}

    def build(*options: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return cli("build", model, "-o", out / "m.so", "-t", "llvm", "-t", "loader", *options, env=env)

    none = build("--copy-libraries", env=path | {"LD_LIBRARY_PATH": ""})
    assert none.returncode == 2
    assert "libacme.so.2 or libacme.so.1 of version 2.1 or newer is not on this machine" in none.stderr
    assert [file.name for file in out.iterdir()] == ["m.so"]
    for _ in range(2):
        done = build("--copy-libraries", env=path)
        assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in out.iterdir()) == ["libacme.so.1", "libacme_part.so.1", "m.so"]
    assert cli("run", out / "m.so", "--random", 1, env={"LD_LIBRARY_PATH": ""}).returncode == 0
    (out / "libacme.so.1").write_text("another file")
    other = build("--copy-libraries", env=path)
    assert (other.returncode, (out / "libacme.so.1").read_text()) == (2, "another file")
    assert "exists and is another file" in other.stderr
    static = build("--static", "--prefix", "m", "--copy-libraries", env=path)
    assert "an archive has no folder" in static.stderr


def test_a_machine_lists_what_installed_backends_name(cli: Cli, tmp_path: Path) -> None:
    folder = make_library(tmp_path / "here", "libacme.so.1", 20103)
    told = cli("machine", "--json", "--libraries", folder, env={"PYTHONPATH": str(THIRD_PARTY)})
    assert json.loads(told.stdout)["libraries"]["libacme.so.1"] == "2.1.3"


def test_golden_pairs_run_with_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save(graph(MODEL), tmp_path / "m.onnx")
    folder = make_library(tmp_path / "here")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    bundle = packager.build(model, tmp_path / "m.so", targets=["llvm", "loader"], golden=1)
    monkeypatch.delenv("LD_LIBRARY_PATH")
    policy = tmp_path / "policy.toml"
    policy.write_text('schema_version = 1\nname = "p"\n')
    refused = findings(bundle, run=True, libraries=[], policy=str(policy))
    assert "machine.library" in refused
    assert not findings(bundle, run=True, libraries=[folder], policy=str(policy))
    pytest.importorskip("cyclonedx")
    named = {item["name"]: item for item in bill_of_materials(packager.inspect(bundle))["components"]}
    assert named["libacme.so.2"]["scope"] == "excluded"
    assert "libacme.so.2 or libacme.so.1, of version 2.1 or newer" in named["libacme.so.2"]["description"]

"""Sessions open the libraries that a model calls: where they find them, and what they say where they do not."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from acme import make_library
from graphs import graph, save

import packager
from packager.deploy.measure.tune import tune
from packager.errors import BackendError, PackagerWarning, RunError, UsageError
from packager.progress import Event

pytestmark = pytest.mark.slow

MODEL = "m (float[4,8] x) => (float[4,8] y) { a = Sin (x)\n b = Relu (a)\n y = Cos (b) }"
X = np.linspace(0, 3, 32, dtype=np.float32).reshape(4, 8)
NEVER, LATER = "libnever.so.1", "libacmelater.so.3"  # of the trial: nothing else opens them in the tests' process
# A process opens a library once: each test runs in its own.
RUN = """
import sys, ctypes, warnings
import numpy as np, packager
from packager.errors import PackagerError
warnings.simplefilter("error")
bundle, folders, opened = sys.argv[1], sys.argv[2].split(":"), sys.argv[3:]
kept = [ctypes.CDLL(path) for path in opened]
try:
    with packager.load(bundle, libraries=[folder for folder in folders if folder]) as loaded:
        x = np.linspace(0, 3, 32, dtype=np.float32).reshape(4, 8)
        print(loaded.run({"x": x})["y"][0, 0])
except PackagerError as error:
    print(error.name, error.message, error.hint, sep="\\n")
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of MODEL, alone in its folder. Not to be written to."""
    folder = tmp_path_factory.mktemp("bundle")
    model = save(graph(MODEL), tmp_path_factory.mktemp("model") / "m.onnx")
    return packager.build(model, folder / "m.so", targets=["llvm", "loader"])


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trial of MODEL: it has alternatives with and without a library."""
    model = save(graph(MODEL), tmp_path_factory.mktemp("model") / "m.onnx")
    loader = f"loaderopt -sonames={NEVER},{LATER}"
    return packager.build(model, model.with_name("trial.so"), targets=[loader, "llvm"], place="trial")


def run(bundle: Path, *folders: Path, opened: tuple[Path, ...] = (), **environment: str) -> str:
    """Run the bundle in a process of its own; print y[0, 0], which is the FACTOR of the library, or the error."""
    argv = [sys.executable, "-c", RUN, str(bundle), ":".join(map(str, folders)), *map(str, opened)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env={**environment, "PATH": ""})
    return done.stdout.strip()


def factor(number: int) -> str:
    return f"-DFACTOR={number}"


def test_a_library_is_found_where_the_option_says(bundle: Path, tmp_path: Path) -> None:
    folder = make_library(tmp_path / "a")
    with packager.load(bundle, libraries=[tmp_path, folder]) as loaded:
        assert np.allclose(loaded.run({"x": X})["y"], np.cos(np.maximum(np.sin(X), 0)), atol=1e-6)


def test_places_are_searched_in_order(bundle: Path, tmp_path: Path) -> None:
    own = shutil.copy(bundle, tmp_path)
    option = make_library(tmp_path / "option", "libacme.so.2", 20100, factor(2))
    system = make_library(tmp_path / "system", "libacme.so.2", 20100, factor(4))
    opened = make_library(tmp_path / "opened", "libacme.so.1", 20100, factor(5)) / "libacme.so.1"
    assert run(own, LD_LIBRARY_PATH=str(system)) == "4.0"
    make_library(tmp_path, "libacme.so.2", 20100, factor(3))
    assert run(own, LD_LIBRARY_PATH=str(system)) == "3.0"
    assert run(own, option, LD_LIBRARY_PATH=str(system)) == "2.0"
    assert run(own, option, opened=(opened,), LD_LIBRARY_PATH=str(system)) == "5.0"


def test_what_cannot_be_used_is_passed_over(bundle: Path, tmp_path: Path) -> None:
    old = make_library(tmp_path / "old", "libacme.so.2", 20099)
    lacking = make_library(tmp_path / "lacking", "libacme.so.2", 30000, "-DWITHOUT_COS")
    good = make_library(tmp_path / "good", "libacme.so.1", 20100, factor(2))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "libacme.so.2").write_text("no library")
    assert run(bundle, old, lacking, broken, good, opened=(old / "libacme.so.2",)) == "2.0"


def test_a_missing_library_is_an_error_that_says_where(bundle: Path, tmp_path: Path) -> None:
    name, message, hint = run(bundle, tmp_path, tmp_path).splitlines()
    assert name == "PACKAGER_ERROR_LIBRARY"
    assert message == (
        "libacme.so.2 or libacme.so.1 of version 2.1 or newer, which the model calls, was not found; none is open in"
        f" this process; not in library_path ('{tmp_path}' and 1 more folders); not beside the bundle"
        f" ('{bundle.parent}'); the dynamic linker: libacme.so.2: cannot open shared object file: No such file or"
        " directory; the dynamic linker: libacme.so.1: cannot open shared object file: No such file or directory"
    )
    assert "packager.load(..., libraries=" in hint


@pytest.mark.parametrize(
    ("soname", "version", "flags", "said"),
    [
        ("libacme.so.2", 20099, (), "/libacme.so.2 is version 2.0.99"),
        ("libacme.so.1", 10203, (), "/libacme.so.1 is version 1.2.3"),
        ("libacme.so.2", 20100, ("-DWITHOUT_COS",), "/libacme.so.2 has no acme_cos"),
    ],
)
def test_errors_say_what_was_found(
    soname: str, version: int, flags: tuple[str, ...], said: str, bundle: Path, tmp_path: Path
) -> None:
    folder = make_library(tmp_path / "a", soname, version, *flags)
    name, message, _ = run(bundle, folder).splitlines()
    assert name == "PACKAGER_ERROR_LIBRARY"
    assert f"; {folder}{said};" in message
    path = folder / soname
    assert f"; {soname}, which is open in this process,{said.partition(soname)[2]};" in run(bundle, opened=(path,))


def test_a_file_that_is_no_library_is_named(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "libacme.so.1").write_text("no library")
    assert f"; {tmp_path}/libacme.so.1 cannot be opened: {tmp_path}/libacme.so.1: file too short" in run(
        bundle, tmp_path
    )


def test_a_session_can_be_made_once_the_library_is_there(bundle: Path, tmp_path: Path) -> None:
    own = shutil.copy(bundle, tmp_path)
    made = make_library(tmp_path / "made")
    code = (
        "import shutil, sys, packager\nfrom packager.errors import RunError\n"
        "with packager.load(sys.argv[1], libraries=[]) as loaded:\n"
        "    try: loaded.session()\n    except RunError: print('refused')\n"
        "    shutil.copy(sys.argv[2], sys.argv[3])\n    print(loaded.session().closed)\n"
    )
    argv = [sys.executable, "-c", code, str(own), str(made / "libacme.so.2"), str(tmp_path)]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split() == ["refused", "False"]


def test_threads_create_sessions_at_once(bundle: Path, tmp_path: Path) -> None:
    results: list[np.ndarray] = []
    with packager.load(bundle, libraries=[make_library(tmp_path / "a")]) as loaded:
        threads = [
            threading.Thread(target=lambda: results.append(loaded.session().run({"x": X})["y"])) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 8
    assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.parametrize("folders", [["missing"], ["a file"], "folder", ["a:b"]])
def test_folders_are_checked(folders: object, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").touch()
    (tmp_path / "a:b").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="libraries") as raised:
        packager.load(bundle, libraries=folders)
    assert raised.value.hint


def test_the_manifest_says_what_can_be_done_without(trial: Path) -> None:
    manifest = packager.inspect(trial).manifest
    assert [library.optional for library in manifest.requirements.libraries] == [True]
    assert {primitive.symbol for _, primitive in manifest.primitives() if primitive.libraries}
    for choice in manifest.choices:
        assert choice.fallback is not None
        assert not choice.alternatives[choice.fallback].libraries
        assert all(way.libraries == ("loaderopt_acme",) * ("loader" in way.name) for way in choice.alternatives)


def test_a_session_does_without(trial: Path) -> None:
    with packager.load(trial, libraries=[]) as loaded:
        with pytest.warns(PackagerWarning, match=f"slower alternatives are used.*{NEVER} or"):
            session = loaded.session()
        assert np.allclose(session.run({"x": X})["y"], np.cos(np.maximum(np.sin(X), 0)), atol=1e-6)


def test_a_selection_that_needs_a_missing_library_is_refused(trial: Path) -> None:
    with packager.load(trial, libraries=[]) as loaded:
        choice = loaded.manifest.choices[0]
        names = {bool(way.libraries): way.name for way in choice.alternatives}
        with pytest.raises(RunError, match=f"the selection needs a library: {NEVER} or"):
            loaded.session(selection={choice.name: names[True]})
        without = {c.name: c.alternatives[c.fallback or 0].name for c in loaded.manifest.choices}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loaded.session(selection=without)


def test_a_fallback_that_calls_a_library_is_an_error_of_its_backend(tmp_path: Path) -> None:
    model = save(graph(MODEL), tmp_path / "m.onnx")
    with pytest.raises(BackendError, match=r"loader\(sin\) \| llvm\(relu\) of .* calls a loaded library, and is the"):
        packager.build(model, tmp_path / "m.so", targets=["loaderopt", "loader", "llvm"])


def test_tune_leaves_out_what_calls_a_missing_library(tmp_path: Path) -> None:
    """The plans that call it are measured with their fallbacks, as sessions run them."""
    model = save(graph(MODEL), tmp_path / "m.onnx")
    targets = [f"loaderopt -sonames={NEVER},{LATER}", "spina -us=sin:1", "llvm"]
    trial = packager.build(model, tmp_path / "trial.so", targets=targets, place="trial")
    events: list[Event] = []
    with pytest.warns(PackagerWarning, match="slower alternatives are used"):
        found = tune(trial, rounds=3, libraries=[], progress=events.append).placement
    assert found is not None
    note = f"alternatives that call a missing library are left out: {NEVER} or {LATER} of version 2.1 or newer"
    assert found.warnings[0].startswith(note)
    assert str(events[0]).startswith(f"note: {note}")
    names = [way.name for choice in found.choices for way in choice.alternatives]
    assert sorted(names) == ["llvm(cos)", "llvm(sin+relu)", "spina(sin) | llvm(relu)"]
    assert {choice.chosen for choice in found.choices} <= set(names)
    assert {"loaderopt alone", "spina > loaderopt"} <= {plan.name for plan in found.plans}


def test_an_optional_library_is_used_where_it_is_found(trial: Path, tmp_path: Path) -> None:
    assert run(trial, make_library(tmp_path / "a", LATER, 20100, factor(3))) == "3.0"


def test_a_greedy_build_has_fallbacks(tmp_path: Path) -> None:
    model = save(graph(MODEL), tmp_path / "m.onnx")
    targets = [f"loaderopt -sonames={NEVER},{LATER}", "llvm"]
    bundle = packager.build(model, tmp_path / "m.so", targets=targets)
    manifest = packager.inspect(bundle).manifest
    assert [library.optional for library in manifest.requirements.libraries] == [True]
    assert packager.verify(bundle).ok
    with packager.load(bundle, libraries=[]) as loaded:
        with pytest.warns(PackagerWarning, match=f"slower alternatives are used.*{NEVER} or"):
            session = loaded.session()
        assert np.allclose(session.run({"x": X})["y"], np.cos(np.maximum(np.sin(X), 0)), atol=1e-6)
    assert run(bundle, make_library(tmp_path / "a", LATER, 20100, factor(3))) == "3.0"


@pytest.mark.parametrize("found", [(), (1,), (2,), (1, 2)])
def test_libraries_are_found_or_not_each_for_itself(found: tuple[int, ...], tmp_path: Path) -> None:
    """Two backends with a library each: sin by one, cos by the other."""
    model = save(
        graph("m (float[4,8] x) => (float[4,8] y, float[4,8] z) { y = Sin (x)\n z = Cos (x) }"), tmp_path / "m.onnx"
    )
    targets = [
        "loaderopt -operators=sin -sonames=libone.so.1",
        "loaderopt2 -operators=cos -sonames=libtwo.so.1",
        "llvm",
    ]
    bundle = packager.build(model, tmp_path / "m.so", targets=targets)
    for number in found:
        make_library(tmp_path, f"lib{('one', 'two')[number - 1]}.so.1", 20100, factor(3))
    code = (
        "import sys, warnings, numpy as np, packager\nwarnings.simplefilter('ignore')\n"
        "with packager.load(sys.argv[1], libraries=[]) as loaded:\n"
        "    y, z = loaded.run({'x': np.full((4, 8), 0.5, np.float32)}).values()\n"
        "print(round(y[0, 0] / np.sin(0.5)), round(z[0, 0] / np.cos(0.5)))\n"
    )
    argv = [sys.executable, "-c", code, str(bundle)]
    factors = ["3" if number in found else "1" for number in (1, 2)]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split() == factors

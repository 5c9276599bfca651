"""Conformance suite for backends, as pytest classes: derive a class and set its attributes.

class TestOpenblas(PartitionConformance):
    kind = "openblas"
    values = {"min_rows": 4}
    cases = cases("matmul", "dense")
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

import packager
from packager.backends.attributes import attributes_of
from packager.backends.base import API_VERSION
from packager.backends.contract import violation
from packager.backends.registry import find_backend
from packager.bundle.elf.symbols import GLOBAL, UNDEFINED
from packager.codegen.cache import Cache
from packager.codegen.objects import is_archive, read_objects
from packager.ir.primitives import BackendOutput
from packager.targets.target_list import parse_targets, unavailable
from packager.testing.cases import CASES, Case
from packager.testing.compiling import Compiled, Targets, compile_model, context_for
from packager.testing.models import check_numbers, join, runs_here


class Conformance:
    """Tests of every backend.

    ``values`` has a non-default value for each of its Target attributes; ``cases`` are models that it compiles at least
    in part. If objects take long to compile, ``caches`` enables the user's cache, and ``few`` are the cases compiled
    without, to test reproducibility. Other builds start with an empty cache per process: the runtime is compiled once.
    """

    kind: ClassVar[str]
    values: ClassVar[Mapping[str, Any]] = {}
    cases: ClassVar[Sequence[Case]] = CASES
    caches: ClassVar[bool] = False
    few: ClassVar[Sequence[Case]] = ()

    def targets(self, **attributes: Any) -> Targets:
        """Return the Targets of a build with this backend and these attributes."""
        return [{"kind": self.kind, **attributes}]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test that wants a ``case`` once for each, and one that wants an ``attribute`` likewise."""
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("case", self.cases, ids=lambda case: case.name)
        if "attribute" in metafunc.fixturenames:
            metafunc.parametrize("attribute", attributes_of(find_backend(self.kind).options))

    def available(self) -> None:
        """Fail if the backend cannot be used here: a suite that is skipped tells nothing."""
        target = self._canonical(self.targets())
        reason = unavailable(target)
        assert reason is None, f"{reason.reason}; {reason.hint}" if reason else ""

    def _canonical(self, targets: Targets) -> Any:
        parsed = parse_targets(targets)
        return next(target for target in (*parsed.bases, *parsed.specialized) if target.kind == self.kind)

    def compile(self, cases: Sequence[Case], folder: Path, *, copies: int = 1, **attributes: Any) -> Compiled:
        """Let the backend compile cases as one model."""
        self.available()
        joined = join(cases, copies)
        model = joined.save(folder / "model.onnx")
        cache = Cache.of_user(enabled=self.caches)
        return compile_model(model, self.targets(**attributes), joined.dims(), self.kind, folder / "compiled", cache)

    def build(self, cases: Sequence[Case], folder: Path, *, copies: int = 1, **attributes: Any) -> Any:
        """Build cases as one model, check the bundle and what it computes, and return its manifest."""
        self.available()
        joined = join(cases, copies)
        model, bundle = joined.save(folder / "model.onnx"), folder / "model.so"
        with pytest.MonkeyPatch.context() as patch:
            if not self.caches:
                patch.setenv("XDG_CACHE_HOME", own_cache().name)
            packager.build(model, bundle, targets=self.targets(**attributes), dims=joined.dims())
        manifest = packager.inspect(bundle).manifest
        errors = [finding for finding in packager.verify(bundle).findings if finding.severity == "error"]
        if runs_here(manifest):
            check_numbers(bundle, joined)
        else:
            errors = [finding for finding in errors if not finding.check.startswith("machine.")]
        assert not errors
        return manifest

    def test_is_a_backend(self) -> None:
        backend = find_backend(self.kind)
        assert backend.api_version == API_VERSION
        assert violation(backend, self.kind) is None

    def test_is_found_without_tvm(self) -> None:
        script = (
            "import sys; from packager.backends.registry import find_backend;"
            "import packager.backends.attributes as attributes;"
            f"attributes.attributes_of(find_backend({self.kind!r}).options);"
            "print([name for name in ('tvm', 'onnx', 'torch') if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert (done.stdout.strip(), done.stderr) == ("[]", "")

    def test_attribute_has_another_value(self, attribute: str) -> None:
        declared = attributes_of(find_backend(self.kind).options)[attribute]
        assert attribute in self.values, f"{type(self).__name__}.values has no value for {attribute!r}"
        assert self.values[attribute] != declared.default
        assert "\n" not in declared.doc

    def test_values_are_of_attributes(self) -> None:
        assert set(self.values) == set(attributes_of(find_backend(self.kind).options))

    def test_canonical_target_is_stable(self, attribute: str) -> None:
        parsed = parse_targets(self.targets(**{attribute: self.values[attribute]}))
        assert parse_targets(parsed.to_json()) == parsed

    def test_builds_with_attribute(self, attribute: str, tmp_path: Path) -> None:
        given = self.values[attribute]
        target = self._canonical(self.targets(**{attribute: given}))
        assert getattr(target.options, attribute) == (tuple(given) if isinstance(given, list) else given)
        manifest = self.build(self.cases, tmp_path, **{attribute: given})
        assert next(one for one in manifest.targets if one["kind"] == self.kind) == target.to_manifest()

    def test_compiles_an_empty_list(self, tmp_path: Path) -> None:
        self.available()
        backend: Any = find_backend(self.kind)
        target, context = context_for(self.targets(), self.kind, tmp_path / "work")
        output = (backend.compile if hasattr(backend, "compile") else backend.generate)([], target, context)
        assert output.kind == self.kind
        assert not output.groups
        assert not output.given_back
        assert not [symbol for library in output.static_libraries for symbol in library.symbols]

    def test_provides_what_it_defines(self, case: Case, tmp_path: Path) -> None:
        compiled = self.compile([case], tmp_path)
        wanted = [kernel.symbol for kernel in compiled.kernels]
        wanted += [f.symbol for group in compiled.output.groups.values() for f in group.functions]
        check_symbols(compiled.output, wanted)

    def test_computes_what_numpy_does(self, case: Case, tmp_path: Path) -> None:
        manifest = self.build([case], tmp_path)
        record = next(record for record in manifest.backends if record.kind == self.kind)
        assert record.primitives, f"{self.kind} takes nothing of {case.name}"

    def test_all_cases_in_one_model(self, tmp_path: Path) -> None:
        """Many partitions, each with a duplicate that shares its code."""
        once = {primitive.symbol for primitive in self._primitives(tmp_path / "once", 1)}
        twice = self._primitives(tmp_path / "twice", 2)
        assert {primitive.symbol for primitive in twice} == once
        assert all(primitive.calls % 2 == 0 for primitive in twice)

    def _primitives(self, folder: Path, copies: int) -> Any:
        folder.mkdir()
        manifest = self.build(self.cases, folder, copies=copies)
        return next(record for record in manifest.backends if record.kind == self.kind).primitives

    def test_makes_the_same_everywhere_and_leaves_nothing(self, tmp_path: Path) -> None:
        """Twice in one process, and again in another, with other folders, environment and hash seed."""
        self.available()
        joined = join(self.few or self.cases)
        outputs = []
        for number, times in ((1, 2), (2, 1)):
            base = tmp_path / ("folder" * number)
            places = {name: base / name for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "cwd", "model")}
            for place in places.values():
                place.mkdir(parents=True)
            wanted = {
                "model": str(joined.save(places["model"] / "model.onnx")),
                "targets": self.targets(),
                "dims": joined.dims(),
                "kind": self.kind,
                "workdir": str(base / "workdir"),
                "times": times,
            }
            before = snapshot(places.values())
            outputs += compile_elsewhere(wanted, places, str(number))
            assert snapshot(places.values()) == before
        assert len(outputs) == 3
        assert outputs[0]
        assert all(output == outputs[0] for output in outputs)


_COMPILED: dict[type, Compiled] = {}


class PartitionConformance(Conformance):
    """Tests of a backend that compiles parts of a model, beside the ``llvm`` Target."""

    common_values: ClassVar[Mapping[str, Any]] = {"min_partition_flops": 200, "max_partition_depth": 1}
    # Patterns that no case has, and tests of the backend's own do.
    elsewhere: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        """Add the values of the attributes that all such backends have."""
        super().__init_subclass__()
        cls.values = {**PartitionConformance.common_values, **cls.values}

    def targets(self, **attributes: Any) -> Targets:
        """Return the Targets of a build with this backend and these attributes."""
        return [{"kind": "llvm"}, {"kind": self.kind, **attributes}]

    def _compiled(self, folder: Path) -> Compiled:
        """Return what the backend makes of all cases; they are compiled for the first test of a suite that asks."""
        if type(self) not in _COMPILED:
            _COMPILED[type(self)] = self.compile(self.cases, folder)
        return _COMPILED[type(self)]

    def test_answers_for_every_partition(self, tmp_path: Path) -> None:
        compiled = self._compiled(tmp_path)
        names = [partition.name for partition in compiled.partitions]
        assert Counter([*compiled.output.groups, *compiled.output.given_back]) == Counter(names)
        assert all(reason.strip() for reason in compiled.output.given_back.values())

    def test_every_pattern_is_hit(self, tmp_path: Path) -> None:
        compiled = self._compiled(tmp_path)
        hit = {composite.name for partition in compiled.partitions for composite in partition.composites}
        patterns = find_backend(self.kind).patterns(compiled.target)  # type: ignore[attr-defined]
        assert hit == {pattern.name for pattern in patterns} - self.elsewhere

    def test_what_it_does_not_get_is_compiled_by_others(self, tmp_path: Path) -> None:
        manifest = self.build(self.cases, tmp_path, min_partition_flops=1 << 40)
        assert not [primitive for r in manifest.backends if r.kind == self.kind for primitive in r.primitives]


def check_symbols(output: BackendOutput, wanted: Sequence[str]) -> None:
    """Raise AssertionError unless the libraries provide exactly ``wanted`` and their files define it, once each.

    Clones for higher CPU levels have the same symbols. Objects define nothing else globally; archives may, since only
    the required members are linked.
    """
    for level in sorted({"", *(library.level for library in output.static_libraries)}):
        of_level = [library for library in output.static_libraries if library.level == level]
        provided = Counter(symbol for library in of_level for symbol in library.symbols)
        assert provided == Counter(wanted) if not level else provided <= Counter(wanted)
    for library in output.static_libraries:
        defined: list[str] = []
        data = {module.symbol for module in library.cuda_modules}
        data |= {loaded.symbol for loaded in library.loaded_libraries}
        for file in library.files:
            names, leaks = _definitions(file, file.stat().st_mtime_ns)
            defined += [name for name in names if name in library.symbols]
            assert is_archive(file) or leaks <= {*library.symbols, *data}
        assert Counter(defined) == Counter(library.symbols)


@functools.lru_cache(maxsize=4)  # many tests read the same archive, which may be large
def _definitions(file: Path, _changed: int) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the global definitions of a file, with duplicates, and the symbols that are visible to other files."""
    names: list[str] = []
    leaks: set[str] = set()
    for part in read_objects(file):
        names += [s.name for s in part.symbols if s.section != UNDEFINED and s.binding == GLOBAL]
        leaks.update(part.leaks)
    return tuple(names), frozenset(leaks)


@functools.cache
def own_cache() -> tempfile.TemporaryDirectory[str]:
    """Return a cache folder that starts empty and is deleted with this process."""
    return tempfile.TemporaryDirectory(prefix="conformance-")


def snapshot(folders: Any) -> dict[str, tuple[int, int]]:
    """Return size and time of everything in some folders, by path."""
    found = [path for folder in folders for path in sorted(Path(folder).rglob("*"))]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def compile_elsewhere(wanted: Mapping[str, Any], places: Mapping[str, Path], seed: str) -> list[Any]:
    """Compile in a subprocess with folders of its own; return the description of each output."""
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    environment |= {name: str(path) for name, path in places.items() if name.isupper()}
    environment |= {"PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C"}
    text = json.dumps(wanted)
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from packager.testing import compiling; compiling.main(sys.argv[1])", text],
        cwd=places["cwd"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]

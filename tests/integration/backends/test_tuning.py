"""Candidates of primitive functions: chosen for a session, measured by packager tune, bound into a new file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import Cli
from graphs import graph, save
from installed_backend import installed

import packager
from packager.bundle.manifest import SELECTION_SECTION
from packager.bundle.section import write_manifest
from packager.bundle.tuning_records import Record, Timing, make_records, read_records
from packager.deploy.measure.tune import tune
from packager.errors import BackendError, BundleError, UsageError
from packager.progress import Event

pytestmark = pytest.mark.slow

# Takes relu and sigmoid. Candidate "second" of relu is the fast one; those of sigmoid are equal.
PACER = '''
import dataclasses
import subprocess
from packager.backends.base import API_VERSION, PartitionOptions, Pattern, attribute
from packager.ir.primitives import (
    BackendOutput, Candidates, FunctionGroup, Parameter, PrimitiveFunction, StaticLibrary)

HEAD = """
#include <stdint.h>
float expf(float);
static void spin(int64_t rounds) { for (volatile int64_t i = 0; i < rounds; ++i) {} }
"""
CODE = """
int32_t {symbol}(const float *x, float *y, int64_t choice) {{
  if (choice < 0 || choice >= {count}) return 1;
  spin({spins});
  for (int i = 0; i < 8; i++) y[i] = {value};
  return 0;
}}
"""
SPINS = {"relu": "choice == 1 ? 1000 : 40000", "sigmoid": "1000"}
VALUES = {"relu": "x[i] < 0 ? 0 : x[i]", "sigmoid": "1 / (1 + expf(-x[i]))"}
NAMES = {"fine": ("first", "second", "third"), "twice": ("first", "first"), "none": (), "one": ("first",)}


@dataclasses.dataclass(frozen=True)
class PacerOptions(PartitionOptions):
    names: str = attribute("fine", "Names of the candidates")
    chosen: int = attribute(0, "The candidate to use")


class Pacer:
    api_version = API_VERSION
    kind = "pacer"
    device = "cpu"
    options = PacerOptions
    summary = "for tests"
    merges = False

    def canonical(self, options, base):
        return options

    def probe(self, target):
        return None

    def patterns(self, target):
        from tvm.relax.dpl import is_op, wildcard

        return [Pattern("pacer.relu", is_op("relax.nn.relu")(wildcard())),
                Pattern("pacer.sigmoid", is_op("relax.sigmoid")(wildcard()))]

    def compile(self, partitions, target, context):
        if not partitions:
            return BackendOutput(self.kind)
        names, texts, groups = NAMES[target.options.names], [HEAD], {}
        for part in partitions:
            what = part.composites[0].name.removeprefix("pacer.")
            symbol = f"{part.name}_{what}"
            texts.append(CODE.format(symbol=symbol, count=len(names), spins=SPINS[what], value=VALUES[what]))
            candidates = Candidates(f"pacer {what} float32[8]", names, "pacer-1", target.options.chosen)
            function = PrimitiveFunction(
                symbol, (Parameter("argument", 0), Parameter("argument", 1, written=True)), candidates=candidates)
            groups[part.name] = FunctionGroup((function,))
        (context.workdir / "pacer.c").write_text("".join(texts))
        subprocess.run(["gcc", "-O2", "-fPIC", "-c", "pacer.c"], cwd=context.workdir, check=True)
        symbols = tuple(group.functions[0].symbol for group in groups.values())
        return BackendOutput(self.kind, (StaticLibrary("pacer", (context.workdir / "pacer.o",), symbols),), groups)
'''


@pytest.fixture(scope="module", autouse=True)
def pacer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install the backend for these tests."""
    with installed(tmp_path_factory.mktemp("site"), "pacer", "Pacer", PACER):
        yield


def build(folder: Path, attributes: str = "", output: str = "m.so") -> Path:
    text = "m (float[8] x) => (float[8] y) { r = Relu(x) s = Sigmoid(r) t = Add(s, x) y = Relu(t) }"
    model = save(graph(text), folder / "m.onnx")
    static = {"static": True, "prefix": "m"} if output.endswith(".a") else {}
    work = tempfile.mkdtemp(dir=folder)  # which is kept: all is compiled anew, the runtime aside
    return packager.build(
        model,
        folder / output,
        targets=["llvm", f"pacer {attributes}"],
        keep_workdir=work,
        **static,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def relu(bundle: Path) -> str:
    """The symbol of the function with a fast candidate."""
    entries = packager.inspect(bundle).manifest.selection
    (entry,) = [entry for entry in entries if "relu" in entry.problem]
    return entry.symbol


X = np.linspace(-3, 4, 8, dtype=np.float32)
Y = np.maximum(1 / (1 + np.exp(-np.maximum(X, 0))) + X, 0)


def test_the_manifest_and_the_section_say_which_candidate_is_used(bundle: Path) -> None:
    found = packager.inspect(bundle)
    assert [(entry.problem, entry.revision, entry.candidates, entry.chosen) for entry in found.manifest.selection] == [
        (f"pacer {name} float32[8]", "pacer-1", ("first", "second", "third"), 0) for name in ("relu", "sigmoid")
    ]
    assert found.elf.sections[SELECTION_SECTION].size == 2
    assert packager.verify(bundle).ok
    np.testing.assert_allclose(packager.load(bundle).run([X])["y"], Y, rtol=1e-6)


def test_a_session_chooses(bundle: Path, relu: str) -> None:
    with packager.load(bundle) as loaded:
        for candidate in ("first", "second", "third"):
            with loaded.session(selection={relu: candidate}) as session:
                np.testing.assert_allclose(session.run([X])["y"], Y, rtol=1e-6)
        with pytest.raises(UsageError, match="has no candidate 'secnd'") as wrong:
            loaded.session(selection={relu: "secnd"})
        assert wrong.value.hint == "did you mean 'second'? valid candidates: first, second, third"
        with pytest.raises(UsageError, match="there are no candidates for 'relu'"):
            loaded.session(selection={"relu": "second"})


def test_what_is_fast_is_found_and_bound(bundle: Path, relu: str, tmp_path: Path, cli: Cli) -> None:
    """Both by measuring and by the records of it; and a build is not needed."""
    bound, records, again = tmp_path / "bound.so", tmp_path / "tuning.json", tmp_path / "again.so"
    done = cli("tune", bundle, "-o", records, "--bind", bound, "--rounds", 5, "--json")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    functions = {function["symbol"]: function for function in measured["functions"]}
    assert functions[relu]["before"] == "first"
    assert functions[relu]["calls"] == 2
    first, second, third = functions[relu]["record"]["timings"]
    assert first["candidate"] == "second"
    assert first["slower_us"] == 0
    assert {second["candidate"], third["candidate"]} == {"first", "third"}
    assert min(second["slower_us"], third["slower_us"]) > 1
    assert measured["after_us"] < measured["before_us"]
    found = packager.inspect(bound)
    assert {entry.symbol: entry.chosen for entry in found.manifest.selection}[relu] == 1
    assert packager.verify(bound).ok
    np.testing.assert_array_equal(packager.load(bound).run([X])["y"], packager.load(bundle).run([X])["y"])
    assert found.elf.file_size == bundle.stat().st_size
    done = cli("tune", bundle, "--tuning", records, "--bind", again)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert again.read_bytes() == bound.read_bytes()
    assert build(tmp_path, output="other.so").read_bytes() == bundle.read_bytes()  # which nothing has changed


def test_equal_candidates_stay_as_they_are(bundle: Path) -> None:
    result = tune(bundle, rounds=7)
    (sigmoid,) = [function for function in result.functions if "sigmoid" in function.record.problem]
    assert abs(sigmoid.gain_us) < 5
    assert result.records == make_records(function.record for function in result.functions)


def test_a_bound_on_the_time_leaves_functions_as_they_are(bundle: Path) -> None:
    events: list[Event] = []
    result = tune(bundle, rounds=3, seconds=1e-6, progress=events.append)
    assert len(result.functions) == 1
    assert Event("measuring the candidates of function", 0, 2) in events
    assert Event("time is over: 1 functions stay as they are", note=True) in events


def test_tables(bundle: Path, cli: Cli, relu: str) -> None:
    done = cli("tune", bundle, "--rounds", 3)
    assert done.returncode == 0, done.stderr
    assert "measuring the candidates of function 1 of 2\n" in done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[1] == ["function", "calls", "candidate", "us", "per", "call"]
    assert rows[2][:3] == [relu, "2", "second"]
    assert rows[2][-1] == "chosen"


def test_inspect_shows_what_is_used(bundle: Path, relu: str, cli: Cli) -> None:
    done = cli("inspect", bundle)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [relu, "pacer", "relu", "float32[8]", "first", "1", "of", "3"] in rows


def test_a_section_that_is_not_the_manifests(bundle: Path, tmp_path: Path) -> None:
    """Of a file that was edited, and of one that was edited and sealed again."""
    edited = tmp_path / "m.so"
    found = packager.inspect(bundle)
    content = bytearray(bundle.read_bytes())
    content[found.elf.sections[SELECTION_SECTION].offset] = 2
    edited.write_bytes(content)
    with pytest.raises(BundleError, match="the file is damaged"):
        packager.verify(edited)
    write_manifest(edited, found.manifest, found.section.offset, found.section.size)
    assert [finding.check for finding in packager.verify(edited).findings] == ["integrity.selection"]


def test_in_an_archive(tmp_path: Path, cli: Cli) -> None:
    archive = build(tmp_path, "-chosen=2", "libm.a")
    assert [entry.chosen for entry in packager.inspect(archive).manifest.selection] == [2, 2]
    assert packager.verify(archive).ok
    done = cli("tune", archive)
    assert done.returncode == 2
    assert "is a static archive" in done.stderr


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ("-names=twice", "expected from 1 to 255 names, all different"),
        ("-names=none", "expected from 1 to 255 names, all different"),
        ("-chosen=3", "number 3 is chosen of 3"),
    ],
)
def test_candidates_that_are_none(tmp_path: Path, attributes: str, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        build(tmp_path, attributes)


def test_nothing_to_choose(tmp_path: Path, cli: Cli) -> None:
    alone = build(tmp_path, "-names=one")
    np.testing.assert_allclose(packager.load(alone).run([X])["y"], Y, rtol=1e-6)
    done = cli("tune", alone)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is nothing to tune" in done.stderr


def record(problem: str = "pacer relu float32[8]", device: str = "a GPU", best: str = "second") -> Record:
    return Record(problem, "pacer-1", device, (Timing(best, 0.0, 0.1), Timing("first", 2.0, 0.1)))


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([record(), record(device="another")], "for several devices: a GPU, another"),
        ([record("other")], "match none of its functions"),
        ([], "match none of its functions"),
    ],
)
def test_records_that_do_not_fit(bundle: Path, tmp_path: Path, cli: Cli, records: list[Record], message: str) -> None:
    file = tmp_path / "tuning.json"
    file.write_bytes(make_records(records).to_json())
    done = cli("tune", bundle, "--tuning", file, "--bind", tmp_path / "b.so")
    assert done.returncode == 2
    assert message in done.stderr
    assert not list(tmp_path.glob("*.so*"))


def test_records_are_merged_and_the_last_counts(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_bytes(make_records([record(), record("other")]).to_json())
    second.write_bytes(make_records([record(best="third")]).to_json())
    merged = read_records([first, second])
    assert [(item.problem, item.chosen) for item in merged.records] == [
        ("other", "second"),
        ("pacer relu float32[8]", "third"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ('{"schema_version": 2, "records": []}', "schema_version"),
        ('{"schema_version": 1, "records": [{}]}', "problem"),
        (
            '{"schema_version": 1, "records": [{"problem": "p", "revision": "r", "device": "d", "timings": []}]}',
            "timings",
        ),
    ],
)
def test_bad_record_files(bundle: Path, tmp_path: Path, cli: Cli, text: str, message: str) -> None:
    file = tmp_path / "tuning.json"
    file.write_text(text)
    done = cli("tune", bundle, "--tuning", file, "--bind", tmp_path / "b.so")
    assert done.returncode == 2
    assert str(file) in done.stderr
    assert message in done.stderr
    assert "hint: `packager tune` writes them" in done.stderr


def test_wrong_usage(bundle: Path, tmp_path: Path, cli: Cli) -> None:
    done = cli("tune", bundle, "--tuning", tmp_path / "absent.json")
    assert (done.returncode, "--tuning is for --bind alone" in done.stderr) == (2, True)
    done = cli("tune", bundle, "--tuning", tmp_path / "absent.json", "--bind", tmp_path / "b.so")
    assert (done.returncode, "cannot read" in done.stderr) == (2, True)

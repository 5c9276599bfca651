"""Whatever a file holds, verify says yes or no, and what it accepts is what was built and can be loaded."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from elftools.elf.elffile import ELFFile

import packager
from packager.bundle.elf.tables import SHF_EXECINSTR
from packager.bundle.gpu.fatbin import FATBIN_SECTION
from packager.bundle.manifest import CONSTANTS_SECTION
from packager.deploy.verify.verifier import verify
from packager.errors import BundleError
from tests.artifact.mutants import Mutator
from tests.artifact.programs import AARCH64, INCLUDE, NATIVE, SOURCES, attempt, execute

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
ARM = "llvm -mtriple=aarch64-linux-gnu"
RUN = """
import json, sys
import numpy as np, packager
for path in json.load(open(sys.argv[1])):
    print(path, flush=True)
    with packager.load(path) as bundle, bundle.session() as session:
        (result,) = session.run([np.arange(12, dtype=np.float32).reshape(2, 6)]).values()
        print(json.dumps(result.tolist()), flush=True)
"""


def run_all(bundles: dict[Path, str], folder: Path) -> list[str]:
    """Load and run bundles in one process; return what it printed: a path, then its numbers, for each."""
    (folder / "paths.json").write_text(json.dumps([str(path) for path in bundles]))
    argv = [sys.executable, "-c", RUN, str(folder / "paths.json")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    last = Path(next(line for line in reversed(done.stdout.splitlines()) if line.startswith("/")))
    assert done.returncode == 0, f"{bundles[last]}: {done.stderr[-500:]}"
    return done.stdout.splitlines()


def accepted(bundle: Path, seed: int, count: int, folder: Path) -> dict[Path, str]:
    """Write mutants, and return those that verify, but for the machine, with what was changed."""
    found: dict[Path, str] = {}
    for number, mutant in enumerate(Mutator(bundle, seed).mutants(count)):
        path = folder / f"{number}{bundle.suffix}"
        path.write_bytes(mutant.content)
        try:
            checks = {finding.check for finding in verify(path).findings}
        except BundleError:
            checks = {"damage"}
        if checks <= {"machine.arch", "machine.cuda_driver"}:
            found[path] = mutant.change
        else:
            path.unlink()
    return found


def facts(bundle: Path) -> list[object]:
    """Return code, constants and requirements, by another reader than verify's."""
    data = bundle.read_bytes()
    elf = ELFFile(io.BytesIO(data[data.index(b"\x7fELF") :]))
    hashed = (CONSTANTS_SECTION, FATBIN_SECTION)
    held = [s.data() for s in elf.iter_sections() if s["sh_flags"] & SHF_EXECINSTR or s.name in hashed]
    return [held, packager.inspect(bundle).manifest.requirements]


def cases(*counts: tuple[int, int]) -> list[Any]:
    """Return (seed, number of mutants): the first in CI."""
    first, *others = counts
    return [first, *(pytest.param(*case, marks=pytest.mark.thorough) for case in others)]


@pytest.mark.parametrize(("seed", "count"), cases((0, 100), *((seed, 2000) for seed in range(1, 11))))
def test_a_mutant_is_refused_or_can_be_loaded_and_is_the_same(
    seed: int, count: int, bundle: Path, tmp_path: Path
) -> None:
    passed = accepted(bundle, seed, count, tmp_path)
    expected = run_all({bundle: "the bundle"}, tmp_path)[1]
    printed = run_all(passed, tmp_path)
    differing = [
        passed[Path(path)] for path, numbers in zip(printed[::2], printed[1::2], strict=True) if numbers != expected
    ]
    assert not differing
    assert len(printed) == 2 * len(passed)


@pytest.mark.parametrize(("seed", "count"), cases((0, 100), *((seed, 2000) for seed in range(1, 4))))
def test_a_mutant_for_aarch64_is_refused_or_the_same(
    seed: int, count: int, build: Callable[..., Path], tmp_path: Path
) -> None:
    AARCH64.require()
    bundle = build(targets=[ARM])
    passed = accepted(bundle, seed, count, tmp_path)
    program = tmp_path / "runs"
    execute([AARCH64.cc, f"-I{INCLUDE}", SOURCES / "runs.c", "-o", program, "-ldl"])
    expected, *printed = zip(
        *[iter(execute([*AARCH64.runner, program, bundle, *passed]).splitlines())] * 2, strict=True
    )
    assert [Path(path) for path, _ in printed] == list(passed)
    assert not [passed[Path(path)] for path, numbers in printed if numbers != expected[1]]
    assert not [change for path, change in passed.items() if facts(path) != facts(bundle)]


@pytest.mark.parametrize(("seed", "count"), cases((0, 100), *((seed, 2000) for seed in range(1, 4))))
def test_a_mutant_for_cuda_is_refused_or_holds_the_same(
    seed: int, count: int, build: Callable[..., Path], tmp_path: Path
) -> None:
    """Loading it takes a GPU's driver only for a session; a machine without one can compare what it holds."""
    bundle = build(targets=["cuda -arch=sm_80"])
    passed = accepted(bundle, seed, count, tmp_path)
    assert not [change for path, change in passed.items() if facts(path) != facts(bundle)]
    for path, change in passed.items():
        done = attempt([sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(path)!r})"])
        assert done.returncode == 0, f"{change}: {done.stderr}"


@pytest.mark.parametrize("machine", ["native", "aarch64"])
@pytest.mark.parametrize(("seed", "count"), cases((0, 100), *((seed, 2000) for seed in range(1, 4))))
def test_a_mutant_of_an_archive_is_refused_or_links_to_the_same(
    machine: str, seed: int, count: int, build: Callable[..., Path], tmp_path: Path
) -> None:
    """Not run are those with other relocations and symbols: pointers between code and data are a signature's matter."""
    tools = NATIVE if machine == "native" else AARCH64
    tools.require()
    bundle = build("libown.a", targets=["llvm" if machine == "native" else ARM], static=True, prefix="own")
    passed = accepted(bundle, seed, count, tmp_path)
    main, program = tmp_path / "runs.o", tmp_path / "runs"
    execute([tools.cc, f"-I{INCLUDE}", "-DENTRY=own_bundle_v1", "-c", SOURCES / "runs.c", "-o", main])
    numbers = set()
    for path, change in {bundle: "nothing", **passed}.items():
        done = attempt([tools.cc, main, path, "-lm", "-Wl,--fatal-warnings", "-Wl,-z,text", "-o", program])
        assert done.returncode == 0, f"{change}: {done.stderr}"
        assert facts(path) == facts(bundle), change
        if ".rela" not in change and ".symtab" not in change:
            numbers.add(execute([*tools.runner, program]))
    assert len(numbers) == 1


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Build a model with a symbolic dim; equal calls give the same file."""
    made: dict[str, Path] = {}

    def build(name: str = "model.so", **options: Any) -> Path:
        key = f"{name} {options}"
        if key not in made:
            folder = tmp_path_factory.mktemp("bundle")
            model = onnx.parser.parse_model(
                '<ir_version: 8, opset_import: ["": 17]> g (float[n,6] x) => (float[n,4] y) '
                "{ t = MatMul(x, w) u = Erf(t) y = Softmax(u) }"
            )
            weights = np.random.default_rng(0).standard_normal((6, 4), dtype=np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
            onnx.save(model, folder / "model.onnx")
            made[key] = packager.build(folder / "model.onnx", folder / name, dims={"n": (1, 8)}, **options)
        return made[key]

    return build


@pytest.fixture
def bundle(build: Callable[..., Path]) -> Path:
    """A bundle for the CPU, by two backends."""
    return build()

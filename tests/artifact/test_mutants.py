"""Whatever a file holds, verify says yes or no, and what it accepts is what was built and can be loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import packager
from packager.deploy.verify.verifier import verify
from packager.errors import BundleError
from tests.artifact.mutants import Mutator

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize(
    ("seed", "count"), [(0, 300), *(pytest.param(seed, 2000, marks=pytest.mark.thorough) for seed in range(1, 11))]
)
def test_a_mutant_is_refused_or_can_be_loaded_and_is_the_same(
    seed: int, count: int, bundle: Path, tmp_path: Path
) -> None:
    accepted: dict[Path, str] = {}
    for number, mutant in enumerate(Mutator(bundle, seed).mutants(count)):
        path = tmp_path / f"{number}.so"
        path.write_bytes(mutant.content)
        try:
            passed = verify(path).ok
        except BundleError:
            passed = False
        if passed:
            accepted[path] = mutant.change
        else:
            path.unlink()
    expected = run_all({bundle: "the bundle"}, tmp_path)[1]
    printed = run_all(accepted, tmp_path)
    differing = [
        accepted[Path(path)] for path, numbers in zip(printed[::2], printed[1::2], strict=True) if numbers != expected
    ]
    assert not differing
    assert len(printed) == 2 * len(accepted)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for the CPU with a symbolic dim, by two backends."""
    import onnx

    folder = tmp_path_factory.mktemp("bundle")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n,6] x) => (float[n,4] y) '
        "{ t = MatMul(x, w) u = Erf(t) y = Softmax(u) }"
    )
    weights = np.random.default_rng(0).standard_normal((6, 4), dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, folder / "model.onnx")
    return packager.build(folder / "model.onnx", folder / "model.so", dims={"n": (1, 8)})

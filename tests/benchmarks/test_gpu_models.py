"""gpu/models.py as far as it goes without a GPU: models with dims and their references, with bundles for the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import packager

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["encoder", "halves"])
def test_bundles_for_the_cpu_are_right(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    from benchmarks.gpu.models import make

    made = make(name, tmp_path)
    with packager.load(packager.build(made.path, tmp_path / "made.so", dims=made.dims)) as bundle:
        for inputs, outputs in made.pairs:
            (got,), (want,) = bundle.run(inputs).values(), outputs.values()
            np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())
    assert len(made.pairs) >= 4

"""The ``external`` backend: operators of the user's own, in an archive that is compiled here."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packager.errors import UnsupportedOperatorsError
from packager.testing import Case, PartitionConformance
from packager.testing.compiling import Targets

pytestmark = pytest.mark.slow

SOURCE = """
#include <math.h>
#include <stdint.h>
int32_t scale(const float *x, float *y, int64_t count, float factor) {
  for (int64_t i = 0; i < count; i++) y[i] = factor * x[i];
  return 0;
}
int32_t row_norms(const float *x, float *y, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; i++) {
    float sum = 0;
    for (int64_t j = 0; j < columns; j++) sum += x[i * columns + j] * x[i * columns + j];
    y[i] = sqrtf(sum);
  }
  return 0;
}
"""
DESCRIPTION = """
[library]
name = "conformance"
archive = "libconformance.a"
license = "Apache-2.0"
system_libraries = ["m"]

[[operator]]
domain = "test"
op_type = "Scale"
symbol = "scale"
signature = "pointers"
inputs = [{ name = "x", dtype = "float32" }]
outputs = [{ name = "y", dtype = "float32", shape = "like:x" }]
attributes = { factor = { type = "float", default = 2.0 } }
arguments = ["x", "y", "numel(x)", "factor"]

[[operator]]
domain = "test"
op_type = "RowNorms"
symbol = "row_norms"
signature = "pointers"
inputs = [{ name = "x", dtype = "float32", shape = ["n", "t"] }]
outputs = [{ name = "y", dtype = "float32", shape = ["n"] }]
arguments = ["x", "y", "n", "t"]
"""


def case(name: str, inputs: str, body: str, outputs: str, reference: Any) -> Case:
    """Return a case with operators of the library."""
    return Case(name, "custom", inputs, body, outputs, imports={"test": 1}, reference=reference)


def norms(x: Any) -> Any:
    return np.sqrt((x * x).sum(axis=-1)).astype(np.float32)


CASES = (
    case("scale", "float[2, 3, 5] x", "y = test.Scale(x)", "float[2, 3, 5] y", lambda given: [2 * given["x"]]),
    case(
        "scale_twice",
        "float[n, 5] x",
        "t = test.Scale<factor=0.5>(x) u = Neg(t) y = test.Scale<factor=-3.0>(u)",
        "float[n, 5] y",
        lambda given: [1.5 * given["x"]],
    ),
    case("norms", "float[n, 9] x", "y = test.RowNorms(x)", "float[n] y", lambda given: [norms(given["x"])]),
)


class TestExternal(PartitionConformance):
    kind = "external"
    cases = CASES
    library = Path()

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def compiled_library(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = tmp_path_factory.mktemp("library")
        (folder / "library.c").write_text(SOURCE)
        subprocess.run(["gcc", "-O2", "-fPIC", "-c", "library.c"], cwd=folder, check=True)
        subprocess.run(["ar", "rcsD", "libconformance.a", "library.o"], cwd=folder, check=True)
        (folder / "library.toml").write_text(DESCRIPTION)
        cls.library = folder / "library.toml"
        cls.values = {**cls.values, "libraries": [str(cls.library)]}

    def targets(self, **attributes: Any) -> Targets:
        return [{"kind": "llvm"}, {"kind": self.kind, "libraries": [str(self.library)], **attributes}]

    def test_builds_with_attribute(self, attribute: str, tmp_path: Path) -> None:
        if attribute == "min_partition_flops":
            self.test_what_it_does_not_get_is_compiled_by_others(tmp_path)
        else:
            super().test_builds_with_attribute(attribute, tmp_path)

    def test_what_it_does_not_get_is_compiled_by_others(self, tmp_path: Path) -> None:
        """No one else can: what was taken from it is not supported, and the error names it."""
        with pytest.raises(UnsupportedOperatorsError) as caught:
            self.build(self.cases, tmp_path, min_partition_flops=200)
        told = str(caught.value) + str(caught.value.detail)
        assert "Scale" in told
        assert "RowNorms" in told

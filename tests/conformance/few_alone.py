"""Suites whose cases take long alone: CI builds few of them so, since all are built together elsewhere in the suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from packager.testing import Case, Conformance


class FewAlone(Conformance):
    """A suite that builds ``few`` of its cases alone in CI, and with each attribute; the others alone are thorough."""

    few: tuple[Case, ...]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if metafunc.function.__name__ not in ("test_computes_what_numpy_does", "test_provides_what_it_defines"):
            super().pytest_generate_tests(metafunc)
            return
        alone = [case if case in self.few else pytest.param(case, marks=pytest.mark.thorough) for case in self.cases]
        metafunc.parametrize("case", alone, ids=[case.name for case in self.cases])

    def test_builds_with_attribute(self, attribute: str, tmp_path: Path) -> None:
        """Of few cases: an attribute changes the same for all."""
        self.cases = self.few
        super().test_builds_with_attribute(attribute, tmp_path)

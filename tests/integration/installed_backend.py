"""A backend of a third party that is installed while a test runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from packager.backends import registry as backends


@contextmanager
def installed(folder: Path, kind: str, class_name: str, code: str) -> Iterator[None]:
    """Make ``code`` a module of a distribution in ``folder`` whose backend of this kind is ``class_name``."""
    module = f"{kind}_for_tests"
    (folder / f"{module}.py").write_text(code)
    information = folder / f"{kind}-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {kind}\nVersion: 1\n")
    (information / "entry_points.txt").write_text(f"[packager.backends]\n{kind} = {module}:{class_name}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        backends._third_party.cache_clear()
        yield
    backends._third_party.cache_clear()
    backends._load_third_party.cache_clear()
    sys.modules.pop(module, None)

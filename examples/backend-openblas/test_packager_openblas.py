"""The backend under packager's conformance suite."""

from pathlib import Path

from packager_openblas import BACKEND

from packager.testing import PartitionConformance, cases

ARCHIVE = BACKEND.canonical(BACKEND.options(), None).archive


class TestOpenblas(PartitionConformance):
    kind = "openblas"
    values = {
        "archive": str(Path(ARCHIVE).resolve()),
        "core": "ZEN",
        "bias": False,
        "min_rows": 4,
    }
    cases = [case for case in cases("matmul", "dense") if case.name != "product_broadcast"]

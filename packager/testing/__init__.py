"""Test cases and a conformance suite for backends. Needs pytest. See ``docs/writing-a-backend.md``."""

import pytest

pytest.register_assert_rewrite("packager.testing.conformance", "packager.testing.models")

from packager.testing.cases import CASES, Case, cases  # noqa: E402  # after the line above, or it is for nothing
from packager.testing.conformance import Conformance, PartitionConformance  # noqa: E402

__all__ = ["CASES", "Case", "Conformance", "PartitionConformance", "cases"]

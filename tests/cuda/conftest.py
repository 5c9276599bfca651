"""The C runtime's own tests have the builder that those of its CUDA part use, too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

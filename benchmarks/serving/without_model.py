"""The serving sample without a model: each request is decoded and gets the same outputs, encoded anew.

    python benchmarks/serving/without_model.py MODEL.so --port 8000

Options are those of samples/serving/server.py, whose code this is but for its pool of sessions: the server's own work.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "samples" / "serving"))

import batching
import server

import packager
from packager.deploy.measure.random_inputs import random_inputs


class Prepared(batching.Pool):
    """A pool whose sessions run no request: the outputs are those of one run when it starts."""

    def __init__(self, bundle: packager.Bundle, sessions: int, *, batch: str | None = None) -> None:
        super().__init__(bundle, sessions, batch=batch)
        self._outputs = bundle.run(random_inputs(bundle.manifest, 0))

    async def run(self, _: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs."""
        return self._outputs


if __name__ == "__main__":
    server.Pool = Prepared
    server.main()

"""Joins a cluster of Ray (https://docs.ray.io). Nothing of it is imported unless a cluster is asked for."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

from packager.errors import ToolchainError, UsageError, last_line

RETRIES = 3
"""How often a task is started again whose node or process is lost."""
LOCAL = "ray"


def join(address: str, files: Path | None = None) -> Any:
    """Return the package ray, connected to a cluster: ``ray`` is that of ``$RAY_ADDRESS``, or else one on this machine.

    ``files`` is a folder that nodes get a copy of. Raises UsageError if there is no such cluster, ToolchainError if the
    package ray is missing.
    """
    if not re.fullmatch(r"ray(://.+)?", address):
        raise UsageError(f"--on {address}: is no cluster", hint="give ray, or ray://HOST:PORT")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ToolchainError(
            f"clusters require the package ray: {error}", hint="pip install 'packager[cluster]'"
        ) from None
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            # Without an address Ray would join whatever cluster was started last on this machine.
            address=os.environ.get("RAY_ADDRESS", "local") if address == LOCAL else address,
            runtime_env={"working_dir": str(files)} if files is not None else None,
            log_to_driver=False,
            logging_level="error",
        )
    except (ConnectionError, ValueError, RuntimeError) as failure:
        raise UsageError(
            f"there is no cluster at {address}: {last_line(failure)}",
            hint="start one with: ray start --head; and give --on ray://HOST:10001, or ray with RAY_ADDRESS; "
            "RAY_AUTH_MODE=token where it asks for the token of ~/.ray",
        ) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)  # Ray's own handler ends the process without cancelling anything
    return ray

"""A registry of this machine for tests, and a line to it that can be cut."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = "docker-registry"


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running_registry(folder: Path) -> Iterator[int]:
    """Yield the port of a registry that keeps its data in a folder."""
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), f"CI installs {PROGRAM}"
        pytest.skip(f"{PROGRAM} is not installed")
    port = free_port()
    settings = folder.parent / "registry.yml"
    settings.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}}}}}\n"
        f"http: {{addr: 127.0.0.1:{port}, secret: fixed}}\n"
    )
    with subprocess.Popen(
        [PROGRAM, "serve", settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            for _ in range(200):
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=1):
                    break
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()


class Line:
    """Connections to a port, cut once ``limit`` bytes have passed one way; counts what was ``sent`` and ``got``."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.limit: int | None = None
        self.sent = self.got = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def restart(self, limit: int | None = None) -> None:
        """Count anew, and cut after ``limit`` bytes."""
        self.sent = self.got = 0
        self.limit = limit

    def close(self) -> None:
        """Accept no more connections."""
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            for source, target, name in ((near, far, "sent"), (far, near, "got")):
                threading.Thread(target=self._pass, args=(source, target, name), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                setattr(self, name, getattr(self, name) + len(data))
                if self.limit is not None and getattr(self, name) > self.limit:
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

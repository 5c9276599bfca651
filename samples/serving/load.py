"""Load a server: ``python load.py http://127.0.0.1:8000 MODEL.so --clients 8 --seconds 60``.

Waits for the server, and compares every response with the bundle's own result. Prints requests, errors, latency, and
what the bare session takes.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from protocol import NAMES, read_inputs

import packager


class Client(threading.Thread):
    """Sends requests over one connection, one after the other, until the deadline."""

    def __init__(self, url: str, path: str, body: bytes, expected: dict[str, np.ndarray], deadline: float) -> None:
        super().__init__()
        self._address = urlsplit(url).netloc
        self._path, self._body, self._expected, self._deadline = path, body, expected, deadline
        self.seconds: list[float] = []
        self.errors: list[str] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection(self._address)
        while time.monotonic() < self._deadline:
            start = time.perf_counter()
            try:
                connection.request("POST", self._path, self._body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                body = response.read()
            except OSError as error:
                self.errors.append(f"connection: {error}")
                connection.close()
                continue
            self.seconds.append(time.perf_counter() - start)
            if response.status != 200:
                self.errors.append(f"{response.status}: {body[:200]!r}")
                continue
            outputs = read_inputs({"inputs": json.loads(body)["outputs"]})
            for name, wanted in self._expected.items():
                if not np.allclose(outputs[name], wanted, rtol=1e-4, atol=1e-5):
                    self.errors.append(f"{name} differs from the bundle's own result")
        connection.close()


def _wait_for(url: str) -> None:
    """Return when the server takes requests. Raises OSError if it does not within ten seconds."""
    for attempts_left in reversed(range(100)):
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        try:
            connection.request("GET", "/v2/health/ready")
            return
        except OSError:
            if not attempts_left:
                raise
            time.sleep(0.1)
        finally:
            connection.close()


def main() -> int:
    """Run the clients, print what they saw; 1 if there was any error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    with packager.load(given.bundle, threads=1) as bundle:
        rng = np.random.default_rng(0)
        inputs = {
            info.name: rng.random(info.min_shape).astype(info.dtype)  # one row: a request of one client
            for info in bundle.inputs
        }
        expected = bundle.run(inputs)
        start, runs = time.perf_counter(), 0
        while time.perf_counter() - start < 0.5:
            bundle.run(inputs)
            runs += 1
        bare = (time.perf_counter() - start) / runs
        path = f"/v2/models/{bundle.manifest.model.name}/infer"
    tensors = [
        {"name": name, "datatype": NAMES[array.dtype.name], "shape": list(array.shape), "data": array.ravel().tolist()}
        for name, array in inputs.items()
    ]
    body = json.dumps({"inputs": tensors}).encode()
    _wait_for(given.url)
    deadline = time.monotonic() + given.seconds
    clients = [Client(given.url, path, body, expected, deadline) for _ in range(given.clients)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    seconds = np.array([second for client in clients for second in client.seconds])
    errors = [error for client in clients for error in client.errors]
    if len(seconds):
        middle, late = np.percentile(seconds, [50, 99]) * 1e3
        print(f"{len(seconds)} requests, {len(seconds) / given.seconds:.0f} a second, {len(errors)} errors")
        print(f"latency {middle:.2f} ms, 99 % below {late:.2f} ms; the bare session takes {bare * 1e3:.3f} ms")
    for error in errors[:5]:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors or not len(seconds) else 0


if __name__ == "__main__":
    sys.exit(main())

"""The FastAPI sample under load, beside the bare session.

    python -m benchmarks.serving.http_server --seconds 60

Clients with a connection each send requests and compare every response; then one client sends requests one by one, in
turns with a bare session in its own process and with the same server without a model: its own work, most of it JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import packager
from benchmarks.cpu.models import make
from benchmarks.harness.measure import ROOT, finish
from benchmarks.harness.turns import Model
from benchmarks.serving.figures import Latency, Load, make_report, parser_of

SERVER = ROOT / "samples" / "serving" / "server.py"
WITHOUT_MODEL = ROOT / "benchmarks" / "serving" / "without_model.py"
DATATYPES = {"float32": "FP32", "int64": "INT64"}
HANDED_ON_US = 100.0
"""What the pool may take above session and server: to wake the thread of a session, and the server's thread again."""
ROUND_SECONDS = 1.0
STARTS_IN_SECONDS = 60.0


class Connection:
    """A client of a server: one connection, one request after the other."""

    def __init__(self, port: int, path: str, body: bytes) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._path, self._body = path, body

    def infer(self) -> tuple[int, bytes]:
        """Return the status and the body of a response. Raises OSError."""
        self._connection.request("POST", self._path, self._body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        return response.status, response.read()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def main() -> int:
    """Measure and report."""
    parser = parser_of("serving_http", "The FastAPI sample under load.", rounds=20)
    parser.add_argument("--sessions", type=int, default=2, help="default: 2")
    parser.add_argument("--clients", type=int, default=8, help="default: 8")
    arguments = parser.parse_args()
    workdir: Path = arguments.workdir
    found = {name: _measure(make(name, 1, workdir / "models"), arguments) for name in arguments.models}
    title = f"FastAPI, {arguments.sessions} sessions, {arguments.clients} clients, {arguments.seconds:g} s of load"
    note = "The server's own work is that of the same server without a model."
    return finish(make_report(title, found, HANDED_ON_US, note, ("fastapi", "uvicorn")), arguments)


def _measure(model: Model, arguments: argparse.Namespace) -> tuple[Load, Latency]:
    """Build a bundle, load its server, then time single requests."""
    path = packager.build(model.path, arguments.workdir / f"{model.name}-served.so")
    url, body = f"/v2/models/{packager.inspect(path).manifest.model.name}/infer", _request(model)
    with _serving(SERVER, path, arguments.sessions) as (port, process):
        clients = [Connection(port, url, body) for _ in range(arguments.clients)]
        load = _load(clients, process, model, arguments.seconds)
        with _serving(WITHOUT_MODEL, path, arguments.sessions) as (other, _):
            whole, own = Connection(port, url, body), Connection(other, url, body)
            return load, _latency(whole, own, path, model, arguments.rounds)


def _request(model: Model) -> bytes:
    tensors = [
        {"name": name, "datatype": DATATYPES[array.dtype.name], "shape": array.shape, "data": array.ravel().tolist()}
        for name, array in model.inputs.items()
    ]
    return json.dumps({"inputs": tensors}).encode()


@contextmanager
def _serving(script: Path, bundle: Path, sessions: int) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run a server on loopback; its port and its process. Raises RuntimeError if it does not start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [sys.executable, script, bundle, "--port", str(port), "--sessions", str(sessions)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([*map(str, argv)], env=environment) as process:
        try:
            _wait_for(port, process)
            yield port, process
        finally:
            process.send_signal(signal.SIGTERM)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + STARTS_IN_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("the server does not start")


def _load(clients: Sequence[Connection], process: subprocess.Popen[bytes], model: Model, seconds: float) -> Load:
    """Have clients send requests at the same time, and watch the server's memory."""
    end = time.monotonic() + seconds
    requests, errors = [0] * len(clients), [0] * len(clients)

    def send(index: int) -> None:
        connection = clients[index]
        while time.monotonic() < end:
            requests[index] += 1
            try:
                status, body = connection.infer()
                errors[index] += status != 200 or not _right(body, model)
            except OSError:
                errors[index] += 1
                connection.close()
        connection.close()

    threads = [threading.Thread(target=send, args=(index,)) for index in range(len(clients))]
    for thread in threads:
        thread.start()
    resident = []
    while time.monotonic() < end:
        time.sleep(min(1.0, max(0.0, end - time.monotonic())))
        resident.append(_resident_mib(process.pid))
    for thread in threads:
        thread.join()
    return Load(seconds, sum(requests), sum(errors), resident)


def _right(body: bytes, model: Model) -> bool:
    """Whether a response has what onnxruntime computes."""
    outputs = {tensor["name"]: np.array(tensor["data"], np.float32) for tensor in json.loads(body)["outputs"]}
    wanted = model.outputs.items()
    return all(
        np.abs(outputs[name] - array.ravel()).max() <= 1e-3 * max(np.abs(array).max(), 1e-6) for name, array in wanted
    )


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def _latency(whole: Connection, own: Connection, bundle: Path, model: Model, rounds: int) -> Latency:
    """Time requests one by one, in turns with a bare session and with the server without a model."""
    found = []
    with packager.load(bundle, threads=1) as loaded, loaded.session(threads=1) as session:
        for _ in range(rounds):
            found.append(_microseconds(whole.infer, lambda: session.run(model.inputs), own.infer))
    whole.close()
    own.close()
    return Latency.of(found)


def _microseconds(*calls: Callable[[], object]) -> tuple[float, float, float]:
    """Return the time of each call, of those of a round in which they take turns the one that a tenth is faster than.

    Others may run on the machine, and a server is woken late then.
    """
    taken: list[list[float]] = []
    end = time.perf_counter() + ROUND_SECONDS
    while len(taken) < 3 or time.perf_counter() < end:
        taken.append([])
        for call in calls:
            start = time.perf_counter()
            call()
            taken[-1].append(1e6 * (time.perf_counter() - start))
    whole, bare, own = np.percentile(taken, 10, axis=0)
    return float(whole), float(bare), float(own)


if __name__ == "__main__":
    sys.exit(main())

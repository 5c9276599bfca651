"""The serving sample: its server as a process, and the pool of sessions in this one."""

from __future__ import annotations

import asyncio
import http.client
import importlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packager

from .conftest import ROOT, SAMPLES, Run

pytestmark = pytest.mark.slow
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

SERVING = SAMPLES / "serving"


class Server:
    """A running server: its port, and requests to it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def request(self, path: str, body: bytes | None = None) -> tuple[int, Any]:
        """Return the status and the decoded body of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET" if body is None else "POST", path, body)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def infer(self, *tensors: Any) -> tuple[int, Any]:
        return self.request("/v2/models/digits/infer", json.dumps({"id": "7", "inputs": tensors}).encode())


def tensor(array: np.ndarray, **changes: Any) -> dict[str, Any]:
    """Return the only input of digits as a tensor of a request."""
    return {"name": "image", "datatype": "FP32", "shape": list(array.shape), "data": array.ravel().tolist()} | changes


@pytest.fixture(scope="module")
def server(digits_bundle: Path) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, SERVING / "server.py", digits_bundle, "--batch", "n", "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE) as process:
        running = Server(port)
        for _ in range(300):
            try:
                assert running.request("/v2/health/ready") == (200, {"ready": True})
                break
            except ConnectionRefusedError:
                assert process.poll() is None, process.communicate()[1].decode()
                time.sleep(0.1)
        yield running
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=30)[1].decode()
    assert not errors
    assert process.returncode in (0, -signal.SIGTERM)


def test_responses_are_what_the_bundle_computes(server: Server, digits_bundle: Path, digits_images: np.ndarray) -> None:
    with packager.load(digits_bundle) as bundle:
        for rows in (1, 5, 64):
            images = digits_images[:rows]
            status, body = server.infer(tensor(images, data=images.tolist() if rows == 5 else images.ravel().tolist()))
            assert (status, body["id"], body["model_name"]) == (200, "7", "digits")
            (logits,) = body["outputs"]
            assert (logits["name"], logits["datatype"], logits["shape"]) == ("logits", "FP32", [rows, 10])
            wanted = bundle.run({"image": images})["logits"]
            np.testing.assert_allclose(np.float32(logits["data"]).reshape(rows, 10), wanted, rtol=1e-5, atol=1e-6)


def test_metadata(server: Server) -> None:
    status, body = server.request("/v2/models/digits")
    assert status == 200
    assert body["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    assert body["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}]


def test_what_a_client_did_wrong_is_said(server: Server, digits_images: np.ndarray) -> None:
    image = digits_images[:1]
    wrong = {
        "there is no input 'imag' (did you mean 'image'?)": (tensor(image, name="imag"),),
        "input 'image' is missing": (),
        "input 'image' is given twice": (tensor(image), tensor(image)),
        "axis 3 is 7, expected 8": (tensor(image[..., :7]),),
        "dim n = 65 is outside 1..64": (tensor(digits_images[:65]),),
        "datatype of 'image' is 'FP31'": (tensor(image, datatype="FP31"),),
        "float64": (tensor(image, datatype="FP64"),),
        "shape of 'image' is [-1, 64]": (tensor(image, shape=[-1, 64]),),
        "cannot reshape": (tensor(image, data=[1.0]),),
        "could not convert": (tensor(image, data=["one"]),),
        "a tensor is an object": ("image",),
    }
    for message, tensors in wrong.items():
        status, body = server.infer(*tensors)
        assert (status, message in body["error"]) == (400, True), body
    for sent in (b"", b"{", b"[]", b'{"inputs": 3}', b"\xff"):
        status, body = server.request("/v2/models/digits/infer", sent)
        assert (status, bool(body["error"])) == (400, True)
    assert server.request("/v2/models/other")[0] == 404


def test_requests_at_the_same_time_get_their_own_results(
    server: Server, digits_bundle: Path, digits_images: np.ndarray
) -> None:
    """One in ten does not fit, and fails alone."""
    with packager.load(digits_bundle) as bundle:
        wanted = bundle.run({"image": digits_images[:64]})["logits"]

    def ask(index: int) -> tuple[int, Any]:
        image = digits_images[index % 64][None]
        return server.infer(tensor(image[..., :7] if index % 10 == 3 else image))

    with ThreadPoolExecutor(16) as pool:
        responses = list(pool.map(ask, range(160)))
    for index, (status, body) in enumerate(responses):
        assert status == (400 if index % 10 == 3 else 200)
        if status == 200:
            np.testing.assert_allclose(body["outputs"][0]["data"], wanted[index % 64], rtol=1e-4, atol=1e-5)


def test_the_load_generator_finds_no_error(server: Server, digits_bundle: Path) -> None:
    command = [sys.executable, SERVING / "load.py", f"http://127.0.0.1:{server.port}", digits_bundle, "--seconds", "1"]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert " 0 errors" in done.stdout


@pytest.fixture
def batching(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SERVING)
    return importlib.import_module("batching")


def test_requests_that_wait_share_a_run(batching: Any, digits_bundle: Path, digits_images: np.ndarray) -> None:
    """Up to the bound of the dim: 40 requests of 3 rows are 21 and 19 in a run of at most 64 rows."""
    shared: list[int] = []
    run_together = batching._run

    def counting(session: packager.Session, requests: list[Any]) -> Any:
        shared.append(len(requests))
        return run_together(session, requests)

    batching._run = counting

    async def ask_all(bundle: packager.Bundle) -> list[Any]:
        async with batching.Pool(bundle, 1, batch="n") as pool:
            parts = [digits_images[index : index + 3] for index in range(40)]
            return await asyncio.gather(*(pool.run({"image": part}) for part in parts))

    with packager.load(digits_bundle) as bundle:
        results = asyncio.run(ask_all(bundle))
        for index, result in enumerate(results):
            wanted = bundle.run({"image": digits_images[index : index + 3]})["logits"]
            np.testing.assert_allclose(result["logits"], wanted, rtol=1e-4, atol=1e-5)
    assert sum(shared) == 40
    assert max(shared) == 21


def test_more_than_may_wait_are_refused(batching: Any, digits_bundle: Path, digits_images: np.ndarray) -> None:
    async def ask_all(bundle: packager.Bundle) -> list[Any]:
        async with batching.Pool(bundle, 1, waiting=4) as pool:
            asked = (pool.run({"image": digits_images[:64]}) for _ in range(50))
            return await asyncio.gather(*asked, return_exceptions=True)

    with packager.load(digits_bundle) as bundle:
        results = asyncio.run(ask_all(bundle))
    refused = [result for result in results if isinstance(result, batching.BusyError)]
    assert len(refused) + sum(isinstance(result, dict) for result in results) == 50
    assert 0 < len(refused) <= 46


@pytest.mark.parametrize("batch", ["m", ""])
def test_a_dim_that_counts_no_rows_is_refused(batching: Any, digits_bundle: Path, batch: str) -> None:
    with packager.load(digits_bundle) as bundle, pytest.raises(ValueError, match="not the first axis"):
        batching.Pool(bundle, 1, batch=batch)


def test_a_bundle_with_states_is_refused(tmp_path: Path, run_cli: Run) -> None:
    onnx = pytest.importorskip("onnx")
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] s, float[2] x) => (float[2] y) { y = Add(s, x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "counter.onnx")
    run_cli(["build", tmp_path / "counter.onnx", "-o", tmp_path / "counter.so", "--state", "s=y"])
    command = [sys.executable, SERVING / "server.py", tmp_path / "counter.so"]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "keeps states in its sessions" in done.stderr

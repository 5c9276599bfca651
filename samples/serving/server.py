"""Serve a bundle over HTTP with FastAPI, by the Open Inference Protocol: ``python server.py MODEL.so --port 8000``."""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from batching import BusyError, Pool
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from protocol import BadRequestError, metadata, read_inputs, write_outputs

import packager

MOST_BYTES = 64 * 2**20
"""Larger requests are refused."""


def make_app(bundle: packager.Bundle, sessions: int, batch: str | None) -> FastAPI:
    """Return the application that serves a bundle. Raises ValueError for a bundle or ``batch`` that it cannot serve."""
    if bundle.states:
        raise ValueError(f"{bundle.path.name} keeps states in its sessions: each client would need one of its own")
    name, described = bundle.manifest.model.name, metadata(bundle)
    pool = Pool(bundle, sessions, batch=batch)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with pool:
            yield

    app = FastAPI(title=f"packager: {name}", lifespan=lifespan)

    @app.get("/v2/health/live")
    @app.get("/v2/health/ready")
    @app.get(f"/v2/models/{name}/ready")
    async def health() -> dict[str, bool]:
        return {"ready": True}  # requests are taken when the pool has its sessions

    @app.get(f"/v2/models/{name}")
    async def describe() -> dict[str, Any]:
        return described

    @app.post(f"/v2/models/{name}/infer")
    async def infer(request: Request) -> JSONResponse:
        try:
            body = await _read(request)
            outputs = await pool.run(read_inputs(body))
        except (BadRequestError, packager.PackagerError) as error:
            return JSONResponse({"error": str(error)}, 400)
        except BusyError:
            return JSONResponse({"error": "too many requests wait; try again"}, 503, {"Retry-After": "1"})
        return JSONResponse(write_outputs(name, body.get("id"), outputs))

    return app


async def _read(request: Request) -> Any:
    """Return the body of a request, decoded. Raises BadRequestError."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise BadRequestError(f"a request has {MOST_BYTES} bytes at most")
    try:
        return json.loads(body)
    except ValueError as error:
        raise BadRequestError(f"not JSON: {error}") from None


def main() -> None:
    """Serve the bundle of the command line until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--sessions", type=int, default=2, help="runs at the same time: one for each core")
    parser.add_argument("--batch", metavar="DIM", help="let waiting requests share a run along this dim")
    given = parser.parse_args()
    with packager.load(given.bundle, threads=1) as bundle:
        try:
            app = make_app(bundle, given.sessions, given.batch)
        except ValueError as error:
            parser.error(str(error))
        uvicorn.run(app, host=given.host, port=given.port, log_level="warning")


if __name__ == "__main__":
    main()

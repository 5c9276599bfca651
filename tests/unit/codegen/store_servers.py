"""HTTP servers of a folder for tests of shared caches: sound ones, and ones that are stuck, slow or wrong."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Reply = Callable[[BaseHTTPRequestHandler], bool]


@contextlib.contextmanager
def served(folder: Path, *, writable: bool = False, instead: Reply | None = None) -> Iterator[str]:
    """Yield the URL of a server of a folder. ``instead`` answers a request itself if it returns True."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._get(body=False)

        def do_GET(self) -> None:
            self._get(body=True)

        def _get(self, *, body: bool) -> None:
            if instead is not None and instead(self):
                return
            path = folder / self.path.lstrip("/")
            content = path.read_bytes() if path.is_file() else b"absent"
            self.send_response(200 if path.is_file() else 404)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def do_PUT(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if instead is not None and instead(self):
                return
            if writable:
                path = folder / self.path.lstrip("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            self.send_response(201 if writable else 405)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()

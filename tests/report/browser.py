"""A headless Chromium by its DevTools protocol over pipes: no driver, no network, no package."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--hide-scrollbars"),
    *("--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--mute-audio"),
)


def find_browser() -> str | None:
    """Return the path of a browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def _pipe() -> tuple[int, int]:
    """Return a pipe whose descriptors are none of those that the browser has for its own."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


class Browser:
    """One page. ``problems`` are its exceptions, its console's errors and warnings, and requests to the network."""

    def __init__(self, program: str, profile: Path, width: int = 1360, height: int = 860) -> None:
        self.problems: list[str] = []
        self._number = 0
        self._waiting = b""
        from_us, self._out = _pipe()
        self._in, to_us = _pipe()
        # As root Chromium's sandbox does not start; the page is ours.
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [program, *FLAGS, *sandbox, f"--user-data-dir={profile}"]
        # Its pipes are descriptors 3 and 4.
        script = f'exec 3<&{from_us} 4>&{to_us}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command, "about:blank"],
            pass_fds=(from_us, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self._height = height
        self.resize(width)

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _next(self) -> Any:
        while b"\0" not in self._waiting:
            read = os.read(self._in, 1 << 20)
            assert read, "the browser has ended"
            self._waiting += read
        text, _, self._waiting = self._waiting.partition(b"\0")
        return json.loads(text)

    def _note(self, event: Any) -> None:
        method, about = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(about["exceptionDetails"]))
        if method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(about["args"]))
        if method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.problems.append(about["entry"]["text"])
        if method == "Network.requestWillBeSent" and not about["request"]["url"].startswith(("file:", "data:")):
            self.problems.append(f"asks the network for {about['request']['url']}")

    def resize(self, width: int) -> None:
        """Make the window so many pixels wide."""
        size = {"width": width, "height": self._height}
        self.call("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False)

    def open(self, page: Path, anchor: str = "") -> None:
        """Show a page anew, and wait until it says that it is ready."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=f"{page.as_uri()}{anchor}")
        self.wait("document.documentElement.dataset.ready === 'true'")

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression; a promise's when it is there."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 30) -> None:
        """Wait until a JavaScript expression is true."""
        script = (
            f"new Promise((done) => {{ const end = performance.now() + {seconds * 1000}; const ask = () => {{"
            f" let is = false; try {{ is = Boolean({condition}); }} catch {{ is = false; }}"
            " if (is || performance.now() > end) done(is); else setTimeout(ask, 20); }; ask(); })"
        )
        assert self.evaluate(script), f"in vain waited for {condition}"

    def settle(self) -> None:
        """Wait until what was scheduled is drawn."""
        frame = "requestAnimationFrame(() => requestAnimationFrame(done))"
        self.evaluate(f"new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {frame})))")

    def key(self, name: str, text: str = "") -> None:
        """Press a key; ``text`` is what it types."""
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, **typed)

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self.call("Input.insertText", text=text)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send an event of the mouse: mousePressed, mouseReleased, mouseMoved, mouseWheel."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector: str) -> None:
        """Click on the middle of an element."""
        box = f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
        x, y = self.evaluate(f"{box} return [b.x + b.width / 2, b.y + b.height / 2]; }})()")
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", buttons=int(kind == "mousePressed"), clickCount=1)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag with the left button."""
        self.mouse("mousePressed", *start, button="left", buttons=1, clickCount=1)
        self.mouse("mouseMoved", *end, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", buttons=0, clickCount=1)

    def screenshot(self, path: Path) -> None:
        """Write what is shown as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """End the browser."""
        self._session = None
        with contextlib.suppress(AssertionError, OSError):  # it ends before it answers
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)

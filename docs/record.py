"""Record commands on a terminal and draw them as one animated SVG: ``python docs/record.py cutlass``.

The commands run under a pseudo-terminal, with a cache and a home of their own that are empty. What they print, and
when, is written as a cast of asciinema (version 2); the SVG shows its screens, waits shortened. Pictures of the
documentation are recordings of this kind: nothing in them is written by hand but the commands.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import select
import shutil
import struct
import sys
import tempfile
import termios
import time
from dataclasses import dataclass, field
from fcntl import ioctl
from pathlib import Path

from terminal import Frame, Screen, draw

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT = 116, 30
FRAME_SECONDS = 0.2
"""Screens that are shown for less are left out."""


@dataclass(frozen=True)
class Scene:
    """Commands of a recording, and how many times as fast as it was it is shown."""

    commands: tuple[str, ...]
    title: str
    speed: float
    before: tuple[str, ...] = ()  # not shown
    held: float = 3.0  # seconds of the last screen


BERT = "packager build bert.onnx --dim n=1:8 --precision fp16"
SCENES = {
    "cutlass": Scene(
        before=(f"{sys.executable} {ROOT}/samples/bert_cutlass/make_model.py -o bert.onnx",),
        commands=(
            f'{BERT} -t "cuda -arch=sm_80" -t cutlass --dry-run',
            f'{BERT} -t "cuda -arch=sm_80" -t "cutlass -candidates=1" -o bert.so',
            f'{BERT} -t "cuda -arch=sm_80" -t "cutlass -candidates=1" -o again.so',
        ),
        title="a first build with CUTLASS kernels, and a second one",
        speed=12,
    ),
}


@dataclass
class Recording:
    """What a terminal was sent, as (seconds, text) from the start on."""

    events: list[tuple[float, str]] = field(default_factory=list)
    start: float = field(default_factory=time.monotonic)

    def add(self, text: str) -> None:
        """Note a text that was sent now."""
        self.events.append((time.monotonic() - self.start, text))

    def write(self, path: Path, title: str) -> None:
        """Write it as a cast."""
        header = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": title}
        lines = [json.dumps(header), *(json.dumps([round(at, 3), "o", text]) for at, text in self.events)]
        path.write_text("\n".join(lines) + "\n")

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Read a cast."""
        _, *lines = path.read_text().splitlines()
        return cls([(float(at), str(text)) for at, _, text in map(json.loads, lines)])


def run(command: str, recording: Recording, folder: Path, environment: dict[str, str]) -> None:
    """Run a command of a shell on a terminal of its own. Raises SystemExit if it fails."""
    recording.add(f"\x1b[32m$\x1b[0m \x1b[1m{command}\x1b[0m\r\n")
    process, terminal = pty.fork()
    if process == 0:
        ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))  # before the command can ask
        os.chdir(folder)
        os.execvpe("bash", ["bash", "-c", command], environment)
    waiting = b""
    while True:
        select.select([terminal], [], [])
        try:
            read = os.read(terminal, 1 << 16)
        except OSError:  # Linux: the last one has closed it
            break
        waiting += read
        try:
            text, waiting = waiting.decode(), b""
        except UnicodeDecodeError:  # the rest of a character comes
            continue
        recording.add(text)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code:
        raise SystemExit(f"{command}: ended with {code}: {recording.events[-1][1].strip()}")


def record(scene: Scene, recording: Recording) -> None:
    """Run a scene's commands in an empty folder, with an empty home and cache. Raises SystemExit if one fails."""
    folder = Path(tempfile.mkdtemp())
    try:
        home = folder / "home"
        home.mkdir()
        kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "PACKAGER_SANDBOX") if name in os.environ}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = kept | {"PATH": path, "HOME": str(home), "TERM": "xterm-256color", "PYTHONUTF8": "1"}
        for command in scene.before:
            run(command, Recording(), folder, environment)
        for command in scene.commands:
            run(command, recording, folder, environment)
            recording.add("\r\n")
    finally:
        shutil.rmtree(folder)


def frames(recording: Recording, scene: Scene) -> list[Frame]:
    """Return the screens of a recording, with the seconds at which each is shown."""
    screen = Screen(WIDTH)
    shown: list[Frame] = []
    played = before = 0.0
    for at, text in recording.events:
        played += (at - before) / scene.speed
        before = at
        if text.startswith("\x1b[32m$"):
            played += 1.5  # long enough to read what was there
        screen.feed(text)
        frame = Frame(played, screen.lines())
        if shown and played - shown[-1].seconds < FRAME_SECONDS:
            frame = Frame(shown.pop().seconds, frame.lines)
        shown.append(frame)
    return shown


def main() -> None:
    """Record a scene, or draw one that is recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scene", choices=SCENES)
    parser.add_argument("-o", "--output", type=Path, help="the SVG; default: docs/images/terminal-SCENE.svg")
    parser.add_argument("--cast", type=Path, help="a cast to write, or with --draw to read")
    parser.add_argument("--draw", action="store_true", help="run nothing: draw what --cast has")
    given = parser.parse_args()
    scene = SCENES[given.scene]
    if given.draw:
        recording = Recording.read(given.cast)
    else:
        recording = Recording()
        try:
            record(scene, recording)
        finally:
            if given.cast:
                recording.write(given.cast, scene.title)
    output = given.output or ROOT / "docs" / "images" / f"terminal-{given.scene}.svg"
    title = f"{scene.title}: {scene.speed:g} times as fast as it was"
    output.write_text(draw(frames(recording, scene), WIDTH, title, scene.held))


if __name__ == "__main__":
    main()

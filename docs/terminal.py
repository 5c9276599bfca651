"""What a terminal shows of the text that it is sent, and an animated SVG of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from xml.sax.saxutils import escape

COLORS = ("#6e7681", "#ff7b72", "#7ee787", "#e3b341", "#79c0ff", "#d2a8ff", "#76e3ea", "#e6edf3")
PAPER, INK = "#0d1117", "#e6edf3"
COLUMN, LINE, MARGIN, BAR = 8.4, 19, 16, 34
SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|([\r\n\b])|([^\x00-\x1f\x7f]+)|(.)", re.DOTALL)


@dataclass(frozen=True)
class Style:
    """How a character is drawn; ``color`` is an entry of COLORS, or a color of its own."""

    color: str = INK
    bold: bool = False
    faint: bool = False

    def changed(self, codes: Sequence[int]) -> Style:
        """Return the style after an SGR sequence. Raises ValueError for what is not known."""
        style, left = self, list(codes) or [0]
        while left:
            code = left.pop(0)
            if code == 0:
                style = Style()
            elif code == 1:
                style = replace(style, bold=True)
            elif code in (2, 22):
                style = replace(style, faint=code == 2, bold=style.bold and code == 2)
            elif code == 39:
                style = replace(style, color=INK)
            elif 30 <= code <= 37 or 90 <= code <= 97:
                style = replace(style, color=COLORS[code % 10])
            elif code == 38 and left[:1] == [5]:
                style, left = replace(style, color=_of_256(left[1])), left[2:]
            elif code == 38 and left[:1] == [2]:
                style, left = replace(style, color=f"#{left[1]:02x}{left[2]:02x}{left[3]:02x}"), left[4:]
            elif code not in (3, 23, 24):
                raise ValueError(f"SGR code {code}")
        return style


def _of_256(number: int) -> str:
    """Return a color of the palette of 256."""
    if number < 16:
        return COLORS[number % 8]
    if number >= 232:
        return f"#{8 + 10 * (number - 232):02x}" + f"{8 + 10 * (number - 232):02x}" * 2
    levels = (0, 95, 135, 175, 215, 255)
    rest = number - 16
    return "#" + "".join(f"{levels[part]:02x}" for part in (rest // 36, rest // 6 % 6, rest % 6))


Cells = tuple[tuple[str, Style], ...]


@dataclass(frozen=True)
class Frame:
    """What is shown from a time on."""

    seconds: float
    lines: tuple[Cells, ...]


class Screen:
    """A terminal of unlimited height that never scrolls: what ``rich`` needs of one."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: list[dict[int, tuple[str, Style]]] = [{}]
        self._row = self._column = 0
        self._style = Style()

    def feed(self, text: str) -> None:
        """Show a text with its control sequences. Raises ValueError for those that are not known."""
        for sequence, command, control, plain, other in SEQUENCE.findall(text):
            if command:
                self._control(sequence, command)
            elif control == "\r":
                self._column = 0
            elif control == "\b":
                self._column = max(self._column - 1, 0)
            elif control == "\n":
                self._down()
            elif plain:
                for character in plain:
                    self._put(character)
            else:
                raise ValueError(f"control character {other!r}")

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append({})

    def _put(self, character: str) -> None:
        if self._column == self._width:
            self._column = 0
            self._down()
        self._rows[self._row][self._column] = (character, self._style)
        self._column += 1

    def _control(self, sequence: str, command: str) -> None:
        if sequence.startswith("?") and command in "hl":  # the cursor is not drawn
            return
        numbers = [int(part or 0) for part in sequence.split(";")] if sequence else []
        count = max(numbers[0], 1) if numbers else 1
        if command == "m":
            self._style = self._style.changed(numbers)
        elif command == "A":
            self._row = max(self._row - count, 0)
        elif command == "C":
            self._column = min(self._column + count, self._width - 1)
        elif command == "K":
            kind = numbers[0] if numbers else 0
            kept = {0: range(self._column), 1: range(self._column + 1, self._width), 2: range(0)}[kind]
            self._rows[self._row] = {at: cell for at, cell in self._rows[self._row].items() if at in kept}
        else:
            raise ValueError(f"control sequence {sequence}{command}")

    def lines(self) -> tuple[Cells, ...]:
        """Return what each line shows, spaces at its end left out."""
        blank = (" ", Style())
        return tuple(tuple(row.get(at, blank) for at in range(max(row, default=-1) + 1)) for row in self._rows)


def draw(frames: Sequence[Frame], width: int, title: str, held: float) -> str:
    """Return an SVG that shows the frames one after the other, the last one for ``held`` seconds, again and again.

    Where nothing is animated it shows the last frame.
    """
    height = max(len(frame.lines) for frame in frames)
    wide, high = round(width * COLUMN + 2 * MARGIN), BAR + height * LINE + MARGIN
    known: dict[Cells, int] = {}
    for frame in frames:
        for cells in frame.lines:
            if cells:
                known.setdefault(cells, len(known))
    total = frames[-1].seconds + held
    last = len(frames) - 1
    steps = "".join(
        f"{100 * frame.seconds / total:.3f}%{{transform:translateX({(last - index) * wide}px)}}"
        for index, frame in enumerate(frames)
    )
    if frames[0].seconds:
        steps = f"0%{{transform:translateX({last * wide}px)}}" + steps
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" fill="{INK}" role="img">',
        f"<title>{escape(title)}</title>",
        "<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        "white-space:pre}.b{font-weight:bold}.f{opacity:.65}",
        f"@keyframes play{{{steps}100%{{transform:translateX(0)}}}}",
        f"#play{{animation:play {total:.1f}s step-end infinite}}",
        "@media (prefers-reduced-motion:reduce){#play{animation:none}}</style>",
        f'<rect width="{wide}" height="{high}" rx="8" fill="{PAPER}"/>',
        f'<text x="{wide / 2}" y="22" text-anchor="middle" class="f">{escape(title)}</text>',
        "<defs>",
        *(f'<g id="l{number}">{_line(cells)}</g>' for cells, number in known.items()),
        "</defs>",
        f'<svg y="{BAR}" width="{wide}" height="{high - BAR}"><g id="play">',
    ]
    for index, frame in enumerate(frames):
        uses = "".join(
            f'<use href="#l{known[cells]}" y="{row * LINE}"/>' for row, cells in enumerate(frame.lines) if cells
        )
        parts.append(f'<g transform="translate({(index - last) * wide + MARGIN})">{uses}</g>')
    parts.append("</g></svg></svg>")
    return "\n".join(parts) + "\n"


def _line(cells: Cells) -> str:
    """Return a line as text whose runs of one style are placed by column, whatever the font's width is."""
    runs: list[tuple[int, str, Style]] = []
    for at, (character, style) in enumerate(cells):
        if runs and runs[-1][2] == style:
            runs[-1] = (runs[-1][0], runs[-1][1] + character, style)
        else:
            runs.append((at, character, style))
    return "".join(_run(at, text, style) for at, text, style in runs if text.strip())


def _run(at: int, text: str, style: Style) -> str:
    start = len(text) - len(text.lstrip())
    text = text.strip()
    names = " ".join(name for name, on in (("b", style.bold), ("f", style.faint)) if on)
    more = (f' class="{names}"' if names else "") + ("" if style.color == INK else f' fill="{style.color}"')
    x, length = (at + start) * COLUMN, len(text) * COLUMN
    return f'<text x="{x:.1f}" y="14" textLength="{length:.1f}"{more}>{escape(text)}</text>'

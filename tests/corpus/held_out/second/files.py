"""The files of the second set, by name."""

from __future__ import annotations

from ...case import Case
from ...exporting import cases
from .programs import PROGRAMS
from .sound import SOUND
from .text import TEXT
from .tools import TOOLS
from .vision import VISION

SECOND: list[Case] = [*cases([*TEXT, *VISION, *SOUND, *PROGRAMS]), *TOOLS]

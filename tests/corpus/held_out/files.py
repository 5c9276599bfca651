"""The files that were held out, by name."""

from __future__ import annotations

from ..case import Case
from ..exporting import cases
from .second.files import SECOND
from .sound import SOUND
from .text import TEXT
from .third.files import THIRD
from .tools import TOOLS
from .transformers_exporter import EXPORTED
from .vision import VISION, timm_cases

HELD_OUT: list[Case] = [*cases([*TEXT, *VISION, *SOUND]), *timm_cases(), *TOOLS, *EXPORTED, *SECOND, *THIRD]

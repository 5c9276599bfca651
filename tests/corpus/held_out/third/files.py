"""The files of the third set, by name."""

from __future__ import annotations

from ...case import Case
from .classic import TOOLS
from .optimum import OPTIMUM

THIRD: list[Case] = [*OPTIMUM, *TOOLS]

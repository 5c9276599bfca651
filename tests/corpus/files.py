"""All files of the corpus, by name."""

from __future__ import annotations

from .case import Case
from .classic import CLASSIC
from .decoders import DECODERS
from .derived import derived
from .exporting import cases
from .held_out.files import HELD_OUT
from .keras_models import KERAS
from .nets import NETS
from .sequences import SEQUENCES
from .text import TEXT
from .toolkits import TOOLKITS
from .vision import VISION

_TORCH = {case.name: case for case in cases([*TEXT, *DECODERS, *VISION, *NETS, *SEQUENCES])}
CASES: dict[str, Case] = {
    **_TORCH,
    **{case.name: case for case in [*derived(_TORCH), *CLASSIC, *KERAS, *TOOLKITS, *HELD_OUT]},
}

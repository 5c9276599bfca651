"""The table of architectures: a name, and the function that makes the module, its inputs and its dynamic axes."""

from __future__ import annotations

from .decoder_models import DECODERS
from .example import Maker
from .own_models import OWN
from .text_models import TEXT
from .vision_models import VISION

ARCHITECTURES: dict[str, Maker] = {**TEXT, **DECODERS, **VISION, **OWN}

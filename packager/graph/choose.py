"""The call that takes one of two values, by a run-time extent that is 1 or 0: ``If`` between lowering and planning.

Its arguments are the value for 1, that for 0, and the extent. The planner turns it into a choice of memory: no code.
"""

from __future__ import annotations

from typing import Any

from packager.graph.dataflow import called_function

CHOOSE = "packager_choose"


def is_computed(value: Any) -> bool:
    """Tell whether an expression is a call of a function, rather than a choice between two values."""
    return called_function(value) not in (None, CHOOSE)

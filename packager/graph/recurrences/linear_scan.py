"""The Relax operator ``packager.linear_scan``: a linear recurrence, as state space models and gated units have it.

``h[t] = decay[t] * h[t - 1] + update[t]`` along the first axis, for each element (Gu and Dao 2023, "Mamba", section 2;
De et al. 2024, "Griffin", section 2.4). Before the first step h is zero.
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir import Op

from packager.graph.own_operators import register

NAME = "relax.packager.linear_scan"
OPERATOR = NAME.removeprefix("relax.")  # as operator_of has it


def linear_scan(decay: Any, update: Any) -> relax.Call:
    """Return the call on tensors [steps, ...] of one shape; the result holds h of all steps."""
    return relax.Call(Op.get(NAME), [decay, update])


def _infer(call: Any, _builder: Any) -> Any:
    return call.args[1].ty


register(NAME, "Linear recurrence along the first axis", ("decay", "update"), _infer)

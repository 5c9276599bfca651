"""The Relax operator ``packager.forward_substitution``: rows of a matrix are replaced by what those before come to.

``w[i, :i] = a[i, :i] + a[i, :i] w[:i, :i]`` for each row in turn, where w is a at first. Of a strictly lower triangular
matrix that is the inverse of (1 - a), less 1: the chunks of a delta rule (Yang et al. 2024, "Parallelizing Linear
Transformers with the Delta Rule over Sequence Length", section 3.2).
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir import Op

from packager.graph.own_operators import register

NAME = "relax.packager.forward_substitution"
OPERATOR = NAME.removeprefix("relax.")  # as operator_of has it


def forward_substitution(matrices: Any) -> relax.Call:
    """Return the call on a tensor [..., n, n]; the result has its shape and type."""
    return relax.Call(Op.get(NAME), [matrices])


def _infer(call: Any, _builder: Any) -> Any:
    return call.args[0].ty


register(NAME, "Forward substitution of matrices", ("matrices",), _infer)

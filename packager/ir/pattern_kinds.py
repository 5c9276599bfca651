"""How TVM's FuseOps may fuse a PrimFunc: values of the attribute ``op_pattern``, where its analysis finds another one.

Source: ``OpPatternKind`` in TVM's include/tvm/relax/op_attr_types.h.
"""

from __future__ import annotations

ELEMENTWISE = 0
"""As ``BROADCAST``, and with what makes an operand, if that is fusable with elementwise functions."""
BROADCAST = 1
"""As ``INJECTIVE``, and with sums that read its elements."""
INJECTIVE = 2
"""With what makes its operands and with what reads its elements."""
SUMS = 3
"""With what makes its operands, up to functions that are ``BROADCAST``."""
OUT_ELEMENTWISE_FUSABLE = 4
"""With elementwise functions that follow."""
OPAQUE = 8
"""With nothing."""

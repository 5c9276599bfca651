"""The values that stages hand on; no TVM at import, no behavior.

``model`` (imported, prepared, partitioned, lowered), ``primitives`` (partitions and what backends return),
``call_plan``, ``constants``, ``link_plan``; ``shapes``, ``preparation``.
"""

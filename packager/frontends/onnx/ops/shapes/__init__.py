"""Shape operands that the graph computes.

``arithmetic`` evaluates them at import, by ``rules`` of operators and those of ``quotients``; ``checked_extents`` and
``slice_range`` are converters.
"""

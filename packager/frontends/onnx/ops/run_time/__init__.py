"""Extents and branches that a run decides.

``extents`` holds what the others read, ``deciding`` finds integers that decide shapes, ``shapes`` reads the shape
operands of other operators, ``sizes`` and ``choose`` are converters.
"""

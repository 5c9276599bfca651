"""Checks each static library and links what its symbols reach into one object.

``prepare`` calls ``checks`` and ``linking`` on a ``job``; ``cpu_levels``: libraries with clones for several levels.
"""

"""Placement: who compiles what.

In: ``PreparedModel``, Targets in order of precedence. Out: ``PartitionedModel`` and a verdict on every partition.

``preparation`` (what backends require), ``place``, ``match``, ``grouping`` (convexity), ``outline``, ``problems`` (from
a match to its partition), ``check_output``, ``table``.
"""

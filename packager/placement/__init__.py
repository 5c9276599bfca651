"""Placement: who compiles what.

In: ``PreparedModel``, Targets in order of precedence. Out: ``PartitionedModel`` and a verdict on every partition.

``preparation`` (what backends require), ``place`` (greedily), ``placer``, ``match``, ``emptiness`` (what must not
match), ``late_casts`` and ``grouping`` (convexity), ``outline``, ``problems`` (from a match to its partition),
``check_output``, ``table``. ``choices`` has placement by measurement, ``shipped`` what was measured on known devices.
"""

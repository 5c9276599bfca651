"""The ``ccompiler`` backend: renders C for partitions and compiles it with the host's gcc.

In: partitions of CPU bundles. Out: one object per CPU level.

``backend`` (Target options, the interface), ``patterns`` (what it takes), ``module`` (all partitions to one C file),
``compiler`` (gcc); ``core/`` reads partitions, ``gemm/`` tiles loop nests, ``ops/`` has a file per operator.
"""

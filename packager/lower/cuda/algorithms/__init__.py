"""Data-parallel algorithms that no schedule finds: sorting, compaction, suppression of boxes; gathers that fuse.

Each is a PrimFunc of several nests in the form that ``lower.cuda.scatter_scan`` binds to threads. ``nests`` writes
them; ``keys``, ``merge_sort``, ``few_best`` and ``prefix_sum`` are the parts; the others legalize one operator each.
"""

"""Read and rewrite Relax: shared by the stages.

``dataflow`` (uses and definitions), ``identity`` (maps keyed by object), ``rewrite``, ``symbolic``
(extents over dims), ``conditions``, ``cost``, ``evaluate`` (in numpy), ``array_views``, ``lift_constants``,
``narrow_types``, ``states``; ``attention/`` matches attention.
"""

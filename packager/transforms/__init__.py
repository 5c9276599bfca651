"""Prepare: ``ImportedModel`` to ``PreparedModel``, the same for every backend.

``prepare`` (the list of passes), ``simplify/``, ``layout/``, ``quantize/``, ``fold_inline`` and
``fold_weights``; at import ``micro_batch/``, ``merge_models`` and ``half_precision``;
``clamp_indices``, ``repeat_views``.
"""

"""ONNX-to-ONNX rewrites before import, in the order in which they run.

``nodes`` (what they share), ``external_data``, ``custom_ops``, ``expand_functions``, ``infer_shapes``,
``narrow_types``, ``unroll_loops``, ``fold_constants``, ``simplify``, ``bounded_sizes`` with ``bounded_size_rules``.
"""

"""Import: model file to ``ImportedModel``.

In: ``.onnx``, ``.pt2``, Relax ``.json``. Out: one Relax function whose weights are parameters.

``load`` (by suffix), ``dims``, ``freeze``, ``overrides``, ``signature``, ``node_names``; ``onnx/``, ``torch/``,
``relax``.
"""

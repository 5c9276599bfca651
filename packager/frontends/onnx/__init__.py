"""Import ONNX: ``load`` (file), ``graph/`` (ONNX-to-ONNX rewrites), ``importer`` and ``ops/`` (ONNX to Relax),
``dims``, ``check``, ``loops``.
"""

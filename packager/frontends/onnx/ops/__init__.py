"""Converters from ONNX operators to Relax, a file per family.

``operands`` (what converters share) and ``converters`` (the table) first. Folders: ``nn/``, ``ml/``, ``quantization/``,
``shapes/`` (shape operands of the graph) and ``run_time/`` (extents and branches that a run decides).
"""

"""Libraries of custom operators (``--op-library``).

In: TOML. Out: ``OpLibrary``. ``description`` (read and check), ``rules`` (shape rules), ``symbolic`` (over dims),
``domains`` (ONNX domains), ``library`` (look up by call).
"""

"""The ``cuda`` code generator: compiles scheduled PrimFuncs by nvcc. ``backend`` (options), ``codegen``."""

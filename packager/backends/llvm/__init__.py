"""The ``llvm`` code generator: compiles scheduled PrimFuncs for each CPU level. ``backend`` (options), ``codegen``."""

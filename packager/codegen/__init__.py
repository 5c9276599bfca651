"""Text and tools: what turns templates into objects.

``templates`` (the jinja2 environment), ``c_text`` (escaping), ``c_expressions`` (extents as C), ``toolchain`` (find
and run compilers), ``timings`` (of their runs), ``cuda_toolkit``, ``sysroot``, ``objects`` (compile, from the cache if
it can), ``cache``.
"""

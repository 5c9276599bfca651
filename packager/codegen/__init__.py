"""Text and tools: what turns templates into objects.

``templates`` (the jinja2 environment), ``c_text`` (names, literals, types and extents in C), ``toolchain`` (find and
run compilers), ``timings`` (of their runs), ``cuda_toolkit``, ``sysroot``, ``objects`` (read object files), ``cache``.
"""

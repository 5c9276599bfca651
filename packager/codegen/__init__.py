"""Text and tools: what turns templates into objects.

``templates`` (the jinja2 environment), ``escape`` (names and strings for C), ``c_text`` (literals, types and extents
in C), ``toolchain`` (find and run compilers), ``timings`` (of their runs), ``cuda_toolkit``, ``sysroot``, ``objects``
(read object files), ``cache``.
"""

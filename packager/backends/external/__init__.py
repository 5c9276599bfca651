"""The ``external`` backend: operators of the user's own, in static libraries.

``backend``, ``archives`` (find the files), ``shim`` (C that calls a symbol), ``build``.
"""

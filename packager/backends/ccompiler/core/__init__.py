"""Reads a partition and splits it into loop nests.

``operations`` (Relax function to operations), ``problems``, ``stages`` (one loop nest each), ``functions``
(drafts of C functions), ``program``, ``expressions`` (elementwise C), ``shapes``, ``machine`` (vector units, tiles).
"""

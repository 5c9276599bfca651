"""Reads a partition and splits it into loop nests.

``operations`` (Relax function to operations), ``attention_match``, ``stages`` (one loop nest each), ``functions``
(drafts of C functions), ``program``, ``expressions`` (elementwise C), ``shapes``, ``tile``, ``window``, ``machine``
(vector units).
"""

"""Runs a bundle in this process, by ctypes and DLPack: ``packager.load``.

``loader``, ``library`` (dlopen, the table of functions), ``abi`` (C structures), ``session``, ``binding`` (arguments of
a run), ``tensors`` (DLPack), ``states``, ``selection`` (candidates).
"""

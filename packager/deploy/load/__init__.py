"""Run a bundle in this process, by ctypes and DLPack: ``packager.load``.

``loader``, ``library`` (dlopen, the table of functions), ``abi`` (C structures), ``binding`` (constants), ``session``,
``tensors``, ``streams``, ``states``, ``selection`` (candidates).
"""

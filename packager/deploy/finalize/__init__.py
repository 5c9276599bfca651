"""``packager finalize``: builds the engines that a bundle lacks, on a machine like the target.

``finalizer`` (the whole), ``build`` (engines, by a Python that has TensorRT, and their cache), ``choose`` (engines
against fallbacks, in turns).
"""

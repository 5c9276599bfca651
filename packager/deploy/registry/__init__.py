"""Bundles in OCI registries. In: a bundle, or ``oci://HOST/NAME:TAG``. Out: an artifact there, or its files here.

Read ``reference``, ``artifact`` (what an artifact holds), ``client`` (blobs, resumed where they stopped), ``push``,
``pull``.
"""

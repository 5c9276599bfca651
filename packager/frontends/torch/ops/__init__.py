"""Converters from ATen operators to Relax: ``elementwise``, ``nn``, ``reductions``, ``views``, ``updates``,
``program``.
"""

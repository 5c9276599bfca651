"""Algebraic simplifications: ``arithmetic`` (equal but for rounding), ``no_ops``, ``sink_reshapes``."""

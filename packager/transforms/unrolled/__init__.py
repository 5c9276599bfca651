"""Rolls up loops that exporters have unrolled: ``roll_up`` in ``loops``, by what ``steps`` makes of all steps."""

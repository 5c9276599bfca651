"""Normalizations of groups of channels: calls come in, PrimFuncs and the schedule of those that hold groups go out."""

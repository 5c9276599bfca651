"""Decompositions of torch operators into others, written in torch: it promotes types and infers shapes.

``table`` has all of them. One that returns ``NotImplemented`` leaves the operator as it is, to be converted or refused.
"""

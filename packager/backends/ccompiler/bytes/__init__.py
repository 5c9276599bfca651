"""Functions of bytes as tables of 256 results, where these take less than what computes them.

In: a stage. Out: the stage, with an operator for each table in place of others. ``tables`` finds them, ``evaluate``
computes their results.
"""

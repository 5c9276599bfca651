"""Search the placement of a trial bundle: the fastest combination of its alternatives, measured in place.

In: the places where a bundle can choose, the plans that are known before, and a timer of whole runs. Out: the fastest
combination, with the times of all plans. Reading order: ``space``, ``timing``, ``effort``, ``screen``,
``proposals``, ``final``, ``search``, ``journal``, ``sessions``, ``trial``.
"""

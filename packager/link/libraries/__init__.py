"""Check each static library, and make one object of what its symbols reach: ``prepare``, ``checks``, ``linking``,
``compile_jobs``, ``cpu_levels``.
"""

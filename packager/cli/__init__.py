"""The command line: parse, call the function of the same name, print.

``main`` (application, exit codes), ``options`` (those of a build), ``build``, ``explain``, ``targets``,
``deploy``, ``tune``; ``interruption`` (signals), ``hide_torch`` (keeps TVM from importing it),
``atomic_write``; ``reports/`` renders tables.
"""

"""The command line: parse, call the function of the same name, print.

``main`` (application, exit codes), ``build`` and ``deploy`` (commands), ``options`` (those of a build), ``files``
(inputs and results), ``interruption`` (signals), ``hide_torch`` (keeps TVM from importing it); ``reports/`` renders
tables.
"""

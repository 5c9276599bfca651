"""One request, one published bundle.

``options`` (the one list of them), ``request`` (options that are checked), ``publish`` (outputs), ``cache_key``,
``build`` (the stages in order), ``import_models``, ``make_link_plan``, ``golden``, ``dump`` (work folder), ``explain``,
``doctor``.
"""

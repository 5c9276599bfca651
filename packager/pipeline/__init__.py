"""One request, one published bundle.

``options`` (declarations), ``request`` (validated options), ``publish`` (outputs), ``cache_key``,
``build`` (the stages in order), ``import_models``, ``make_link_plan``, ``golden``, ``dump`` (work folder), ``explain``,
``doctor``.
"""

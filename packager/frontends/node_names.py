"""Source nodes: which node of the source graph each Relax binding stands for.

Passes keep the names of Relax variables but not their spans, so every binding of ``main`` gets a name that occurs
nowhere else, and a table from these names to source nodes travels with the module.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import IRModule, relax
from tvm_ffi import structural_map

from packager.graph.dataflow import bindings_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import with_main

PREFIX = "node_"


def tag_bindings(module: IRModule, node_of_variable: Mapping[str, str]) -> tuple[IRModule, dict[str, str]]:
    """Return ``module`` with a unique name on every binding of ``main``, and the table from these names to nodes.

    ``node_of_variable`` says which node the variables of the importer stand for. What takes a tuple apart belongs to
    the tuple's node. Other bindings without a node of their own belong to the next binding that has one, since a
    converter emits its intermediate values first, or at the end of the function to the last.
    """
    main = module["main"]
    renamed: IdentityMap[relax.Var] = IdentityMap()
    nodes: dict[str, str] = {}
    pending: list[str] = []
    last = ""
    for binding in bindings_of(main):
        var = binding.var
        name = f"{PREFIX}{len(renamed)}"
        renamed[var] = type(var)(name, var.ty)
        if isinstance(binding.value, relax.TupleGetItem):
            tuple_variable = renamed.get(binding.value.tuple_value)
            if tuple_variable is not None and tuple_variable.name in nodes:
                nodes[name] = nodes[tuple_variable.name]
                continue
        pending.append(name)
        node = node_of_variable.get(var.name)
        if node:
            nodes.update(dict.fromkeys(pending, node))
            pending.clear()
            last = node
    nodes.update(dict.fromkeys(pending, last) if last else {})
    main = structural_map(main, (relax.Var, lambda var: renamed.get(var, var)))
    return with_main(module, main), nodes

"""Map Relax bindings to nodes of the source graph.

Passes keep the names of Relax variables but not their spans, so every binding of ``main`` gets a unique name, and a
table from these names to source nodes accompanies the module.
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

    ``node_of_variable`` maps variables of the importer to nodes. A TupleGetItem belongs to the node of its tuple. Other
    bindings without a node belong to the node of the next binding that has one, since a converter emits intermediate
    values first; at the end of the function, to the last node.
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

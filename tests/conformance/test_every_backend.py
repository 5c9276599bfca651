"""Every backend of packager's own has a module here that puts it under the conformance suite."""

from __future__ import annotations

import ast
from pathlib import Path

from packager.backends.registry import BUILT_IN


def test_every_backend_is_under_the_suite() -> None:
    kinds = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any("Conformance" in ast.unparse(base) for base in node.bases):
                kinds += [
                    ast.literal_eval(statement.value)
                    for statement in node.body
                    if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "kind"
                ]
    assert sorted(kinds) == sorted(BUILT_IN)

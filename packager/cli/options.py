"""Options that several commands have, in the same words."""

from __future__ import annotations

from typing import Annotated

import typer

Target = Annotated[
    list[str] | None, typer.Option("-t", "--target", help="A Target, as 'llvm -mcpu=x86-64-v4'; repeatable.")
]
Dim = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=SIZE|MIN:MAX|SIZE,SIZE",
        help="Fix a symbolic dim, bound it, or list sizes, each with its code.",
    ),
]
Freeze = Annotated[
    list[str] | None, typer.Option(metavar="NAME=JSON", help="An ONNX input that becomes a constant; repeatable.")
]
Precision = Annotated[
    str | None, typer.Option(metavar="fp16|bf16", help="Let a float32 model compute in half precision.")
]

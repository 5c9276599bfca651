"""Compile an ONNX or torch.export file with TVM's default pipeline into a library that its virtual machine runs.

python -m benchmarks.bundle.tvm_pipeline [--mcpu LEVEL] MODEL OUT.so [NAME=1,3,224,224]...
"""

from __future__ import annotations

import sys
from typing import Any

import tvm

# What packager compiles for when no Target is given.
TARGET = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"}


def main() -> None:
    """Compile as told by the command line."""
    words = sys.argv[1:]
    target = TARGET | ({"mcpu": words[1]} if words[0] == "--mcpu" else {})
    model, output, *shapes = words[2:] if words[0] == "--mcpu" else words
    pairs = (text.rsplit("=", 1) for text in shapes)
    shape_dict = {name: [int(extent) for extent in extents.split(",")] for name, extents in pairs}
    module = import_torch(model) if model.endswith(".pt2") else import_onnx(model, shape_dict)
    tvm.compile(module, target=tvm.target.Target(target)).export_library(output)


def import_onnx(path: str, shapes: dict[str, list[int]]) -> Any:
    """Import an ONNX file with inputs of these shapes."""
    import onnx
    from tvm.relax.frontend.onnx import from_onnx

    return from_onnx(onnx.load(path), shape_dict=shapes)


def import_torch(path: str) -> Any:
    """Import a file of torch.export.save with one output."""
    import torch
    from tvm.relax.frontend.torch import from_exported_program

    return from_exported_program(torch.export.load(path), unwrap_unit_return_tuple=True)


if __name__ == "__main__":
    main()

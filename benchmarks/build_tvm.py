"""Compile an ONNX file with TVM's default pipeline into a library that its virtual machine runs.

python benchmarks/build_tvm.py MODEL.onnx OUT.so NAME=1,3,224,224...
"""

from __future__ import annotations

import sys

import onnx
import tvm
from tvm.relax.frontend.onnx import from_onnx

# What packager compiles for when no Target is given.
TARGET = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"}


def main() -> None:
    """Compile as told by the command line."""
    model, output, *shapes = sys.argv[1:]
    pairs = (text.rsplit("=", 1) for text in shapes)
    shape_dict = {name: [int(extent) for extent in extents.split(",")] for name, extents in pairs}
    module = from_onnx(onnx.load(model), shape_dict=shape_dict)
    tvm.compile(module, target=tvm.target.Target(TARGET)).export_library(output)


if __name__ == "__main__":
    main()

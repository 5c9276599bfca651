"""Compile an ONNX file with TVM's default pipeline into a library that its virtual machine runs."""

from __future__ import annotations

import argparse

import onnx
import tvm
from tvm.relax.frontend.onnx import from_onnx


def main() -> None:
    """Compile as told by the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mcpu", default="x86-64-v3")
    parser.add_argument("model")
    parser.add_argument("output")
    parser.add_argument("shapes", nargs="*", metavar="NAME=1,3,224,224", help="of the inputs")
    arguments = parser.parse_args()
    pairs = (text.rsplit("=", 1) for text in arguments.shapes)
    shapes = {name: [int(extent) for extent in extents.split(",")] for name, extents in pairs}
    target = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": arguments.mcpu})
    module = from_onnx(onnx.load(arguments.model), shape_dict=shapes)
    tvm.compile(module, target=target).export_library(arguments.output)


if __name__ == "__main__":
    main()

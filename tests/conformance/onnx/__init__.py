"""onnx's own operator cases through the whole of packager: build, load in a process without TVM, run, compare."""

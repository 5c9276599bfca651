"""TODO packager/frontends/onnx/graph."""

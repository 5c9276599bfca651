"""TODO packager/frontends/onnx."""

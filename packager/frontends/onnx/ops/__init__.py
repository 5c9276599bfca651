"""TODO packager/frontends/onnx/ops."""

"""TODO packager/frontends/onnx/ops/nn."""

"""TODO packager/frontends/onnx/ops/quantization."""

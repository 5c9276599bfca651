"""ONNX files as the exporters that people use write them: made by scripts, built, and compared with onnxruntime."""

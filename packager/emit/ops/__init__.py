"""Rules that write a Relax operator as ONNX nodes: ``rules`` collects those of the families."""

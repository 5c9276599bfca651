"""GPU code in bundles: names of architectures, fat binaries, engines of TensorRT."""

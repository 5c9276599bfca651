"""GPU code in bundles: names of architectures, and fat binaries."""

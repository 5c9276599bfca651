"""Operators of packager's own on windows of images: ``col2im``."""

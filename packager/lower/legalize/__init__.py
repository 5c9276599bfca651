"""Legalize Relax operators where TVM's own legalization is missing, slow or wrong, and packager's own operators.

``selection/`` are those that compare and keep elements.
"""

"""Architectures of many families with random weights, made without downloads, beside other engines on the CPU.

Read ``entry.py`` (what an entry is), a module for each domain (``classifiers``, ``image_to_image``, ``restoration``,
``generators``, ``audio``, ``text``, ``series``, ``volumes``, ``graphs``), ``models.py`` (the list, ONNX files, float64
references), then ``compare.py`` (the command).
"""

"""Random ONNX models against onnxruntime: odd operators, element types and shapes, in the form of each operator set.

``registry.py`` and ``growth.py`` say what a model is while it grows, the modules of ``operators/`` how each operator is
written. ``model.py`` draws whole models, ``maker.py`` is the process that does so; ``judge.py`` builds, runs, compares.
"""

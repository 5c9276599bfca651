"""Write Relax as ONNX: an ImportedModel, or one function with its constants -> a ModelProto with named initializers.

``onnx`` (the function, its interface), ``function_writer`` (bindings), ``graph_writer`` (nodes, constants and shapes),
``ops/`` (a rule for each Relax operator; ``ops/rules`` collects them), ``file`` (the file, external weights).
"""

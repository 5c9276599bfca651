"""Links a call plan and objects into one sealed ELF file.

``libraries/`` (check static libraries), ``entrypoint``, ``runs`` and ``header`` (render C), ``weights``, ``linker``,
``constant_segment``, ``seal`` (write the manifest).
"""

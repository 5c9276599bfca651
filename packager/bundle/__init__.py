"""Defines the bundle format, for the build side and the deploy side: a file in, its manifest and facts out, and back.

Needs neither TVM nor a compiler. Files in reading order:

- manifest, fields, requirements: the manifest's dataclasses; strict_json: JSON <-> dataclasses; invariants:
  cross-checks
- section: the manifest's ELF section and its hashes; reader: file -> BundleFile
- elf/: sections, symbols and versions of ELF files; isa/: CPU features of machine code; fatbin: GPU code
- dtypes, arrays, shape_expr, buckets: element types, extents and bucketed dims
- safetensors, golden, tuning_records: the other file formats
- cpu_levels, gpu_arch: names of CPU levels and GPU architectures; hashing, staging (temporary files)
"""

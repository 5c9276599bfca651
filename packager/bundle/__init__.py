"""Defines the bundle format, for the build side and the deploy side: a file in, its manifest and facts out, and back.

Needs neither TVM nor a compiler. Files in reading order:

- manifest, fields, requirements: the manifest's dataclasses; strict_json: JSON <-> dataclasses; invariants:
  cross-checks
- section: the manifest's ELF section and its hashes; reader: file -> BundleFile
- elf/: sections, symbols and versions of ELF files; isa/: CPU features of machine code; gpu/: fat binaries
- dtypes, arrays, shape_expr, buckets: element types, extents and bucketed dims
- graph/: the calls of a run; safetensors, golden, tuning_records: the other file formats
- selection: candidates and alternatives, and which of them are used; hashing, staging (temporary files)
"""

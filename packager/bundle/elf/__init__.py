"""Reads untrusted ELF files: a path in, ElfImage out; every offset is bounds-checked, damage raises BundleError.

Files in reading order: window (bounds-checked reads), archive (ar members), tables (headers and sections), symbols
(symbols and their versions), file (all facts of an image), loader (the dynamic linker's view), search (where that looks
for libraries).
"""

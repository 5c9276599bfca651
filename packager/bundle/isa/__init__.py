"""CPU features, by the names of ``/proc/cpuinfo``: those that machine code requires, and those that this CPU has.

Files in reading order: cpu (of this machine), needs (of a bundle's code, by CPU level), features (of an ELF file, by
section), x86 (iced-x86), arm64 (capstone).
"""

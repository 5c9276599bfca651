"""CPU features, by the names of ``/proc/cpuinfo``: those that machine code requires, and those that this CPU has.

Files in reading order: cpu (of this machine), features (of an ELF file, by section and level), x86 (iced-x86), arm64
(capstone).
"""

"""Finds the CPU features that machine code uses: an ELF file in, feature names of ``/proc/cpuinfo`` out.

Files in reading order: needs (features by CPU level), features (features by section), x86 (iced-x86), arm64
(capstone).
"""

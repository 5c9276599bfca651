"""Runs on the deploy side, without TVM or a compiler: a bundle in; findings, outputs or measurements out.

Folders in reading order: trust (who made it, of what), verify (is the file sound, does it run here), load (load and run
it in this process), measure (bench, profile, tune).
"""

"""Check a bundle without executing it.

In: a file, a policy, a machine. Out: findings. ``verifier`` runs ``integrity`` (hashes), ``structure`` (ELF),
``code`` and ``gpu_code`` (what instructions need), ``policy``, ``machine`` and ``gpus``; ``golden`` executes golden
pairs.
"""

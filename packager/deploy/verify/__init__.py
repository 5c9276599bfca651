"""Checks a bundle without executing it: a file, a policy and a machine in, findings out.

``verifier`` runs ``integrity`` (hashes), ``structure`` (ELF), ``code`` (required instructions), ``policy``, ``machine``
and ``gpus``; ``golden`` executes golden pairs.
"""

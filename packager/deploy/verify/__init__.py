"""Checks a bundle without executing it: a file, a policy and a machine in, findings out.

``verifier`` runs ``integrity`` (hashes), ``structure`` (ELF by section headers), ``loading`` (as the dynamic linker
sees it, with ``binding`` and ``interface``), ``code`` (required instructions), ``policy``, ``machine`` and ``gpus``;
``golden`` executes golden pairs.
"""

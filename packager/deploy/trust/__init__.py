"""Says who made a bundle, and of what: signatures, provenance, bill of materials.

``trust`` reads whom a caller trusts, ``sign`` makes a signature in the format of OpenSSF Model Signing, ``check``
checks one (``library`` imports the package that does both). ``statement`` writes the manifest's provenance as SLSA,
``sbom`` the components as CycloneDX; both are signed with the bundle, whose manifest has all that they say.
"""

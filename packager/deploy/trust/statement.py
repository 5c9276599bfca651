"""Writes a bundle's provenance as an in-toto statement of SLSA provenance, v1.0 (https://slsa.dev/provenance/v1)."""

from __future__ import annotations

import dataclasses
from typing import Any

from packager.bundle.hashing import sha256_of_file
from packager.bundle.origin import Provenance
from packager.bundle.reader import BundleFile

BUILD_TYPE = "urn:packager:build:1"


def provenance_statement(bundle: BundleFile) -> dict[str, Any]:
    """Return the statement about a bundle, and its external weights. It has no times and no machine: equal builds have
    equal ones."""
    manifest = bundle.manifest
    provenance = manifest.provenance or Provenance((), {}, {})
    subjects = [_resource(bundle.path.name, sha256_of_file(bundle.path))]
    if manifest.weights.file and manifest.weights.file_sha256:
        subjects.append(_resource(manifest.weights.file, manifest.weights.file_sha256))
    libraries = [
        _resource(f"{backend.kind}/{library.name}", library.sha256)
        for backend in manifest.backends
        for library in backend.static_libraries
    ]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "model": manifest.model.name,
                    "targets": [dict(target) for target in manifest.targets],
                    "options": provenance.options,
                },
                "internalParameters": {"dims": [dataclasses.asdict(dim) for dim in manifest.dims]},
                "resolvedDependencies": [
                    *(_resource(f"{item.role}/{item.name}", item.sha256) for item in provenance.inputs),
                    *libraries,
                    *({"uri": package_url(*item)} for item in sorted(provenance.packages.items())),
                ],
            },
            "runDetails": {
                "builder": {
                    "id": f"urn:packager:{manifest.packager_version}",
                    "version": {"packager": manifest.packager_version, **manifest.toolchain},
                },
            },
        },
    }


def package_url(name: str, version: str) -> str:
    """Return the package URL of a Python distribution (https://github.com/package-url/purl-spec)."""
    return f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"


def _resource(name: str, sha256: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": sha256}}

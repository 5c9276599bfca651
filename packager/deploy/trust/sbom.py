"""Writes what is in a bundle as a bill of materials: CycloneDX 1.6, JSON (https://cyclonedx.org/docs/1.6/json/)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from packager.bundle.hashing import sha256_of_file
from packager.bundle.manifest import Manifest
from packager.bundle.origin import Provenance
from packager.bundle.reader import BundleFile
from packager.deploy.trust.statement import package_url
from packager.errors import ToolchainError

if TYPE_CHECKING:
    from cyclonedx.model import HashType
    from cyclonedx.model.component import Component

_NAMESPACE = uuid.UUID("5f1cb6e2-2c1c-5f1f-9a4c-6d8e1c6f2b17")  # of serial numbers, which name a bundle's content


def bill_of_materials(bundle: BundleFile) -> dict[str, Any]:
    """Return the bill of materials of a bundle: models, runtime, backends' libraries, tools. Equal bundles have equal
    ones. Raises ToolchainError if the package cyclonedx-python-lib is missing."""
    try:
        from cyclonedx.model.bom import Bom, BomMetaData
        from cyclonedx.model.component import Component, ComponentType
        from cyclonedx.model.tool import ToolRepository
        from cyclonedx.output.json import JsonV1Dot6
    except ImportError as error:
        raise ToolchainError(
            f"a bill of materials requires the package cyclonedx-python-lib: {error}",
            hint="pip install 'packager[sign]'",
        ) from None
    manifest = bundle.manifest
    root = Component(
        name=bundle.path.name,
        type=ComponentType.LIBRARY,
        version=manifest.content_sha256[:16],
        bom_ref="bundle",
        hashes=[_sha256(sha256_of_file(bundle.path))],
    )
    components = list(_components(manifest))
    bom = Bom(
        serial_number=uuid.uuid5(_NAMESPACE, manifest.content_sha256),
        metadata=BomMetaData(component=root, tools=ToolRepository(components=_tools(manifest))),
        components=components,
    )
    bom.register_dependency(root, components)
    value: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    del value["metadata"]["timestamp"]  # when it was printed, not when the bundle was made
    return value


def _components(manifest: Manifest) -> Iterator[Component]:
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model.component import Component, ComponentScope, ComponentType

    make = LicenseFactory().make_from_string
    licenses = {item.component: [make(item.spdx)] for item in manifest.licenses}
    for entry in manifest.every_entry():
        model, kind = entry.model, ComponentType.MACHINE_LEARNING_MODEL
        yield Component(
            name=model.name, type=kind, bom_ref=f"model/{entry.name}", hashes=[_sha256(model.sha256)],
            description=f"{model.format}, by {model.producer or 'an unknown producer'}",
        )  # fmt: skip
    for name, terms in licenses.items():
        version = manifest.packager_version if name.startswith("packager") else None
        yield Component(name=name, version=version, bom_ref=f"component/{name}", licenses=terms)
    for backend in manifest.backends:
        for library in backend.static_libraries:
            name = f"{backend.kind}/{library.name}"
            yield Component(name=name, bom_ref=f"library/{name}", hashes=[_sha256(library.sha256)])
    for name in manifest.requirements.needed:
        yield Component(
            name=name, bom_ref=f"needed/{name}", scope=ComponentScope.EXCLUDED, description="of the machine it runs on"
        )
    for required in manifest.requirements.libraries:
        names = " or ".join(required.sonames)
        yield Component(
            name=required.sonames[0], bom_ref=f"opened/{required.symbol}", scope=ComponentScope.EXCLUDED,
            description=f"of the machine it runs on: sessions open {names}, of version {required.least} or newer",
        )  # fmt: skip


def _tools(manifest: Manifest) -> Iterator[Component]:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    packages = (manifest.provenance or Provenance((), {}, {})).packages
    yield Component(name="packager", type=ComponentType.APPLICATION, version=manifest.packager_version)
    for name, version in manifest.toolchain.items():
        yield Component(name=name, type=ComponentType.APPLICATION, version=version)
    for name, version in packages.items():
        yield Component(name=name, version=version, purl=PackageURL.from_string(package_url(name, version)))


def _sha256(digest: str) -> HashType:
    from cyclonedx.model import HashAlgorithm, HashType

    return HashType(alg=HashAlgorithm.SHA_256, content=digest)

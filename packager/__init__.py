"""packager: the AOT linker for neural networks. ``build`` makes a bundle; the others need no TVM and no compiler."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Name -> module. Imported on first use: `import packager` must be quick, and must work without TVM.
_EXPORTS = {
    "build": "packager.pipeline.build",
    "export": "packager.pipeline.export",
    "inspect": "packager.bundle.reader",
    "load": "packager.deploy.load.loader",
    "sign": "packager.deploy.trust.sign",
    "verify": "packager.deploy.verify.verifier",
    "Buckets": "packager.bundle.buckets",
    "Bundle": "packager.deploy.load.loader",
    "Session": "packager.deploy.load.loader",
    "PackagerError": "packager.errors",
    "PackagerWarning": "packager.errors",
    "__version__": "packager.version",
}

__all__ = [
    "Buckets",
    "Bundle",
    "PackagerError",
    "PackagerWarning",
    "Session",
    "__version__",
    "build",
    "export",
    "inspect",
    "load",
    "sign",
    "verify",
]

if TYPE_CHECKING:
    from packager.bundle.buckets import Buckets
    from packager.bundle.reader import inspect
    from packager.deploy.load.loader import Bundle, Session, load
    from packager.deploy.trust.sign import sign
    from packager.deploy.verify.verifier import verify
    from packager.errors import PackagerError, PackagerWarning
    from packager.pipeline.build import build
    from packager.pipeline.export import export
    from packager.version import __version__


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'packager' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

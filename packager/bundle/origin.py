"""Parts of the manifest that say where a bundle and its results come from: provenance, and what is random."""

from __future__ import annotations

from dataclasses import dataclass

from packager.bundle.fields import Name, Sha256


@dataclass(frozen=True)
class RandomNode:
    """A node of the model that draws random numbers. ``seed`` names the input that they follow from; null: they follow
    from the node's own seed or a frozen one, and are the same in each run."""

    node: Name
    operator: Name
    seed: Name | None


@dataclass(frozen=True)
class BuildInput:
    """A file that a build read, or the value of an input that it froze.

    ``role`` is ``model`` (with its external data), ``constants``, ``golden``, ``frozen``, or the kind of the backend
    that read the file. ``name`` is a file's without its folder, but for external data relative to the model's.
    """

    role: Name
    name: Name
    sha256: Sha256


@dataclass(frozen=True)
class Provenance:
    """What a bundle was made of and with, as far as the rest of the manifest does not say it.

    ``options`` are those of the build that were given; ``packages`` the Python packages that take part in builds, by
    name, with their versions.
    """

    inputs: tuple[BuildInput, ...]
    options: dict[str, str]
    packages: dict[str, str]

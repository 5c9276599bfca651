"""The commands that store bundles in registries and take them from there: parse, call the API, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from packager.cli.files import Json, print_json
from packager.cli.progress import SHORT_SECONDS, Quiet, shown_progress
from packager.progress import received

Reference = Annotated[str, typer.Argument(metavar="oci://HOST/NAME:TAG", help="The artifact; :TAG or @sha256:...")]
PlainHttp = Annotated[bool, typer.Option("--plain-http", help="Without TLS, as registries on this machine.")]


def push(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="NAME.so or libNAME.a, made by packager build.")],
    reference: Reference,
    *,
    attach: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A file to go with it: records, for example; repeatable.")
    ] = None,
    plain_http: PlainHttp = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Store a bundle in an OCI registry. With weights, signature and provenance. Prints its reference by digest."""
    from packager.deploy.registry.push import push as push_bundle

    with shown_progress(quiet=quiet, after=SHORT_SECONDS) as receiver, received(receiver):
        stored = push_bundle(bundle, reference, attach=attach or (), plain_http=plain_http)
    print_json({"schema_version": 1, "reference": stored}) if as_json else print(stored)


def pull(
    reference: Reference,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder for its files.")] = Path(),
    trust: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Whose signature it must have: a key, certificates, or TOML.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files of other content.")] = False,
    plain_http: PlainHttp = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Take a bundle from an OCI registry, and check it. With what was stored with it. Prints the bundle's path."""
    from packager.deploy.registry.pull import pull as pull_bundle

    with shown_progress(quiet=quiet, after=SHORT_SECONDS) as receiver, received(receiver):
        bundle = pull_bundle(reference, output, trust=trust, force=force, plain_http=plain_http)
    print_json({"schema_version": 1, "bundle": str(bundle)}) if as_json else print(bundle)


COMMANDS = (push, pull)

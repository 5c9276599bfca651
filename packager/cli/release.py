"""The commands that show, check and sign bundles, which need neither TVM nor a compiler: parse, call the API, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from packager.cli.files import Json, print_json, write_whole
from packager.cli.progress import SHORT_SECONDS, Quiet, shown_progress
from packager.cli.reports.tables import facts, print_tables
from packager.errors import UsageError
from packager.progress import received
from packager.version import __version__

BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="NAME.so or libNAME.a, made by packager build.")]
Libraries = Annotated[
    list[Path] | None,
    typer.Option(metavar="FOLDER", help="Where shared libraries that bundles call are; repeatable. Default: pip's."),
]


def inspect(
    bundle: BundlePath,
    *,
    as_json: Json = False,
    sbom: Annotated[bool, typer.Option("--sbom", help="Print what is in it as CycloneDX 1.6.")] = False,
    provenance: Annotated[
        bool, typer.Option("--provenance", help="Print what it was made of as SLSA provenance 1.0.")
    ] = False,
    graph: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the graph of its calls: .dot, .onnx (for Netron) or .json."),
    ] = None,
) -> None:
    """Describe a bundle, without executing it. --json prints its manifest."""
    from packager.bundle.reader import inspect as inspect_bundle

    if as_json + sbom + provenance + (graph is not None) > 1:
        raise UsageError("--json, --sbom, --provenance and --graph exclude each other")
    found = inspect_bundle(bundle)
    if graph is not None:
        from packager.deploy.report.export import graph_file

        content = graph_file(found, graph)
        write_whole(graph, lambda stream: stream.write(content))
        return
    if sbom or provenance:
        from packager.deploy.trust.sbom import bill_of_materials
        from packager.deploy.trust.statement import provenance_statement

        print_json(bill_of_materials(found) if sbom else provenance_statement(found))
        return
    if as_json:
        print_json(json.loads(found.manifest.to_json()))
        return
    from packager.cli.reports.bundle import inspect_tables

    print_tables(inspect_tables(found))


def verify(
    bundle: BundlePath,
    *,
    policy: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="default, hermetic, or a TOML file (packager schema policy).")
    ] = "default",
    machine: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A machine, from packager machine --json; else this one.")
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Also compute the golden pairs, in a process of their own.")
    ] = False,
    timeout: Annotated[float, typer.Option(metavar="S", help="Seconds that --run may take.", min=0.1)] = 300.0,
    trust: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Whose signature it must have: a key, certificates, or TOML.")
    ] = None,
    signature: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The signature; default: the bundle's path with .sig appended.")
    ] = None,
    libraries: Libraries = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Check integrity, structure, policy, and if it runs on a machine. Exit code 1: findings."""
    from packager.deploy.verify.verifier import verify as verify_bundle

    if signature is not None and trust is None:
        raise UsageError("--signature requires --trust", hint="name who is trusted: --trust FILE")
    with shown_progress(quiet=quiet, after=SHORT_SECONDS) as receiver, received(receiver):
        result = verify_bundle(
            bundle,
            policy=policy,
            machine=machine,
            run=run,
            timeout=timeout,
            trust=trust,
            signature=signature,
            libraries=libraries,
        )
    if as_json:
        print_json(result.to_json())
    else:
        from packager.cli.reports.bundle import verify_tables

        print_tables(verify_tables(result))
    if not result.ok:
        raise typer.Exit(1)


def sign(
    bundle: BundlePath,
    *,
    key: Annotated[Path, typer.Option(metavar="FILE.pem", help="Private elliptic curve key, without password.")],
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE.pem", help="The key's certificate, to be put into the signature.")
    ] = None,
    chain: Annotated[
        list[Path] | None, typer.Option(metavar="FILE.pem", help="Certificates of its issuers; repeatable.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE.sig", help="The signature; default: the bundle's path with .sig appended."
        ),
    ] = None,
) -> None:
    """Sign a bundle and its external weights, for verify --trust. Prints the signature's path."""
    from packager.deploy.trust.sign import sign as sign_bundle

    print(sign_bundle(bundle, key=key, certificate=certificate, chain=chain or (), output=output))


def machine(
    *,
    libraries: Libraries = None,
    gpu: Annotated[
        int | None, typer.Option("--gpu", help="Print a GPU's description for -device of the Target cudnn instead.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Describe this machine. What --json prints is for verify --machine on another one."""
    from packager.backends.registry import known_libraries
    from packager.deploy.load.folders import library_folders
    from packager.deploy.verify.gpu_description import describe_gpu
    from packager.deploy.verify.gpus import describe_cuda
    from packager.deploy.verify.machine import this_machine

    if gpu is not None:
        print_json(describe_gpu(gpu))
        return
    functions = {soname: known.version_function for known in known_libraries() for soname in known.sonames}
    found = this_machine(sonames=functions, folders=library_folders(libraries), functions=functions)
    if as_json:
        print_json(found.to_json())
        return
    table = facts(
        "This machine",
        ("machine", f"{found.machine}, {found.os}"),
        ("glibc", found.glibc or "none"),
        ("CPU", found.cpu or "unknown"),
        ("CPU features", " ".join(found.cpu_features) or "unknown"),
        ("GPUs", describe_cuda(found.cuda)),
        ("libraries", ", ".join(f"{name} {version}" for name, version in (found.libraries or {}).items()) or "none"),
    )
    print_tables([table])


def schema(
    what: Annotated[
        Literal["manifest", "policy", "trust"],
        typer.Argument(metavar="FORMAT", help="The format to describe: manifest, policy or trust."),
    ],
) -> None:
    """Print the JSON Schema of manifests, policy files or trust files. They are of version 2020-12."""
    from packager.bundle.manifest import manifest_schema
    from packager.deploy.trust.trust import trust_schema
    from packager.deploy.verify.policy import policy_schema

    print_json({"manifest": manifest_schema, "policy": policy_schema, "trust": trust_schema}[what]())


def sdk(
    *,
    include: Annotated[bool, typer.Option("--include", help="Print the folder of packager.h alone.")] = False,
    cmake: Annotated[
        bool, typer.Option("--cmake", help="Print the folder of the CMake package alone: -Dpackager_DIR=FOLDER.")
    ] = False,
    pkgconfig: Annotated[
        bool, typer.Option("--pkgconfig", help="Print the folder of packager.pc alone: PKG_CONFIG_PATH=FOLDER.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say where the C header, CMake package and pkg-config file are. Programs in C and C++ are built with these."""
    from packager.resources import folder

    if include + cmake + pkgconfig + as_json > 1:
        raise UsageError("--include, --cmake, --pkgconfig and --json exclude each other")
    wanted = {"include": include, "cmake": cmake, "pkgconfig": pkgconfig}
    folders = {name: str(folder("runtime_stub") / name) for name in wanted}
    if as_json:
        print_json({"schema_version": 1, "version": __version__} | folders)
    elif True in wanted.values():
        print(*(folders[name] for name, chosen in wanted.items() if chosen))
    else:
        print_tables([facts(f"packager {__version__}", *folders.items())])


COMMANDS = (inspect, verify, sign, machine, sdk, schema)

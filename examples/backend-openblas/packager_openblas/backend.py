"""What packager sees of this backend: its attributes, whether it works here, its patterns, and how it compiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from packager.backends.api import (
    API_VERSION,
    BackendOutput,
    Context,
    License,
    Partition,
    PartitionOptions,
    Pattern,
    StaticLibrary,
    Target,
    Unavailable,
    attribute,
    run,
)
from packager.errors import UsageError
from packager_openblas.kernels import CORES, best_core, kernel_names, missing_symbols

# Where Debian and Ubuntu put OpenBLAS; the serial one first, though all of them have the same kernels.
FOLDERS = [f"/usr/lib/x86_64-linux-gnu/openblas-{variant}" for variant in ("serial", "pthread", "openmp")]


@dataclass(frozen=True)
class OpenblasOptions(PartitionOptions):
    """Attributes of the ``openblas`` kind."""

    archive: str = attribute(
        "", "OpenBLAS's static archive, made with DYNAMIC_ARCH=1; default: the one of Debian", is_path=True
    )
    core: str = attribute("", "Whose kernels, as OpenBLAS names CPUs; default: by -mcpu", choices=("", *CORES))
    bias: bool = attribute(True, "Take the addition of a bias along with its product")
    min_rows: int = attribute(1, "Give back products of fewer rows", minimum=1)


class OpenblasBackend:
    """Takes float32 matrix products, with a bias where there is one."""

    api_version = API_VERSION
    kind = "openblas"
    device = "cpu"
    options = OpenblasOptions
    summary = "float32 matrix products by the kernels in OpenBLAS's static archive"
    merges = False

    def canonical(self, options: OpenblasOptions, base: Target | None) -> OpenblasOptions:
        """Return options with the archive and the core filled in, where there are such."""
        if options.archive and not Path(options.archive).is_file():
            raise UsageError(f"attribute 'archive' of Target 'openblas' is {options.archive!r}, which is not a file")
        found = [path for folder in FOLDERS if (path := Path(folder, "libopenblas.a")).is_file()]
        archive = options.archive or (str(found[0]) if found else "")
        return replace(options, archive=archive, core=options.core or best_core(base))

    def probe(self, target: Target) -> Unavailable | None:
        """Return why there are no kernels for the Target, or None."""
        options: OpenblasOptions = target.options
        if not options.archive:
            return Unavailable(
                "there is no static archive of OpenBLAS", "apt-get install libopenblas-serial-dev, or give -archive"
            )
        if not options.core:
            return Unavailable(
                "it knows no kernels for the CPU of the llvm Target",
                f"give -mcpu=x86-64-v3, or -core with one of {', '.join(CORES)}",
            )
        if missing := missing_symbols(Path(options.archive), kernel_names(options.core).values()):
            return Unavailable(
                f"{options.archive} does not define {', '.join(missing)}", "give an archive made with DYNAMIC_ARCH=1"
            )
        return None

    def inputs(self, target: Target) -> Sequence[Path]:
        """Return the files that are read: a build with another archive is another build."""
        return [Path(target.options.archive)] if target.options.archive else []

    def patterns(self, target: Target) -> Sequence[Pattern]:
        """Return a product with a bias and without one."""
        from packager_openblas.patterns import biased_products, products

        return [*biased_products(), *products()] if target.options.bias else products()

    def compile(self, partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
        """Compile C that calls the kernels to one object, and hand that back with the archive."""
        from packager_openblas.partitions import group_of, source_of

        options: OpenblasOptions = target.options
        products, given_back = {}, {}
        for partition in partitions:
            product = partition.composites[0].problem
            if isinstance(product.rows, int) and product.rows < options.min_rows:
                given_back[partition.name] = f"it has {product.rows} rows, fewer than min_rows={options.min_rows}"
            else:
                products[partition.name] = product
        if not products:
            return BackendOutput(self.kind, given_back=given_back)

        groups = {p.name: group_of(p, products[p.name], CORES[options.core]) for p in partitions if p.name in products}
        (context.workdir / "product.h").write_text(resources.files(__package__).joinpath("product.h").read_text())
        (context.workdir / "products.c").write_text(source_of(products, options.core))
        flags = ["-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
        run([context.toolchain.cc, *flags, "-c", "products.c", "-o", "products.o"], cwd=context.workdir)
        archive = Path(options.archive)
        library = StaticLibrary(
            name="openblas",
            files=(context.workdir / "products.o", archive),
            symbols=tuple(function.symbol for group in groups.values() for function in group.functions),
        )
        return BackendOutput(
            self.kind,
            static_libraries=(library,),
            groups=groups,
            given_back=given_back,
            licenses=(License("OpenBLAS", "BSD-3-Clause"),),
            toolchain={"openblas": archive.resolve().name},
        )

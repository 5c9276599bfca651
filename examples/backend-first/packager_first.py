"""The smallest backend: relu of float32 tensors, in C."""

import math

from packager.backends.api import (
    API_VERSION,
    BackendOutput,
    FunctionGroup,
    Parameter,
    PartitionOptions,
    Pattern,
    PrimitiveFunction,
    StaticLibrary,
    run,
)

FUNCTION = """
int32_t {symbol}(const float *x, float *y, int64_t begin, int64_t end) {{
  for (int64_t i = begin; i < end; ++i) y[i] = x[i] < 0 ? 0 : x[i];
  return 0;
}}
"""


class FirstBackend:
    """Takes relu."""

    api_version = API_VERSION
    kind = "first"
    device = "cpu"
    options = PartitionOptions
    summary = "relu, in C: the example that writing a backend begins with"
    merges = False

    def canonical(self, options, base):
        """Return the options with defaults that depend on this machine or on ``base``: it has none."""
        return options

    def probe(self, target):
        """Return why it cannot be used here: it always can."""
        return None

    def patterns(self, target):
        """Return what it takes of a model."""
        from tvm.relax.dpl import is_op, wildcard

        return [Pattern("first.relu", is_op("relax.nn.relu")(wildcard()), check=is_float32)]

    def compile(self, partitions, target, context):
        """Compile one C file with a function for each partition."""
        if not partitions:
            return BackendOutput(self.kind)
        groups, source = {}, "#include <stdint.h>\n"
        for partition in partitions:
            symbol = f"{partition.name}_relu"
            source += FUNCTION.format(symbol=symbol)
            x, y = Parameter("argument", 0), Parameter("argument", 1, written=True)
            extent = math.prod(partition.function.params[0].ty.shape.values)
            groups[partition.name] = FunctionGroup((PrimitiveFunction(symbol, (x, y), extent=extent),))
        (context.workdir / "first.c").write_text(source)
        run([context.toolchain.cc, "-O3", "-fPIC", "-c", "first.c", "-o", "first.o"], cwd=context.workdir)
        symbols = tuple(function.symbol for group in groups.values() for function in group.functions)
        return BackendOutput(self.kind, (StaticLibrary("first", (context.workdir / "first.o",), symbols),), groups)


def is_float32(match):
    """Whether a match is a relu of float32 numbers."""
    return match.calls[0].ty.dtype == "float32"

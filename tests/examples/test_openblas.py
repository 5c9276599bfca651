"""``examples/backend-openblas`` as its users have it: installed from a wheel, and used from the command line."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

import packager
from packager.backends.attributes import attributes_of
from packager.backends.base import PartitionOptions

from .conftest import EXAMPLES, Run, runner

pytestmark = pytest.mark.slow

WEIGHTS = {
    "w": np.random.default_rng(1).standard_normal((96, 128)).astype(np.float32) / 10,
    "b": np.random.default_rng(2).standard_normal(128).astype(np.float32),
    "v": np.random.default_rng(3).standard_normal((128, 37)).astype(np.float32) / 10,
}
AVX2 = {"avx", "avx2", "fma", "bmi1", "bmi2", "f16c", "abm", "movbe"}


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = relu(x @ w + b) @ v with a symbolic batch, and s = x @ z with two inputs."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["xw"]),
            helper.make_node("Add", ["xw", "b"], ["sum"]),
            helper.make_node("Relu", ["sum"], ["hidden"]),
            helper.make_node("MatMul", ["hidden", "v"], ["y"]),
            helper.make_node("MatMul", ["x", "z"], ["s"]),
        ],
        "layers",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 96]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, [96, 21]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", k]) for name, k in (("y", 37), ("s", 21))],
        [numpy_helper.from_array(array, name) for name, array in WEIGHTS.items()],
    )
    path = tmp_path_factory.mktemp("layers") / "layers.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def model(layers: Path, tmp_path: Path) -> Path:
    """The model in a folder of the test's own."""
    return shutil.copy(layers, tmp_path / layers.name)


def build(
    run: Run, model: Path, *targets: str, options: Sequence[str] = (), golden: Sequence[str] = ("--golden", "0")
) -> Path:
    """Build a bundle with the command line, and return its path."""
    bundle = model.with_suffix(".so")
    flags = [part for target in targets for part in ("--target", target)]
    done = run("-m", "packager", "build", model, "-o", bundle, "--dim", "n=1:200", *golden, *options, *flags)
    assert done.returncode == 0, done.stderr
    return bundle


@pytest.fixture(scope="module")
def bundle(openblas_wheel: Path, archive: Path, layers: Path) -> Path:  # noqa: ARG001  without an archive it skips
    """The model's bundle, with the products of openblas."""
    return build(runner(openblas_wheel.parent / "site", layers.parent), layers, "llvm", "openblas")


def check(bundle: Path) -> None:
    """Compare a bundle with numpy, in this process, which does not know the backend."""
    rng = np.random.default_rng(4)
    for threads in (1, 2):
        with packager.load(bundle, threads=threads) as loaded:
            for n in (1, 47, 48, 49, 200):
                x, z = (rng.standard_normal(shape).astype(np.float32) for shape in ((n, 96), (96, 21)))
                results = loaded.run({"x": x, "z": z})
                hidden = np.maximum(x @ WEIGHTS["w"] + WEIGHTS["b"], 0)
                np.testing.assert_allclose(results["y"], hidden @ WEIGHTS["v"], rtol=1e-4, atol=1e-4)
                np.testing.assert_allclose(results["s"], x @ z, rtol=1e-4, atol=1e-4)


def refused(run: Run, model: Path, *targets: str) -> str:
    """Return what the command line says of Targets that it refuses as wrong usage, with nothing written."""
    flags = [part for target in targets for part in ("--target", target)]
    done = run("-m", "packager", "build", model, "-o", model.with_suffix(".so"), *flags)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not model.with_suffix(".so").exists()
    return " ".join(done.stderr.split())


def test_wheel_holds_the_package_and_names_its_backend(openblas_wheel: Path) -> None:
    with zipfile.ZipFile(openblas_wheel) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        assert "openblas = packager_openblas:BACKEND" in wheel.read(entry_points).decode()
    source = EXAMPLES / "backend-openblas" / "packager_openblas"
    files = {f"{source.name}/{path.name}" for path in source.iterdir() if path.suffix in {".py", ".h"}}
    assert files == {name for name in names if ".dist-info/" not in name}


def test_its_attributes_are_listed(with_openblas: Run) -> None:
    done = with_openblas("-m", "packager", "targets", "openblas", "--json")
    assert done.returncode == 0, done.stderr
    listed = json.dumps(json.loads(done.stdout))
    for name in ("archive", "core", "bias", "min_rows", *attributes_of(PartitionOptions)):
        assert f'"{name}"' in listed
    assert "packager-backend-openblas" in listed


def test_it_computes_what_numpy_does_and_says_so(with_openblas: Run, archive: Path, bundle: Path) -> None:
    check(bundle)
    manifest = packager.inspect(bundle).manifest
    by_kind = {record.kind: record for record in manifest.backends}
    composites = {primitive.composite for primitive in by_kind["openblas"].primitives}
    assert composites == {"openblas.matmul", "openblas.matmul_bias"}
    assert [op for primitive in by_kind["llvm"].primitives for op in primitive.ops] == ["relu"]
    assert by_kind["openblas"].static_libraries
    assert ("OpenBLAS", "BSD-3-Clause") in {(one.component, one.spdx) for one in manifest.licenses}
    recorded = next(target for target in manifest.targets if target["kind"] == "openblas")
    assert (recorded["archive"], recorded["core"]) == (archive.name, "HASWELL")
    done = with_openblas("-m", "packager", "inspect", bundle)
    assert "openblas" in done.stdout


@pytest.mark.usefixtures("archive")
@pytest.mark.parametrize(
    ("order", "composites"),
    [
        (("openblas", "ccompiler"), {"openblas.matmul_bias", "openblas.matmul", "ccompiler.elementwise"}),
        (("ccompiler", "openblas"), {"ccompiler.dense+ccompiler.elementwise", "ccompiler.dense"}),
    ],
    ids=["openblas_first", "ccompiler_first"],
)
def test_it_shares_a_model_by_the_order_of_targets(
    with_openblas: Run, model: Path, order: tuple[str, str], composites: set[str]
) -> None:
    """What stands first takes first: relu alone is left to ccompiler, or nothing to openblas."""
    bundle = build(with_openblas, model, "llvm", *order)
    check(bundle)
    primitives = [p for record in packager.inspect(bundle).manifest.backends for p in record.primitives]
    assert {primitive.composite for primitive in primitives} == composites


def test_only_three_kernels_of_one_cpu_are_linked(archive: Path, bundle: Path) -> None:
    """The archive has tens of megabytes, a constructor, threads, and code for CPUs that the Target does not allow."""
    manifest = packager.inspect(bundle).manifest
    assert archive.stat().st_size > 20 << 20
    assert manifest.sizes.code < 200 << 10
    assert set(manifest.requirements.cpu_features) <= AVX2
    assert set(manifest.requirements.needed) <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
    assert packager.verify(bundle, policy="hermetic").ok


@pytest.mark.usefixtures("archive")
def test_kernels_follow_the_cpu_of_the_base_target(with_openblas: Run, model: Path) -> None:
    bundle = build(with_openblas, model, "llvm -mcpu=x86-64-v4", "openblas", golden=())  # which would run it here
    manifest = packager.inspect(bundle).manifest
    assert next(t for t in manifest.targets if t["kind"] == "openblas")["core"] == "SKYLAKEX"
    assert "avx512f" in manifest.requirements.cpu_features
    if packager.verify(bundle).ok:
        check(bundle)


def test_bytes_are_the_same_each_time(with_openblas: Run, model: Path, bundle: Path) -> None:
    again = build(with_openblas, model, "llvm", "openblas", options=["--keep-workdir", model.with_name("work")])
    assert again.read_bytes() == bundle.read_bytes()


def test_packed_weights_that_are_views_can_be_swapped(bundle: Path) -> None:
    """w has a multiple of 8 columns, v has not: its packed form cannot be written by strides."""
    names = {constant.name for constant in packager.inspect(bundle).manifest.constants}
    assert {"w:columns8", "v:columns8", "b"} <= names
    x, z = np.ones((3, 96), np.float32), np.zeros((96, 21), np.float32)
    with packager.load(bundle) as loaded, loaded.session() as session:
        session.set_constants({"w": 2 * WEIGHTS["w"]})
        hidden = np.maximum(2 * (x @ WEIGHTS["w"]) + WEIGHTS["b"], 0)
        np.testing.assert_allclose(session.run({"x": x, "z": z})["y"], hidden @ WEIGHTS["v"], rtol=1e-4, atol=1e-4)
        with pytest.raises(packager.PackagerError, match="v"):
            session.set_constants({"v": WEIGHTS["v"]})


def test_missing_archive_has_a_message_that_says_what_to_install(with_openblas: Run, model: Path) -> None:
    assert "'archive' of Target 'openblas' is 'nowhere.a', which is not a file" in refused(
        with_openblas, model, "llvm", "openblas -archive=nowhere.a"
    )
    hidden = (
        "import sys, packager_openblas.backend as backend; backend.FOLDERS.clear();"
        "from packager.cli.main import main; sys.argv[0] = 'packager'; sys.exit(main())"
    )
    done = with_openblas("-c", hidden, "build", model, "-o", "model.so", "-t", "llvm", "-t", "openblas")
    assert done.returncode == 2
    told = " ".join(done.stderr.split())
    assert "there is no static archive of OpenBLAS" in told
    assert "apt-get install libopenblas-serial-dev" in told


def test_an_archive_without_the_kernels_is_refused(with_openblas: Run, model: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.a"
    for content in (b"", b"!<arch>\n"):
        foreign.write_bytes(content)
        told = refused(with_openblas, model, "llvm", f"openblas -archive={foreign} -core=HASWELL")
        assert "does not define sgemm_oncopy_HASWELL, sgemm_itcopy_HASWELL, sgemm_kernel_HASWELL" in told
        assert "DYNAMIC_ARCH=1" in told


@pytest.mark.parametrize("base", ["llvm -mcpu=x86-64", "llvm -mtriple=aarch64-linux-gnu"])
@pytest.mark.usefixtures("archive")
def test_a_cpu_without_kernels_is_refused(with_openblas: Run, model: Path, base: str) -> None:
    told = refused(with_openblas, model, base, "openblas")
    assert "it knows no kernels for the CPU of the llvm Target" in told
    assert "-core" in told


@pytest.mark.thorough  # the other example does the same
@pytest.mark.usefixtures("archive")
def test_it_passes_its_own_tests(with_openblas: Run, tmp_path: Path) -> None:
    """The conformance suite, as the package's authors run it."""
    shutil.copy(EXAMPLES / "backend-openblas" / "test_packager_openblas.py", tmp_path)
    done = with_openblas("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_packager_openblas.py")
    assert done.returncode == 0, done.stdout + done.stderr

"""``packager targets``, and backends of other distributions: those that work, and those that do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import ROOT, Cli, assert_refused

pytestmark = pytest.mark.slow

Install = Callable[..., dict[str, "str | None"]]

BACKEND = """
import dataclasses
from packager.backends.base import PartitionOptions, Unavailable, attribute

@dataclasses.dataclass(frozen=True)
class Options(PartitionOptions):
    level: int = attribute(2, "How hard to try", choices=(1, 2, 3))
    header: tuple[str, ...] = attribute(("a.h", "b.h"), "Headers to include")

class Backend:
    api_version, kind, device, merges, options = 1, "acme", "cpu", False, Options
    summary = "Matrix products by ACME"
    def canonical(self, options, base): return options
    def probe(self, target):
        return Unavailable("ACME is not installed", "apt-get install acme") if target.options.level == 3 else None
    def patterns(self, target): return ()
    def compile(self, partitions, target, context): raise NotImplementedError
"""


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Install a distribution as pip would, and return the environment in which it is found."""
    site = tmp_path / "site"

    def install(name: str, version: str, entry_points: str, **modules: str) -> dict[str, str | None]:
        information = site / f"{name.replace('-', '_')}-{version}.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (information / "entry_points.txt").write_text(f"[packager.backends]\n{entry_points}\n")
        for module, text in modules.items():
            (site / f"{module}.py").write_text(text)
        return {"PYTHONPATH": f"{ROOT}{os.pathsep}{site}"}

    return install


def kinds(cli: Cli, env: dict[str, str | None]) -> dict[tuple[str, str], dict[str, object]]:
    """Return what ``packager targets --json`` says, by kind and origin."""
    done = cli("targets", "--json", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["schema_version"] == 1
    return {(record["kind"], record["origin"]): record for record in found["kinds"]}


def test_packagers_own_kinds(cli: Cli) -> None:
    records = kinds(cli, {})
    assert [kind for kind, origin in records if origin == "packager"] == [
        "llvm",
        "cuda",
        "cutlass",
        "cublas",
        "cudnn",
        "tensorrt",
        "ccompiler",
        "external",
    ]
    llvm, ccompiler = records["llvm", "packager"], records["ccompiler", "packager"]
    assert (llvm["device"], llvm["role"], llvm["available"], llvm["reason"]) == ("cpu", "base", True, None)
    assert (ccompiler["device"], ccompiler["role"], ccompiler["available"]) == ("cpu", "specialized", True)
    table = cli("targets")
    assert (table.returncode, table.stderr) == (0, "")
    lines = [line.split() for line in table.stdout.splitlines()]
    assert ["llvm", "cpu", "base", "packager"] in [words[:4] for words in lines]


def test_a_kind_with_its_attributes_needs_no_tvm(cli: Cli, tmp_path: Path) -> None:
    for name in ("tvm", "tvm_ffi", "torch", "onnx"):
        (tmp_path / "poison").mkdir(exist_ok=True)
        (tmp_path / "poison" / f"{name}.py").write_text("raise AssertionError('imported')")
    env = {"PYTHONPATH": f"{tmp_path / 'poison'}{os.pathsep}{ROOT}"}
    assert "imported" in cli("targets", env=env).stderr  # it would be noticed
    for kind in ("llvm", "ccompiler", "external"):
        done = cli("targets", kind, "--json", env=env)
        assert (done.returncode, done.stderr) == (0, "")
        (record,) = json.loads(done.stdout)["kinds"]
        assert record["kind"] == kind
        assert "available" not in record
        for attribute in record["attributes"]:
            assert set(attribute) == {"name", "type", "default", "doc", "choices", "minimum"}
        table = cli("targets", kind, env=env)
        assert (table.returncode, table.stderr) == (0, "")
        assert all(f"  {attribute['name']} " in table.stdout for attribute in record["attributes"])


def test_an_unknown_kind(cli: Cli) -> None:
    assert_refused(cli("targets", "lvm"), 2, "unknown Target kind 'lvm'", hint="did you mean 'llvm'?")


def test_where_nothing_of_the_build_side_is(tmp_path: Path) -> None:
    """-I -S: no site-packages; the path has this package and numpy alone."""
    site = Path(np.__file__).parents[1]
    only_numpy = tmp_path / "path"
    only_numpy.mkdir()
    for name in ("numpy", "numpy.libs"):
        if (site / name).exists():
            (only_numpy / name).symlink_to(site / name)
    script = f"""
import json, sys
sys.path[:0] = [{str(only_numpy)!r}, {str(ROOT)!r}]
from packager.targets import availability as target_report
print(json.dumps(target_report.to_json(target_report.report_all())))
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for record in json.loads(done.stdout)["kinds"]:
        assert record["available"] is False
        assert record["reason"].startswith("building needs apache-tvm, ") or record["kind"] == "external"
        assert record["hint"]


def test_a_backend_of_another_distribution(cli: Cli, install: Install) -> None:
    env = install("acme", "1.2", "acme = acme_backend:Backend", acme_backend=BACKEND)
    record = kinds(cli, env)["acme", "acme 1.2"]
    assert record["summary"] == "Matrix products by ACME"
    assert (record["role"], record["available"], record["reason"], record["hint"]) == ("specialized", True, None, None)
    table = cli("targets", "acme", env=env)
    assert table.returncode == 0
    lines = [" ".join(line.split()) for line in table.stdout.splitlines()]
    assert "origin acme 1.2" in lines
    assert "level int 2 1, 2, 3 How hard to try" in lines
    assert "header list of str a.h,b.h - Headers to include" in lines
    assert "min_partition_flops int 0 >= 0 Leave partitions of fewer floating-point operations a call" in lines
    doctor = cli("doctor", env=env)
    assert doctor.returncode == 0
    assert "ok  backend acme                 from acme 1.2" in doctor.stdout


def test_a_build_checks_the_attributes_of_other_distributions(cli: Cli, install: Install, models: Path) -> None:
    env = install("acme", "1.2", "acme = acme_backend:Backend", acme_backend=BACKEND)
    model = models / "mlp.onnx"
    refused = cli("build", model, "-t", "acme -level=4", env=env)
    assert_refused(refused, 2, "'level' of Target 'acme' is 4, which is not valid", hint="valid values: 1, 2, 3")
    refused = cli("build", model, "-t", "llvm", "-t", "acme -level=3", env=env)
    assert_refused(refused, 2, "Target 'acme' cannot be used: ACME is not installed", hint="apt-get install acme")
    refused = cli("build", model, "-t", "acme", "-t", "llvm -compiler=acme", env=env)
    assert_refused(refused, 2, "2 Targets of kind 'acme' were given", hint="give one acme Target")


@pytest.mark.parametrize(
    ("module", "code", "message", "hint"),
    [
        (
            BACKEND.replace("= 1, ", "= 2, "),
            2,
            "'acme' of acme 1.2 is written for version 2 of the backend interface, and this packager has version 1",
            "upgrade packager, or install an older acme",
        ),
        (BACKEND.replace("= 1, ", "= 0, "), 2, "is written for version 0", "install a newer acme, or uninstall it"),
        (BACKEND.replace("api_version,", "version,"), 2, "is written for version None", "install a newer acme"),
        (
            BACKEND.replace('"acme"', '"ecma"'),
            5,
            "'acme' of acme 1.2 cannot be used: its kind is 'ecma', and its entry point is named 'acme'",
            "upgrade or uninstall acme",
        ),
        (
            BACKEND.replace("frozen=True", ""),
            5,
            "cannot be imported\n  TypeError: cannot inherit non-frozen",
            "upgrade or uninstall acme",
        ),
        (BACKEND.replace("probe", "prob"), 5, "cannot be used: it has no 'probe'", "upgrade or uninstall acme"),
        (
            "import no_such_module",
            5,
            "cannot be imported\n  ModuleNotFoundError: No module named 'no_such",
            "uninstall",
        ),
        ("x = (", 5, "cannot be imported\n  SyntaxError: ", "upgrade or uninstall acme"),
        ("x = 1", 5, "cannot be imported\n  AttributeError: ", "upgrade or uninstall acme"),
        ("def Backend(): return 1 / 0", 5, "cannot be imported\n  ZeroDivisionError: ", "upgrade or uninstall acme"),
        ("def Backend(): return 3", 2, "is written for version None", "install a newer acme"),
    ],
)
def test_a_broken_distribution(cli: Cli, install: Install, module: str, code: int, message: str, hint: str) -> None:
    env = install("acme", "1.2", "acme = acme_backend:Backend", acme_backend=module)
    assert_refused(cli("targets", "acme", env=env), code, "'acme' of acme 1.2", message, hint=hint)


def test_broken_distributions_are_listed_and_in_nobodys_way(cli: Cli, install: Install, models: Path) -> None:
    install("bad-import", "1", "absent = no_such_module:Backend")
    install("bad-api", "2", "acme = acme_backend:Backend", acme_backend=BACKEND.replace("= 1, ", "= 2, "))
    env = install("bad-kind", "3", "other = other_backend:Backend", other_backend=BACKEND)
    records = kinds(cli, env)
    assert records["llvm", "packager"]["available"] is True
    for kind, origin, code, message in (
        ("absent", "bad-import 1", 5, "cannot be imported"),
        ("acme", "bad-api 2", 2, "is written for version 2 of the backend interface"),
        ("other", "bad-kind 3", 5, "its kind is 'acme'"),
    ):
        record = records[kind, origin]
        assert (record["available"], record["device"], record["attributes"]) == (False, None, [])
        assert message in str(record["reason"])
        assert_refused(cli("build", models / "mlp.onnx", "-t", kind, env=env), code, f"{kind!r} of {origin}", message)
    assert_refused(cli("build", models / "mlp.onnx", "-t", "lvm", env=env), 2, "unknown Target kind 'lvm'")
    doctor = cli("doctor", env=env)
    assert (doctor.returncode, doctor.stderr) == (0, "")
    assert "ok  backend absent" in doctor.stdout  # installed; that it is broken is for `packager targets absent` to say


def test_a_kind_of_packager_cannot_be_taken_over(cli: Cli, install: Install, models: Path) -> None:
    env = install("acme", "1.2", "llvm = acme_backend:Backend", acme_backend=BACKEND)
    message = "2 distributions have a backend of kind 'llvm': packager, acme 1.2"
    assert_refused(cli("build", models / "mlp.onnx", env=env), 2, message, hint="uninstall acme")
    records = kinds(cli, env)
    assert records["llvm", "packager"]["reason"] == records["llvm", "acme 1.2"]["reason"] == message
    assert_refused(cli("targets", "llvm", env=env), 2, message, hint="uninstall acme")


def test_two_distributions_with_one_kind(cli: Cli, install: Install) -> None:
    install("acme", "1.2", "acme = acme_backend:Backend", acme_backend=BACKEND)
    env = install("ecma", "0.1", "acme = acme_backend:Backend")
    message = "2 distributions have a backend of kind 'acme': acme 1.2, ecma 0.1"
    assert_refused(cli("targets", "acme", env=env), 2, message, hint="uninstall acme or ecma")
    records = kinds(cli, env)
    assert records["acme", "acme 1.2"]["reason"] == records["acme", "ecma 0.1"]["reason"] == message
    assert records["llvm", "packager"]["available"] is True

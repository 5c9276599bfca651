from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from packager.bundle.manifest import License, Manifest
from packager.bundle.reader import read_bundle
from packager.deploy.verify import policy as p
from packager.errors import UsageError

replace = dataclasses.replace


@pytest.fixture
def manifest(good: Path) -> Manifest:
    return read_bundle(good).manifest


def write(path: Path, body: str) -> str:
    path.write_text(f'schema_version = 1\nname = "test"\n{body}')
    return str(path)


@pytest.mark.parametrize(
    ("body", "key", "message"),
    [
        ('allowed_libraries = ["libm.so.6"]', "allowed_libraries", "needs ld-linux-x86-64.so.2, libc.so.6"),
        ('max_glibc = "2.2.5"', "max_glibc", "more than 2.2.5"),
        ("allowed_cpu_features = []", "allowed_cpu_features", "uses the CPU features sse2"),
        ("max_file_bytes = 100", "max_file_bytes", "more than 100"),
        ("max_arena_bytes = 63", "max_arena_bytes", "64 bytes, more than 63"),
        ("max_constant_bytes = 0", "max_constant_bytes", "64 bytes, more than 0"),
        ('required_backends = ["cutlass"]', "required_backends", "nothing compiled by cutlass"),
        ('forbidden_backends = ["llvm"]', "forbidden_backends", "has code of llvm"),
        ('required_targets = ["llvm -mcpu=x86-64-v4"]', "required_targets", "not built for"),
        ('required_targets = ["llvm -num-cores=4"]', "required_targets", "not built for"),
        ('allowed_licenses = ["MIT"]', "allowed_licenses", "packager runtime is under Apache-2.0"),
    ],
)
def test_each_key(body: str, key: str, message: str, manifest: Manifest, tmp_path: Path) -> None:
    (finding,) = p.policy_findings(manifest, p.read_policy(write(tmp_path / "p.toml", body)))
    assert finding.check == f"policy.{key}"
    assert message in finding.what
    assert "policy 'test'" in finding.why


@pytest.mark.parametrize(
    "body",
    [
        "",
        'allowed_libraries = ["libc.so.6", "ld-linux-x86-64.so.2"]',
        'max_glibc = "2.28"',
        'cpu_level = "x86-64-v1"',
        'allowed_cpu_features = ["sse2", "avx2"]',
        "max_file_bytes = 10000000",
        "max_arena_bytes = 64",
        'required_backends = ["llvm"]',
        'forbidden_backends = ["cutlass"]',
        'required_targets = ["llvm", "llvm -mcpu=x86-64-v3"]',
        "require_golden = true",
        "allow_external_weights = false",
        'allowed_licenses = ["Apache-2.0"]',
    ],
)
def test_keys_that_are_met(body: str, manifest: Manifest, tmp_path: Path) -> None:
    assert list(p.policy_findings(manifest, p.read_policy(write(tmp_path / "p.toml", body)))) == []


def test_glibc_versions_are_numbers(manifest: Manifest) -> None:
    newer = replace(manifest, requirements=replace(manifest.requirements, glibc="2.10"))
    assert list(p.policy_findings(newer, p.Policy(1, "x", max_glibc="2.9")))
    assert not list(p.policy_findings(newer, p.Policy(1, "x", max_glibc="2.17")))


def test_cpu_levels_grow_and_add_up(manifest: Manifest) -> None:
    avx = replace(manifest, requirements=replace(manifest.requirements, cpu_features=("avx512f", "avx512_bf16")))
    (finding,) = p.policy_findings(avx, p.Policy(1, "x", cpu_level="x86-64-v4"))
    assert finding.what.endswith("features avx512_bf16")
    (finding,) = p.policy_findings(avx, p.Policy(1, "x", cpu_level="x86-64-v3"))
    assert finding.what.endswith("features avx512_bf16, avx512f")
    assert not list(
        p.policy_findings(avx, p.Policy(1, "x", cpu_level="x86-64-v4", allowed_cpu_features=("avx512_bf16",)))
    )


@pytest.mark.parametrize(
    ("expression", "accepted"),
    [
        ("MIT", True), ("GPL-3.0-only", False), ("GPL-3.0-only OR MIT", True), ("GPL-3.0-only AND MIT", False),
        ("Apache-2.0 AND MIT", True), ("(MIT)", False), ("Apache-2.0 WITH LLVM-exception", False),
    ],
)  # fmt: skip
def test_license_expressions(expression: str, accepted: bool, manifest: Manifest) -> None:
    licensed = replace(manifest, licenses=(License("x", expression),))
    findings = list(p.policy_findings(licensed, p.Policy(1, "x", allowed_licenses=("MIT", "Apache-2.0"))))
    assert (findings == []) == accepted


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('allowed_libs = ["x"]', r"unknown key 'allowed_libs' \(did you mean 'allowed_libraries'\?\)"),
        ("require_golden = 1", r"\$\.require_golden: expected boolean, found integer"),
        ('max_glibc = "new"', r"\$\.max_glibc: must be a version"),
        ('cpu_level = "v3"', r"\$\.cpu_level: expected one of"),
        ("max_file_bytes = -1", r"\$\.max_file_bytes"),
        ('required_targets = ["-mcpu=x"]', "does not start with a target kind"),
        ('required_targets = ["llvm mcpu"]', "expected -key=value"),
        ("x = ", "Invalid value"),
        ('name = "again"', "Cannot overwrite a value"),
    ],
)
def test_bad_policy_files(body: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        p.read_policy(write(tmp_path / "p.toml", body))


def test_policies_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'hermetic'") as caught:
        p.read_policy("hermitic")
    assert "built-in policies: default, hermetic" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="cannot use the policy"):
        p.read_policy(str(tmp_path / "absent.toml"))
    with pytest.raises(UsageError, match="cannot use the policy"):
        p.read_policy(str(tmp_path))


@pytest.mark.parametrize("name", ["default", "hermetic"])
def test_built_in_policies_fit_their_schema(name: str) -> None:
    value: Any = tomllib.loads((Path(p.__file__).parent / "policies" / f"{name}.toml").read_text())
    jsonschema.Draft202012Validator(p.policy_schema()).validate(value)
    assert p.read_policy(name).name == name
    assert json.dumps(p.policy_schema())

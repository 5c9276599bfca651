"""Signed bundles: who signed what counts, and nothing of a tampered file does, whatever its hashes say."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import importlib.metadata
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import packager
from packager.bundle.hashing import sha256_of_file
from packager.bundle.manifest import CONSTANTS_SECTION, GOLDEN_SECTION
from packager.bundle.reader import inspect
from packager.bundle.section import write_manifest
from packager.deploy.trust.sbom import bill_of_materials
from packager.deploy.trust.statement import provenance_statement
from packager.deploy.trust.trust import Trust, read_trust
from packager.deploy.verify.verifier import verify
from packager.errors import BundleError, UsageError

from .models import DIGITS

DAY = datetime.timedelta(days=1)


@dataclasses.dataclass(frozen=True)
class Signer:
    """A key, and a certificate for it by an authority."""

    key: Path
    public: Path
    certificate: Path
    authority: Path


def write_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    none = serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, none))
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(public)
    return key


def certify(
    path: Path,
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: tuple[str, ec.EllipticCurvePrivateKey] | None = None,
    valid: tuple[int, int] = (-1, 30),
    email: str | None = None,
) -> None:
    """Write a certificate that is valid from and to these days from now; an authority's without ``issuer``."""
    issuer_name, issuer_key = issuer or (name, key)
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer_name)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + valid[0] * DAY)
        .not_valid_after(now + valid[1] * DAY)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(True, False, False, False, False, issuer is None, False, False, False), critical=True
        )
    )
    if email:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.RFC822Name(email)]), critical=False)
    path.write_bytes(builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trust")


@pytest.fixture(scope="module")
def signer(folder: Path) -> Signer:
    """A signer with the identity release@example.com; also an expired certificate, and another signer's."""
    write_key(folder / "other.key")
    key, authority = write_key(folder / "release.key"), write_key(folder / "authority.key")
    certify(folder / "authority.pem", "authority", authority, valid=(-100, 100))
    issuer = ("authority", authority)
    certify(folder / "release.pem", "release", key, issuer, email="release@example.com")
    certify(folder / "expired.pem", "release", key, issuer, valid=(-60, -30), email="release@example.com")
    certify(folder / "early.pem", "release", key, issuer, valid=(1, 30), email="release@example.com")
    certify(folder / "nameless.pem", "release", key, issuer)
    certify(folder / "stranger.pem", "stranger", write_key(folder / "stranger.key"), valid=(-100, 100))
    names = ("release.key", "release.pub", "release.pem", "authority.pem")
    return Signer(*(folder / name for name in names))


@pytest.fixture(scope="module")
def built(folder: Path) -> Path:
    return packager.build(DIGITS.path, folder / "digits.so", targets=["llvm"], dims={"n": (1, 8)}, golden=0)


@pytest.fixture
def signed(built: Path, signer: Signer, tmp_path: Path) -> Path:
    """A fresh copy of the bundle, signed with the key."""
    copy = Path(shutil.copy(built, tmp_path / "model.so"))
    assert packager.sign(copy, key=signer.key) == tmp_path / "model.so.sig"
    return copy


def refused(path: Path, trust: Trust | Path, aspect: str, signature: Path | None = None) -> str:
    """Demand that verify and load refuse a bundle before they interpret it; return the one sentence."""
    result = verify(path, trust=trust, signature=signature)
    (finding,) = result.findings
    assert finding.check == f"signature.{aspect}"
    assert [check.name for check in result.checks] == ["signature"]
    assert "\n" not in finding.what
    with pytest.raises(BundleError) as caught:
        packager.load(path, trust=trust, signature=signature)
    assert caught.value.message == finding.what
    return finding.what


def test_a_signed_bundle_is_accepted_and_loaded(signed: Path, signer: Signer) -> None:
    assert verify(signed, trust=signer.public).ok
    packager.load(signed, trust=signer.public).close()
    moved = signed.rename(signed.with_name("renamed.so"))
    assert verify(moved, trust=signer.public, signature=signed.with_name("model.so.sig")).ok


def test_the_reference_implementation_accepts_the_signature(signed: Path, signer: Signer) -> None:
    argv = [sys.executable, "-m", "model_signing", "verify", "key", str(signed)]
    argv += ["--signature", f"{signed}.sig", "--public_key", str(signer.public)]
    subprocess.run(argv, check=True, capture_output=True)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def tamper_code(path: Path) -> None:
    flip(path, inspect(path).elf.sections[".text"].offset)


def tamper_constants(path: Path) -> None:
    flip(path, inspect(path).elf.sections[CONSTANTS_SECTION].offset + 3)


def tamper_golden(path: Path) -> None:
    flip(path, inspect(path).elf.sections[GOLDEN_SECTION].offset + 100)


def tamper_manifest(path: Path) -> None:
    """Say that another compiler made it, and make the hashes anew."""
    bundle = inspect(path)
    changed = dataclasses.replace(bundle.manifest, toolchain={"cc": "another"})
    write_manifest(path, changed, bundle.section.offset, bundle.section.size)
    assert verify(path).ok


@pytest.mark.parametrize("tamper", [tamper_code, tamper_constants, tamper_golden, tamper_manifest])
def test_a_tampered_part_is_refused(signed: Path, signer: Signer, tamper: Callable[[Path], None]) -> None:
    tamper(signed)
    assert "is not the file that was signed" in refused(signed, signer.public, "changed")


def test_a_tampered_signature_is_refused(signed: Path, signer: Signer) -> None:
    place = Path(f"{signed}.sig")
    whole = json.loads(place.read_bytes())
    envelope = whole["dsseEnvelope"]
    value = bytearray(base64.b64decode(envelope["signatures"][0]["sig"]))
    value[-1] ^= 1
    envelope["signatures"][0]["sig"] = base64.b64encode(value).decode()
    place.write_text(json.dumps(whole))
    assert "no one whom release.pub trusts" in refused(signed, signer.public, "untrusted")


def test_a_forged_statement_is_refused(signed: Path, signer: Signer) -> None:
    """The statement names the tampered file, but the signature is of the former statement."""
    place = Path(f"{signed}.sig")
    before = sha256_of_file(signed)
    tamper_manifest(signed)
    whole = json.loads(place.read_bytes())
    payload = base64.b64decode(whole["dsseEnvelope"]["payload"]).decode()
    after = sha256_of_file(signed)
    assert before in payload
    whole["dsseEnvelope"]["payload"] = base64.b64encode(payload.replace(before, after).encode()).decode()
    place.write_text(json.dumps(whole))
    refused(signed, signer.public, "untrusted")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b"\xff" * 100, b'{"verificationMaterial": 3}', b"[" * 100_000, b"0" * (2 << 20)]
)
def test_a_signature_file_of_anything_is_refused(signed: Path, signer: Signer, content: bytes) -> None:
    Path(f"{signed}.sig").write_bytes(content)
    refused(signed, signer.public, "damaged")


def test_an_absent_signature_is_refused(built: Path, signer: Signer) -> None:
    assert "is not signed" in refused(built, signer.public, "absent")


def test_another_signer_is_refused(signed: Path, folder: Path, signer: Signer) -> None:
    refused(signed, folder / "other.pub", "untrusted")
    refused(signed, signer.authority, "untrusted")
    both = Trust(1, "both", public_keys=(str(folder / "other.pub"), str(signer.public)))
    assert verify(signed, trust=both).ok


def with_certificate(bundle: Path, signer: Signer, name: str) -> None:
    packager.sign(bundle, key=signer.key, certificate=signer.certificate.with_name(name), chain=[signer.authority])


def test_a_certificate_and_its_identity_count(signed: Path, signer: Signer) -> None:
    with_certificate(signed, signer, "release.pem")
    assert verify(signed, trust=signer.authority).ok
    right = Trust(1, "release", authorities=(str(signer.authority),), identities=("release@example.com",))
    wrong = dataclasses.replace(right, identities=("boss@example.com",))
    assert verify(signed, trust=right).ok
    assert "release@example.com signed it, not boss@example.com" in refused(signed, wrong, "identity")
    refused(signed, signer.authority.with_name("stranger.pem"), "untrusted")
    refused(signed, signer.public, "untrusted")
    with_certificate(signed, signer, "nameless.pem")
    assert "someone without a name" in refused(signed, right, "identity")


@pytest.mark.parametrize(("name", "sentence"), [("expired.pem", "expired on"), ("early.pem", "is valid from")])
def test_a_certificate_counts_while_it_is_valid(signed: Path, signer: Signer, name: str, sentence: str) -> None:
    with_certificate(signed, signer, name)
    assert sentence in refused(signed, signer.authority, "expired")


def test_external_weights_are_signed_with_the_bundle(tmp_path: Path, signer: Signer) -> None:
    path = packager.build(
        DIGITS.path, tmp_path / "digits.so", targets=["llvm"], dims={"n": 1}, weights="external", golden=0
    )
    packager.sign(path, key=signer.key)
    packager.load(path, trust=signer.public).close()
    weights = tmp_path / "digits.safetensors"
    flip(weights, weights.stat().st_size - 1)
    assert {finding.check for finding in verify(path, trust=signer.public).findings} == {"integrity.weights_data"}
    with pytest.raises(BundleError, match=r"weights file .* is not the one that was signed"):
        packager.load(path, trust=signer.public)
    weights.unlink()
    with pytest.raises(BundleError, match="weights file"):
        packager.load(path, trust=signer.public)


def test_a_policy_can_ask_for_a_signature(signed: Path, signer: Signer, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('schema_version = 1\nname = "signed"\nrequire_signature = true\n')
    assert [finding.check for finding in verify(signed, policy=str(policy)).findings] == ["policy.require_signature"]
    assert verify(signed, policy=str(policy), trust=signer.public).ok


def test_a_damaged_bundle_is_not_signed(built: Path, signer: Signer, tmp_path: Path) -> None:
    copy = Path(shutil.copy(built, tmp_path / "model.so"))
    tamper_code(copy)
    with pytest.raises(BundleError, match="damaged"):
        packager.sign(copy, key=signer.key)
    assert not list(tmp_path.glob("*.sig*"))


def test_keys_that_cannot_be_used_are_errors(signed: Path, signer: Signer, tmp_path: Path) -> None:
    for key in (tmp_path / "absent.key", signer.public, signed):
        with pytest.raises(UsageError, match="cannot sign with"):
            packager.sign(signed, key=key)
    with pytest.raises(UsageError, match=r"absent\.key: No such file or directory$"):
        packager.sign(signed, key=tmp_path / "absent.key")
    with pytest.raises(UsageError, match="cannot sign with"):
        packager.sign(signed, key=signer.key, certificate=signer.authority)
    for content, reason in (
        (signer.key.read_bytes(), "private key"),
        (b"schema_version = 1\nname = 'x'\n", "neither public_keys nor authorities"),
        (b"schema_version = 1\nname = 'x'\npublic_key = ['k']\n", "did you mean 'public_keys'"),
        (b"schema_version = 1\nname = 'x'\npublic_keys = ['k']\nidentities = ['me']\n", "only certificates"),
        (b"\xff\xfe", "utf-8"),
    ):
        (tmp_path / "trust").write_bytes(content)
        with pytest.raises(UsageError, match=reason):
            read_trust(tmp_path / "trust")
    (tmp_path / "trust").write_text("schema_version = 1\nname = 'x'\npublic_keys = ['absent.pub']\n")
    with pytest.raises(UsageError, match=r"absent\.pub"):
        verify(signed, trust=tmp_path / "trust")


def test_the_provenance_names_inputs_options_and_tools(built: Path) -> None:
    manifest = inspect(built).manifest
    assert manifest.provenance is not None
    (model,) = manifest.provenance.inputs
    assert (model.role, model.name, model.sha256) == ("model", DIGITS.path.name, sha256_of_file(DIGITS.path))
    assert manifest.provenance.options == {"dims": '{"n":{"max":8,"min":1}}', "golden": "0"}
    assert manifest.provenance.packages["apache-tvm"] == importlib.metadata.version("apache-tvm")
    assert not {"torch", "nvidia-cuda-nvcc"} & set(manifest.provenance.packages)  # they take no part
    statement = provenance_statement(inspect(built))
    assert statement["subject"] == [{"name": "digits.so", "digest": {"sha256": sha256_of_file(built)}}]
    dependencies = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert {"name": "model/digits.onnx", "digest": {"sha256": model.sha256}} in dependencies


def test_other_inputs_are_in_the_provenance(tmp_path: Path) -> None:
    header, weights, golden = tmp_path / "own.h", tmp_path / "w.npz", tmp_path / "g.npz"
    header.write_text("/* nothing */\n")
    np.savez(weights, **_constants())
    np.savez(golden, image=np.zeros((1, 1, 8, 8), np.float32))
    path = packager.build(
        DIGITS.path, tmp_path / "d.so", targets=["llvm", f"ccompiler -header={header}"], dims={"n": 1},
        constants=weights, golden=golden,
    )  # fmt: skip
    provenance = inspect(path).manifest.provenance
    assert provenance is not None
    found = {(item.role, item.name): item.sha256 for item in provenance.inputs}
    assert found == {
        ("model", "digits.onnx"): sha256_of_file(DIGITS.path),
        ("constants", "constants"): sha256_of_file(weights),
        ("golden", "golden"): sha256_of_file(golden),
        ("ccompiler", "own.h"): sha256_of_file(header),
    }


def _constants() -> dict[str, np.ndarray]:
    """Return one constant of the model, changed."""
    model = onnx.load(DIGITS.path)
    tensor = onnx.numpy_helper.to_array(model.graph.initializer[0])
    return {model.graph.initializer[0].name: tensor + np.ones_like(tensor)}


def test_the_bill_of_materials_is_valid_cyclonedx(built: Path) -> None:
    bundle = inspect(built)
    value = bill_of_materials(bundle)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(value)) is None
    assert value == bill_of_materials(bundle)
    assert value["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": sha256_of_file(built)}]
    names = {component["name"] for component in value["components"]}
    assert {"digits", "packager runtime", *bundle.manifest.requirements.needed} <= names
    for backend in bundle.manifest.backends:
        assert {f"{backend.kind}/{library.name}" for library in backend.static_libraries} <= names
    assert {"packager", "apache-tvm"} <= {tool["name"] for tool in value["metadata"]["tools"]["components"]}

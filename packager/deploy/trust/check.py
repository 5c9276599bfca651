"""Checks who signed a bundle, before anything of the bundle is interpreted."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager.bundle.hashing import sha256_of_file
from packager.bundle.reader import inspect
from packager.deploy.trust.library import model_signing
from packager.deploy.trust.trust import Trust, read_trust, signature_of
from packager.errors import BundleError, UsageError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_MAX_SIGNATURE_BYTES = 1 << 20
_SIGN_AGAIN = "sign the bundle again, with packager sign"


@dataclass(frozen=True)
class Refusal:
    """Why a signature does not count. ``aspect``: absent, damaged, changed, untrusted, expired or identity."""

    aspect: str
    what: str
    where: str
    hint: str


def refusal(path: Path, trust: Trust, signature: Path | None = None) -> Refusal | None:
    """Return why ``signature``, by default beside the bundle, does not show that a trusted one signed these bytes.

    None if it does. Raises UsageError for a bundle, key or certificate that cannot be read; ToolchainError if the
    package model-signing is missing.
    """
    place = signature or signature_of(path)
    try:
        size = place.stat().st_size
        text = place.read_bytes() if size <= _MAX_SIGNATURE_BYTES else b""
    except OSError as failure:
        what = f"the bundle is not signed: cannot read {place.name}: {failure.strerror}"
        return Refusal("absent", what, str(place), f"{_SIGN_AGAIN}, or name the signature with --signature")
    try:
        statement, certificates = _read(text)
        signed = _signed_sha256(statement)
    except Exception as failure:  # whatever a damaged file leads the readers of JSON, base64 and DER to
        what = f"the signature cannot be read: {type(failure).__name__} in {place.name}"
        return Refusal("damaged", what, str(place), _SIGN_AGAIN)
    reasons = list(_untrusted(path.resolve(), place, trust, bool(certificates)))
    if reasons:
        try:
            actual = sha256_of_file(path)
        except OSError as failure:
            raise UsageError(f"cannot read {path}: {failure.strerror}") from None
        if signed != actual:
            what = f"the bundle is not the file that was signed: its SHA-256 is {actual[:16]}, not {signed[:16]}"
            return Refusal("changed", what, str(path), "take bundle and signature from the same release")
        what = f"no one whom {trust.name} trusts made the signature: {'; '.join(dict.fromkeys(reasons))}"
        return Refusal("untrusted", what, str(place), "have it signed with a trusted key, or trust its signer")
    return _certificate_refusal(certificates, trust, place)


def require_trusted(path: Path, trust: Trust | str | Path, signature: str | Path | None = None) -> None:
    """Check a bundle that is about to be loaded: its signature, its hashes, its external weights.

    Raises BundleError with the reason, and like ``refusal``.
    """
    trusted = trust if isinstance(trust, Trust) else read_trust(Path(trust))
    refused = refusal(path, trusted, None if signature is None else Path(signature))
    if refused is not None:
        raise BundleError(refused.what, hint=refused.hint)
    weights = inspect(path).manifest.weights
    if weights.file is None:
        return
    named = path.with_name(weights.file)
    used = named if named.exists() else path.with_suffix(".safetensors")  # as the runtime finds it
    if not used.is_file() or sha256_of_file(used) != weights.file_sha256:
        raise BundleError(
            f"the weights file {used} is not the one that was signed with the bundle",
            hint="put the weights file of the same release beside the bundle",
        )


def _read(text: bytes) -> tuple[Any, list[Certificate]]:
    """Return the in-toto statement of a Sigstore bundle, and its certificates: the signer's, then its issuers'."""
    from cryptography import x509

    value = json.loads(text)
    chain = value["verificationMaterial"].get("x509CertificateChain", {"certificates": []})["certificates"]
    certificates = [x509.load_der_x509_certificate(base64.b64decode(item["rawBytes"])) for item in chain]
    return json.loads(base64.b64decode(value["dsseEnvelope"]["payload"])), certificates


def _signed_sha256(statement: Any) -> str:
    (resource,) = statement["predicate"]["resources"]
    if resource["algorithm"] != "sha256":
        raise ValueError("a hash other than SHA-256")
    return str(resource["digest"])


def _untrusted(path: Path, signature: Path, trust: Trust, certified: bool) -> Iterator[str]:
    """Yield why each trusted key or all authorities did not sign; nothing as soon as one did."""
    with model_signing() as library:
        verifiers: list[tuple[str, Any]] = []
        try:
            if certified:
                chain = [Path(name) for name in trust.authorities]
                config = library.verifying.Config()
                verifiers = (
                    [("its certificate", config.use_certificate_verifier(certificate_chain=chain))] if chain else []
                )
            else:
                for name in trust.public_keys:
                    config = library.verifying.Config().use_elliptic_key_verifier(public_key=name)
                    verifiers.append((Path(name).name, config))
        except (OSError, ValueError, TypeError) as failure:
            raise UsageError(
                f"cannot use the keys and certificates of {trust.name}: {failure}",
                hint="give public elliptic curve keys (P-256, P-384, P-521) and certificates in PEM",
            ) from None
        reasons = []
        for name, config in verifiers:
            try:
                config.verify(path, signature)
                return
            except Exception as failure:  # the library lets through what its parsers of hostile files raise
                reasons.append(f"{name}: {str(failure).strip() or type(failure).__name__}")
    yield from reasons or ["it was made with a certificate" if certified else "it was made with a key"]


def _certificate_refusal(certificates: list[Certificate], trust: Trust, place: Path) -> Refusal | None:
    """Check dates and names, which the library leaves to its caller. The signer's certificate is the first."""
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    for certificate in certificates:
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            ended = certificate.not_valid_after_utc
            state = (
                f"expired on {ended:%Y-%m-%d}"
                if ended < now
                else f"is valid from {certificate.not_valid_before_utc:%Y-%m-%d} on"
            )
            what = f"the certificate {certificate.subject.rfc4514_string()!r} {state}"
            return Refusal("expired", what, str(place), f"{_SIGN_AGAIN}, with a certificate that is valid")
    if not certificates or not trust.identities:
        return None
    try:
        names = certificates[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    kinds = (x509.RFC822Name, x509.UniformResourceIdentifier, x509.DNSName)
    found = sorted(name for kind in kinds for name in names.get_values_for_type(kind))
    if set(found) & set(trust.identities):
        return None
    what = f"{', '.join(found) or 'someone without a name'} signed it, not {' or '.join(trust.identities)}"
    return Refusal("identity", what, str(place), "have it signed by one of these, or trust its signer")

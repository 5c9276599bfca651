"""Signs a bundle: a DSSE envelope over an in-toto statement with its SHA-256, in a Sigstore bundle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packager.bundle.reader import inspect
from packager.bundle.staging import replacing
from packager.deploy.trust.library import model_signing
from packager.deploy.trust.trust import signature_of
from packager.errors import UsageError, last_line


def sign(
    path: str | Path,
    *,
    key: str | Path,
    certificate: str | Path | None = None,
    chain: Sequence[str | Path] = (),
    output: str | Path | None = None,
) -> Path:
    """Sign a bundle and return the signature's path: ``output``, or the bundle's with ``.sig`` appended.

    ``key`` is the PEM file of an elliptic curve key (P-256, P-384, P-521) without password. With ``certificate`` the
    signature holds it, and the certificates of ``chain`` up to an authority. A signature says nothing of names: bundle
    and signature may be renamed.

    An intact bundle alone is signed; external weights are signed with it, by the SHA-256 in its manifest. Source: the
    specification of OpenSSF Model Signing, v1.0.

    Raises BundleError if the file is no intact bundle; UsageError for a key, certificate or output that cannot be used;
    ToolchainError if the package model-signing is missing.
    """
    path = Path(path)
    inspect(path)
    place = Path(output) if output is not None else signature_of(path)
    sign_file(path, place, key=key, certificate=certificate, chain=chain)
    return place


def sign_file(
    path: Path,
    place: Path,
    *,
    key: str | Path,
    certificate: str | Path | None = None,
    chain: Sequence[str | Path] = (),
) -> None:
    """Sign a file of any kind: write its signature to ``place``. Raises UsageError, ToolchainError, as ``sign``."""
    if chain and certificate is None:
        raise UsageError("a chain of certificates requires the signing certificate")
    with model_signing() as library:
        config = library.signing.Config()
        try:
            if certificate is None:
                config.use_elliptic_key_signer(private_key=key)
            else:
                config.use_certificate_signer(private_key=key, signing_certificate=certificate, certificate_chain=chain)
        except (OSError, ValueError, TypeError) as failure:  # a TypeError of a key that has a password
            reason, file = last_line(failure), key
            if isinstance(failure, OSError):  # of a certificate, too
                reason, file = failure.strerror or reason, failure.filename or key
            raise UsageError(
                f"cannot sign with {file}: {reason}",
                hint="give an elliptic curve key in PEM, without password: openssl ecparam -name prime256v1 -genkey"
                " -noout -out KEY",
            ) from None
        try:
            with replacing(place) as temporary:
                config.sign(path.resolve(), temporary)
        except OSError as failure:
            raise UsageError(f"cannot write {place}: {failure.strerror}") from None

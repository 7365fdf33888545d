"""The authority of a network: it signs certificates and rosters, and everybody trusts its certificate."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cesar.base import files
from cesar.base.errors import ConfigError
from cesar.peer.trust import passphrases
from cesar.peer.trust.certificates import Request, check_curve, check_network, read_authority, subject_of
from cesar.peer.trust.keyfiles import (
    CA_CERTIFICATE,
    CA_KEY,
    make_private_folder,
    private_pem,
    read_public,
    read_tls_key,
    write_private,
)

DAYS = 3650
"""How long an authority's own certificate is valid, unless those that it signs need longer."""

CLOCK_SKEW = timedelta(minutes=5)
"""Certificates begin this much before they are made: clocks of two sites differ."""


@dataclass(frozen=True, slots=True)
class Authority:
    """Who signs certificates and rosters. Its key is all that an attacker would need, so keep it offline."""

    network: str
    certificate: bytes = field(repr=False)
    _key: ec.EllipticCurvePrivateKey = field(repr=False, compare=False)

    @classmethod
    def create(cls, network: str, *, now: datetime, days: int = DAYS) -> Authority:
        """A new authority for a new network."""
        return cls._of(check_network(network), ec.generate_private_key(ec.SECP256R1()), now, days)

    def renewed(self, *, now: datetime, days: int = DAYS) -> Authority:
        """The same authority with a new certificate for its key: whatever it has signed stays signed."""
        return self._of(self.network, self._key, now, days)

    @classmethod
    def _of(cls, network: str, key: ec.EllipticCurvePrivateKey, now: datetime, days: int) -> Authority:
        subject = subject_of(f"{network}.cesar")
        builder = _builder(subject, subject, key.public_key(), now, days)
        usage = _usage(signs_certificates=True)
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(network, certificate.public_bytes(Encoding.PEM), key)

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """The authority of a folder.

        Raises:
            ConfigError: a file is missing or readable for others, or key and certificate differ.
        """
        pem = read_public(folder / CA_CERTIFICATE)
        certificate = read_authority(pem)
        ask = partial(passphrases.known, passphrases.AUTHORITY, str(folder / CA_KEY))
        key = read_tls_key(folder / CA_KEY, ask)
        if key.public_key() != certificate.public_key():
            raise ConfigError(f"{folder / CA_KEY} is not the key of {folder / CA_CERTIFICATE}")
        subject = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        network = str(subject[0].value).removesuffix(".cesar") if subject else ""
        return cls(check_network(network), pem, key)

    def save(self, folder: Path, passphrase: bytes | None = None) -> None:
        """Write key and certificate; the key encrypted if there is a passphrase."""
        make_private_folder(folder)
        write_private(folder / CA_KEY, private_pem(self._key, passphrase))
        files.write(folder / CA_CERTIFICATE, self.certificate)

    def issue(self, request: Request, *, now: datetime, days: int = 365) -> bytes:
        """The certificate (PEM) that a request asks for.

        Raises:
            ConfigError: the request names another network, or the certificate would outlive the authority.
        """
        named, public = request.open()
        authority = read_authority(self.certificate)
        if named.network != self.network:
            raise ConfigError(
                f"the request is for the network {named.network!r}, and this is {self.network!r}"
            )
        if days < 1 or now + timedelta(days=days) > authority.not_valid_after_utc:
            raise ConfigError(
                f"a certificate of {days} days is not possible: at least 1, and not past the end of the "
                f"authority's own on {authority.not_valid_after_utc:%Y-%m-%d}"
            )
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(check_curve(authority.public_key()))
        certificate = (
            _builder(named.subject, authority.subject, public, now, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(named.extension(), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM)

    def sign(self, message: bytes) -> bytes:
        """ECDSA over SHA-256 of the message, DER."""
        return self._key.sign(message, ec.ECDSA(hashes.SHA256()))


def verify(authority: x509.Certificate, signature: bytes, message: bytes) -> bool:
    """Whether the authority signed this message."""
    try:
        check_curve(authority.public_key()).verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    now = now.astimezone(UTC)
    return x509.CertificateBuilder(
        issuer, subject, public, x509.random_serial_number(), now - CLOCK_SKEW, now + timedelta(days=days)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )

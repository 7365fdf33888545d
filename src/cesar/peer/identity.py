"""Who a peer is: its keys, the request for a certificate, and the authority that signs it.

A certificate says three things about its owner, and the authority's signature binds them to one another:

    the TLS key                         ECDSA P-256, the certificate's own
    CN, SAN DNS  node-3.demo.cesar      which node of which network
    SAN URI      cesar:x25519:<hex>     the agreement key, from which masks follow

The request that a site makes says the same three, signed with the site's TLS key, so private keys never leave
the site. A site that claims somebody else's agreement key could not compute a single mask with it; the roster
refuses two members with one key all the same.

Private files are created with mode 0600 and never overwritten, and one that others can read is not loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cesar.crypto.keys import KeyPair
from cesar.errors import ConfigError
from cesar.types import NodeId

CA_KEY, CA_CERTIFICATE = "ca.key", "ca.pem"
TLS_KEY, AGREEMENT_KEY, CERTIFICATE, REQUEST = "key.pem", "agreement.key", "certificate.pem", "request.json"
CA_DAYS = 3650
CLOCK_SKEW = timedelta(minutes=5)
"""Certificates begin this much before they are made: clocks of two sites differ."""

_FILE_LIMIT = 1 << 16
_NETWORK = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_HOST = re.compile(rf"node-(0|[1-9][0-9]{{0,9}})\.({_NETWORK.pattern})\.cesar")
_AGREEMENT = re.compile(r"cesar:x25519:([0-9a-f]{64})")
_ADDRESS = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")


# Files


def write_private(path: Path, data: bytes) -> None:
    """A secret into a new file that nobody else can read.

    Raises:
        ConfigError: the file exists. A key that is overwritten is gone for good.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{path} exists already, and a private key is never overwritten; choose another folder"
        ) from None
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(handle)


def read_private(path: Path) -> bytes:
    """A secret, if it is one: nobody but its owner may be able to read it."""
    with _opened(path) as handle:
        if os.name == "posix" and os.fstat(handle).st_mode & 0o077:
            raise ConfigError(
                f"others can read {path}; make it private with: chmod 600 {shlex.quote(str(path))}"
            )
        return os.read(handle, _FILE_LIMIT)


def read_public(path: Path, limit: int = _FILE_LIMIT) -> bytes:
    """A file of at most `limit` bytes."""
    with _opened(path) as handle, os.fdopen(handle, "rb", closefd=False) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ConfigError(f"{path} has more than {limit:,} bytes; that is not the file it should be")
    return data


def write_public(path: Path, data: bytes) -> None:
    """A file that is there as a whole or not at all, whatever happens in between."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with new.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def make_private_folder(folder: Path) -> None:
    """A folder for secrets; one that exists keeps its mode, and the files in it are private anyway."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    try:
        yield handle
    except IsADirectoryError:
        raise ConfigError(f"cannot read {path}: it is a folder") from None
    finally:
        os.close(handle)


# What a certificate says


@dataclass(frozen=True, slots=True)
class Claim:
    """What a request or a certificate says about its owner."""

    id: NodeId
    network: str
    agreement_key: bytes

    @property
    def host_name(self) -> str:
        """The name under which TLS knows the node."""
        return f"node-{self.id}.{self.network}.cesar"

    @classmethod
    def of(cls, signed: x509.Certificate | x509.CertificateSigningRequest) -> Claim:
        """Read the names; nothing beside them may be there.

        Raises:
            ConfigError: names are missing, of another form, or contradict one another.
        """
        try:
            names = signed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            common = [str(name.value) for name in signed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension, UnsupportedAlgorithm) as error:
            raise ConfigError(f"its names cannot be read: {error}") from None
        hosts = names.get_values_for_type(x509.DNSName)
        links = names.get_values_for_type(x509.UniformResourceIdentifier)
        host = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        link = _AGREEMENT.fullmatch(links[0]) if len(links) == 1 else None
        if host is None or link is None or len(list(names)) != 2 or common != hosts:
            raise ConfigError(
                "it must name exactly one node (node-ID.NETWORK.cesar) and one agreement key (cesar:x25519:…)"
            )
        node = check_id(int(host[1]))
        return cls(node, check_network(host[2]), _check_agreement_key(bytes.fromhex(link[1])))

    def extension(self) -> x509.SubjectAlternativeName:
        link = f"cesar:x25519:{self.agreement_key.hex()}"
        return x509.SubjectAlternativeName(
            [x509.DNSName(self.host_name), x509.UniformResourceIdentifier(link)]
        )


def check_network(name: str) -> str:
    """A network's name is part of host names."""
    if len(name) > 40 or not _NETWORK.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a network: use at most 40 of a–z, 0–9 and single hyphens, such as lung-trial"
        )
    return name


def check_id(node: int) -> NodeId:
    if not 0 <= node < 2**32:
        raise ConfigError(f"{node} cannot be a node's id; ids go from 0 to {2**32 - 1}")
    return NodeId(node)


def check_name(name: str) -> str:
    """What people call a peer; it stands in tables, so it may not contain control characters."""
    if not 0 < len(name) <= 64 or not name.isprintable() or name != name.strip():
        raise ConfigError(f"{name!r} cannot name a peer; use 1 to 64 printable characters")
    return name


def check_address(address: str) -> str:
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[1]) < 65536:
        raise ConfigError(f"{address!r} is not an address; write host:port, such as node.example.org:7400")
    return address


def _check_agreement_key(public: bytes) -> bytes:
    """Refuse the few points whose every agreement is zero."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ConfigError("its agreement key is not a usable X25519 key; make new keys") from None
    return public


def read_certificate(pem: bytes, what: str = "the certificate") -> x509.Certificate:
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        _check_curve(certificate.public_key())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{what} cannot be read: {error}") from None
    return certificate


def read_authority(pem: bytes) -> x509.Certificate:
    """The certificate that a peer trusts: a P-256 authority that signed itself."""
    certificate = read_certificate(pem, "the authority's certificate")
    try:
        certificate.verify_directly_issued_by(certificate)
        able = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound, x509.DuplicateExtension):
        able = False
    if not able:
        raise ConfigError(
            f"that is not the certificate of an authority; take {CA_CERTIFICATE} of the network"
        )
    return certificate


def check_issuer(certificate: x509.Certificate, authority: x509.Certificate) -> None:
    """Refuse a certificate that this authority did not sign."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise ConfigError(
            f"another authority signed it; certificate and {CA_CERTIFICATE} must come from the same network"
        ) from None


def fingerprint(certificate: x509.Certificate) -> bytes:
    """SHA-256 of the certificate: what two people compare over the telephone."""
    return certificate.fingerprint(hashes.SHA256())


def _check_curve(key: object) -> ec.EllipticCurvePublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError("its key is not on the curve P-256; make keys with cesar")
    return key


# Requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a site sends to the authority: a signed certificate request, and how to call and reach the peer.

    Attributes:
        csr: the certificate request, PEM.
        name: what people call the peer; None leaves that to the authority.
        address: host:port where neighbours reach it; None if it can only dial.
    """

    csr: bytes
    name: str | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        self.open()
        if self.name is not None:
            check_name(self.name)
        if self.address is not None:
            check_address(self.address)

    def open(self) -> tuple[Claim, ec.EllipticCurvePublicKey]:
        """Check the signature and the names.

        Raises:
            ConfigError: says why this cannot become a certificate.
        """
        try:
            csr = x509.load_pem_x509_csr(self.csr)
            valid = csr.is_signature_valid
        except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
            raise ConfigError(f"the certificate request cannot be read: {error}") from None
        if not valid:
            raise ConfigError("the certificate request is not signed by the key in it; make it again")
        return Claim.of(csr), _check_curve(csr.public_key())

    @property
    def claim(self) -> Claim:
        return self.open()[0]

    def to_bytes(self) -> bytes:
        fields = {"format": 1, "name": self.name, "address": self.address, "csr": self.csr.decode()}
        return (json.dumps(fields, indent=2) + "\n").encode()

    @classmethod
    def load(cls, path: Path) -> Request:
        data = read_public(path)
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError):
            fields = None
        match fields:
            case {
                "format": 1,
                "name": str() | None as name,
                "address": str() | None as address,
                "csr": str() as csr,
                **rest,
            } if not rest:
                try:
                    return cls(csr=csr.encode(errors="replace"), name=name, address=address)
                except ConfigError as error:
                    raise ConfigError(f"{path}: {error}") from None
            case _:
                raise ConfigError(f"{path} is not a request; make one with `cesar peer request`")


def make_keys(folder: Path, network: str, node: int) -> bytes:
    """Fresh keys in a folder, and the certificate request (PEM) for them."""
    tls = ec.generate_private_key(ec.SECP256R1())
    agreement = X25519PrivateKey.generate()
    claim = Claim(check_id(node), check_network(network), agreement.public_key().public_bytes_raw())
    csr = x509.CertificateSigningRequestBuilder(
        _subject(claim.host_name), [x509.Extension(x509.SubjectAlternativeName.oid, False, claim.extension())]
    ).sign(tls, hashes.SHA256())
    make_private_folder(folder)
    for taken in (TLS_KEY, AGREEMENT_KEY):
        if (folder / taken).exists():
            raise ConfigError(
                f"{folder / taken} exists already and is never overwritten; choose another folder"
            )
    write_private(folder / TLS_KEY, _private_pem(tls))
    write_private(folder / AGREEMENT_KEY, agreement.private_bytes_raw().hex().encode() + b"\n")
    return csr.public_bytes(Encoding.PEM)


# The authority


@dataclass(frozen=True, slots=True)
class Authority:
    """Who signs certificates and rosters. Its key is all that an attacker would need, so keep it offline."""

    network: str
    certificate: bytes = field(repr=False)
    _key: ec.EllipticCurvePrivateKey = field(repr=False, compare=False)

    @classmethod
    def create(cls, network: str, *, now: datetime, days: int = CA_DAYS) -> Authority:
        """A new authority for a new network."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(f"{check_network(network)}.cesar")
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
        key = _read_key(folder / CA_KEY)
        if key.public_key() != certificate.public_key():
            raise ConfigError(f"{folder / CA_KEY} is not the key of {folder / CA_CERTIFICATE}")
        subject = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        network = str(subject[0].value).removesuffix(".cesar") if subject else ""
        return cls(check_network(network), pem, key)

    def save(self, folder: Path) -> None:
        make_private_folder(folder)
        write_private(folder / CA_KEY, _private_pem(self._key))
        write_public(folder / CA_CERTIFICATE, self.certificate)

    def issue(self, request: Request, *, now: datetime, days: int = 365) -> bytes:
        """The certificate (PEM) that a request asks for.

        Raises:
            ConfigError: the request names another network, or the certificate would outlive the authority.
        """
        claim, public = request.open()
        authority = read_authority(self.certificate)
        if claim.network != self.network:
            raise ConfigError(
                f"the request is for the network {claim.network!r}, and this is {self.network!r}"
            )
        if days < 1 or now + timedelta(days=days) > authority.not_valid_after_utc:
            raise ConfigError(
                f"a certificate of {days} days is not possible: at least 1, and not past the end of the "
                f"authority's own on {authority.not_valid_after_utc:%Y-%m-%d}"
            )
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(_check_curve(authority.public_key()))
        certificate = (
            _builder(_subject(claim.host_name), authority.subject, public, now, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(claim.extension(), critical=False)
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
        _check_curve(authority.public_key()).verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


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


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    data = read_private(path)
    try:
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The library's message could quote the file, and the file is secret.
        raise ConfigError(f"{path} is not a private key in PEM without a passphrase") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is not a key on the curve P-256")
    return key


# The peer itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """All that a peer needs to prove who it is.

    Attributes:
        id: the node that the certificate names.
        network: the network that it names.
        certificate: PEM.
        tls_key: private, PEM.
        keys: the agreement key.
        ca: the certificate of the authority that this peer trusts, PEM.
    """

    id: NodeId
    network: str
    certificate: bytes = field(repr=False)
    tls_key: bytes = field(repr=False)
    keys: KeyPair
    ca: bytes = field(repr=False)

    @classmethod
    def load(cls, folder: Path) -> Identity:
        """The identity of a peer's folder.

        Raises:
            ConfigError: a file is missing, readable for others, or does not belong to the rest.
        """
        ca = read_public(folder / CA_CERTIFICATE)
        pem = read_public(folder / CERTIFICATE)
        tls = _read_key(folder / TLS_KEY)
        keys = _read_agreement_key(folder / AGREEMENT_KEY)
        certificate = read_certificate(pem, str(folder / CERTIFICATE))
        try:
            check_issuer(certificate, read_authority(ca))
            claim = Claim.of(certificate)
        except ConfigError as error:
            raise ConfigError(f"{folder / CERTIFICATE}: {error}") from None
        for file, same in (
            (TLS_KEY, tls.public_key() == certificate.public_key()),
            (AGREEMENT_KEY, keys.public == claim.agreement_key),
        ):
            if not same:
                raise ConfigError(
                    f"{folder / file} does not belong to {folder / CERTIFICATE}; put the certificate that was "
                    "signed for these keys beside them"
                )
        return cls(
            id=claim.id, network=claim.network, certificate=pem, tls_key=_private_pem(tls), keys=keys, ca=ca
        )


def _read_agreement_key(path: Path) -> KeyPair:
    data = read_private(path)
    try:
        return KeyPair(X25519PrivateKey.from_private_bytes(bytes.fromhex(data.decode("ascii").strip())))
    except ValueError:
        raise ConfigError(f"{path} is not an agreement key: 64 hexadecimal digits") from None


def file_fingerprint(data: bytes) -> str:
    """What `sha256sum` prints for the file, to compare over the telephone."""
    return hashlib.sha256(data).hexdigest()

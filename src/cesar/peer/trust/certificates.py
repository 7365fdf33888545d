"""Certificates: what one says about its node, and the request by which a site asks for one.

A certificate says four things, and the authority's signature binds them to one another:

    the TLS key                         ECDSA P-256, the certificate's own
    CN, SAN DNS  node-3.demo.cesar      which node of which network
    SAN URI      cesar:x25519:<hex>     the agreement key, from which masks follow
    O            hospital               whose node it is, if its owner has others, too

The request that a site makes says the same, signed with the site's TLS key, so private keys never leave
the site. A site that claims somebody else's agreement key could not compute a single mask with it; the roster
refuses two members with one key all the same.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.x509.oid import NameOID

from cesar.base.errors import ConfigError
from cesar.base.types import NodeId
from cesar.peer.trust.address import check_address
from cesar.peer.trust.keyfiles import CA_CERTIFICATE, read_public

_NETWORK = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_HOST = re.compile(rf"node-(0|[1-9][0-9]{{0,9}})\.({_NETWORK.pattern})\.cesar")
_AGREEMENT = re.compile(r"cesar:x25519:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class CertifiedNode:
    """What a request or a certificate says about a node.

    Attributes:
        owner: who runs it; all nodes of an owner count as one colluder. None if it is its own.
    """

    id: NodeId
    network: str
    agreement_key: bytes
    owner: str | None = None

    @property
    def host_name(self) -> str:
        """The name under which TLS knows the node."""
        return f"node-{self.id}.{self.network}.cesar"

    @classmethod
    def of(cls, signed: x509.Certificate | x509.CertificateSigningRequest) -> CertifiedNode:
        """Read the names; nothing beside them may be there.

        Raises:
            ConfigError: names are missing, of another form, or contradict one another.
        """
        try:
            names = signed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            subject = [(name.oid, str(name.value)) for name in signed.subject]
        except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension, UnsupportedAlgorithm) as error:
            raise ConfigError(f"its names cannot be read: {error}") from None
        hosts = names.get_values_for_type(x509.DNSName)
        links = names.get_values_for_type(x509.UniformResourceIdentifier)
        host = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        link = _AGREEMENT.fullmatch(links[0]) if len(links) == 1 else None
        owner = None
        match subject:
            case [(NameOID.COMMON_NAME, common), (NameOID.ORGANIZATION_NAME, said)]:
                owner = check_owner(said)
            case [(NameOID.COMMON_NAME, common)]:
                pass
            case _:
                common = ""
        if host is None or link is None or len(list(names)) != 2 or common != hosts[0]:
            raise ConfigError(
                "it must name exactly one node (node-ID.NETWORK.cesar), one agreement key (cesar:x25519:…) and at most "
                "one owner"
            )
        node = check_id(int(host[1]))
        return cls(node, check_network(host[2]), _check_agreement_key(bytes.fromhex(link[1])), owner)

    @property
    def subject(self) -> x509.Name:
        """What stands at the head of the certificate."""
        return subject_of(self.host_name, self.owner)

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


def check_owner(owner: str) -> str:
    """What people call the owner of a peer."""
    if not 0 < len(owner) <= 64 or not owner.isprintable() or owner != owner.strip():
        raise ConfigError(f"{owner!r} cannot name an owner; use 1 to 64 printable characters")
    return owner


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
        check_curve(certificate.public_key())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{what} cannot be read: {error}") from None
    return certificate


@lru_cache(maxsize=64)  # a peer asks in every round, and a signature takes longer than a small model
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


def same_authority(one: bytes, other: bytes) -> bool:
    """Whether two certificates (PEM) are of one authority: the same name and the same key."""
    try:
        first, second = read_authority(one), read_authority(other)
    except ConfigError:
        return False
    return (first.subject, first.public_key()) == (second.subject, second.public_key())


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


def check_curve(key: object) -> ec.EllipticCurvePublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError("its key is not on the curve P-256; make keys with cesar")
    return key


RENEWAL = b"cesar renewal\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a site sends to the authority: a signed certificate request, and how to call and reach the peer.

    Attributes:
        csr: the certificate request, PEM.
        name: what people call the peer; None leaves that to the authority.
        address: host:port where neighbours reach it; None if it can only dial.
        continues: a signature over the request by the key of the certificate that it is to replace; empty if it replaces none.
    """

    csr: bytes
    name: str | None = None
    address: str | None = None
    continues: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        self.open()
        if self.name is not None:
            check_name(self.name)
        if self.address is not None:
            check_address(self.address)

    def open(self) -> tuple[CertifiedNode, ec.EllipticCurvePublicKey]:
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
        return CertifiedNode.of(csr), check_curve(csr.public_key())

    @property
    def node(self) -> CertifiedNode:
        return self.open()[0]

    def follows(self, certificate: bytes) -> bool:
        """Whether the holder of this certificate (PEM) asks for its successor."""
        key = check_curve(read_certificate(certificate).public_key())
        try:
            key.verify(self.continues, RENEWAL + self.csr, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    def to_bytes(self) -> bytes:
        fields: dict[str, str | int | None] = {
            "format": 1,
            "name": self.name,
            "address": self.address,
            "csr": self.csr.decode(),
        }
        if self.continues:
            fields["continues"] = self.continues.hex()
        return (json.dumps(fields, indent=2) + "\n").encode()

    @classmethod
    def load(cls, path: Path) -> Request:
        return cls.parse(read_public(path), str(path))

    @classmethod
    def parse(cls, data: bytes, path: str) -> Request:
        """The request in a file; `path` says where it came from.

        Raises:
            ConfigError: it is none, or cannot be signed.
        """
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError):
            fields = None
        continues = fields.pop("continues", "") if isinstance(fields, dict) else ""
        match fields:
            case {
                "format": 1,
                "name": str() | None as name,
                "address": str() | None as address,
                "csr": str() as csr,
                **rest,
            } if not rest and isinstance(continues, str):
                try:
                    proof = bytes.fromhex(continues)
                    return cls(csr=csr.encode(errors="replace"), name=name, address=address, continues=proof)
                except ConfigError as error:
                    raise ConfigError(f"{path}: {error}") from None
                except ValueError:
                    raise ConfigError(f"{path}: its proof cannot be read; make it again") from None
            case _:
                raise ConfigError(f"{path} is not a request; make one with `cesar peer request`")


def subject_of(name: str, owner: str | None = None) -> x509.Name:
    said = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if owner is not None:
        said.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, owner))
    return x509.Name(said)

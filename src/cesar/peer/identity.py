"""A peer's own identity: its keys, made at its site, and the certificate that the authority signed for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from cesar.crypto.keys import KeyPair
from cesar.errors import ConfigError
from cesar.peer.claims import (
    Claim,
    check_id,
    check_issuer,
    check_network,
    check_owner,
    read_authority,
    read_certificate,
)
from cesar.peer.keyfiles import (
    AGREEMENT_KEY,
    CA_CERTIFICATE,
    CERTIFICATE,
    TLS_KEY,
    make_private_folder,
    private_pem,
    read_key,
    read_private,
    read_public,
    write_private,
)
from cesar.types import NodeId


def make_keys(folder: Path, network: str, node: int, owner: str | None = None) -> bytes:
    """Fresh keys in a folder, and the certificate request (PEM) for them."""
    tls = ec.generate_private_key(ec.SECP256R1())
    agreement = X25519PrivateKey.generate()
    public = agreement.public_key().public_bytes_raw()
    claim = Claim(
        check_id(node), check_network(network), public, None if owner is None else check_owner(owner)
    )
    csr = x509.CertificateSigningRequestBuilder(
        claim.subject,
        [x509.Extension(x509.SubjectAlternativeName.oid, False, claim.extension())],
    ).sign(tls, hashes.SHA256())
    make_private_folder(folder)
    for taken in (TLS_KEY, AGREEMENT_KEY):
        if (folder / taken).exists():
            raise ConfigError(
                f"{folder / taken} exists already and is never overwritten; choose another folder"
            )
    write_private(folder / TLS_KEY, private_pem(tls))
    write_private(folder / AGREEMENT_KEY, agreement.private_bytes_raw().hex().encode() + b"\n")
    return csr.public_bytes(Encoding.PEM)


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
        tls = read_key(folder / TLS_KEY)
        keys = _agreement_key(folder / AGREEMENT_KEY)
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
            id=claim.id, network=claim.network, certificate=pem, tls_key=private_pem(tls), keys=keys, ca=ca
        )


def _agreement_key(path: Path) -> KeyPair:
    data = read_private(path)
    try:
        return KeyPair(X25519PrivateKey.from_private_bytes(bytes.fromhex(data.decode("ascii").strip())))
    except ValueError:
        raise ConfigError(f"{path} is not an agreement key: 64 hexadecimal digits") from None

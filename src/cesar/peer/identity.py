"""A peer's own identity: its keys, made at its site, and the certificate that the authority signed for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from cesar.crypto.keys import KeyPair
from cesar.errors import ConfigError
from cesar.peer import passphrases
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
    is_closed,
    make_private_folder,
    private_pem,
    read_agreement_key,
    read_public,
    read_tls_key,
    write_private,
)
from cesar.types import NodeId


def make_keys(
    folder: Path, network: str, node: int, owner: str | None = None, passphrase: bytes | None = None
) -> bytes:
    """Fresh keys in a folder, and the certificate request (PEM) for them; encrypted if there is a passphrase."""
    tls = ec.generate_private_key(ec.SECP256R1())
    agreement = X25519PrivateKey.generate()
    public = agreement.public_key().public_bytes_raw()
    claim = Claim(
        check_id(node), check_network(network), public, None if owner is None else check_owner(owner)
    )
    make_private_folder(folder)
    for taken in (TLS_KEY, AGREEMENT_KEY):
        if (folder / taken).exists():
            raise ConfigError(
                f"{folder / taken} exists already and is never overwritten; choose another folder"
            )
    write_private(folder / TLS_KEY, private_pem(tls, passphrase))
    write_private(folder / AGREEMENT_KEY, private_pem(agreement, passphrase))
    return _request(claim, tls)


def renewal(folder: Path) -> bytes:
    """A request (PEM) for another certificate of a peer that has one: a new TLS key, and the agreement key that it has.

    Masks do not depend on which of the two certificates it shows, so others can accept both for a while. A key whose
    certificate has not come yet is used again.
    """
    identity = Identity.load(folder)
    claim = Claim.of(read_certificate(identity.certificate))
    ask = partial(passphrases.known, passphrases.PEER, f"the keys in {folder}")
    newest = _tls_keys(folder)[-1]
    key = read_tls_key(newest, ask)
    if private_pem(key) == identity.tls_key:
        key = ec.generate_private_key(ec.SECP256R1())
        secret = ask() if is_closed(newest) else None
        write_private(folder / f"key-{len(_tls_keys(folder)) + 1}.pem", private_pem(key, secret))
    return _request(claim, key)


def _tls_keys(folder: Path) -> list[Path]:
    """The first TLS key, and those that were made later."""
    later = sorted(folder.glob("key-*.pem"), key=lambda path: (len(path.name), path.name))
    return [folder / TLS_KEY, *later]


def _request(claim: Claim, key: ec.EllipticCurvePrivateKey) -> bytes:
    names = x509.Extension(x509.SubjectAlternativeName.oid, False, claim.extension())
    csr = x509.CertificateSigningRequestBuilder(claim.subject, [names]).sign(key, hashes.SHA256())
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
        ask = partial(passphrases.known, passphrases.PEER, f"the keys in {folder}")
        keys = KeyPair(read_agreement_key(folder / AGREEMENT_KEY, ask))
        certificate = read_certificate(pem, str(folder / CERTIFICATE))
        candidates = [read_tls_key(path, ask) for path in _tls_keys(folder)]
        fitting = (key for key in candidates if key.public_key() == certificate.public_key())
        tls = next(fitting, candidates[0])
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

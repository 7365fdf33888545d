"""A peer's own identity: its keys, made at its site, and the certificate that the authority signed for them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from cesar.base.errors import ConfigError
from cesar.base.types import NodeId
from cesar.crypto.keys import KeyPair
from cesar.peer.trust import passphrases
from cesar.peer.trust.certificates import (
    RENEWAL,
    CertifiedNode,
    Request,
    check_id,
    check_issuer,
    check_network,
    check_owner,
    read_authority,
    read_certificate,
)
from cesar.peer.trust.keyfiles import (
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


def make_keys(
    folder: Path, network: str, node: int, owner: str | None = None, passphrase: bytes | None = None
) -> bytes:
    """Fresh keys in a folder, and the certificate request (PEM) for them; encrypted if there is a passphrase."""
    tls = ec.generate_private_key(ec.SECP256R1())
    agreement = X25519PrivateKey.generate()
    public = agreement.public_key().public_bytes_raw()
    named = CertifiedNode(
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
    return _request(named, tls)


def renewal(folder: Path) -> Request:
    """A request for another certificate of a peer that has one, with new keys of both kinds, signed with the old one's key.

    Others can accept both certificates for a while: which agreement key makes masks follows from the roster alone, and
    this site has both. Keys whose certificate has not come yet are used again.
    """
    identity = Identity.load(folder)
    named = CertifiedNode.of(read_certificate(identity.certificate))
    ask = partial(passphrases.known, passphrases.PEER, f"the keys in {folder}")
    newest_tls, newest_agreement = _files(folder, TLS_KEY)[-1], _files(folder, AGREEMENT_KEY)[-1]
    tls, agreement = read_tls_key(newest_tls, ask), read_agreement_key(newest_agreement, ask)
    if private_pem(tls) == identity.tls_key:
        tls = ec.generate_private_key(ec.SECP256R1())
        write_private(_next(newest_tls), private_pem(tls, ask() if is_closed(newest_tls) else None))
    if KeyPair(agreement).public == named.agreement_key:
        agreement = X25519PrivateKey.generate()
        secret = ask() if is_closed(newest_agreement) else None
        write_private(_next(newest_agreement), private_pem(agreement, secret))
    csr = _request(replace(named, agreement_key=agreement.public_key().public_bytes_raw()), tls)
    held = load_pem_private_key(identity.tls_key, None)
    assert isinstance(held, ec.EllipticCurvePrivateKey)
    return Request(csr=csr, continues=held.sign(RENEWAL + csr, ec.ECDSA(hashes.SHA256())))


def _files(folder: Path, name: str) -> list[Path]:
    """The first key of a kind, and those that were made later, which have numbers."""
    first = folder / name
    later = sorted(folder.glob(f"{first.stem}-*{first.suffix}"), key=lambda path: (len(path.name), path.name))
    return [first, *later]


def _next(newest: Path) -> Path:
    stem, _, number = newest.stem.partition("-")
    return newest.with_name(f"{stem}-{int(number or 1) + 1}{newest.suffix}")


def _request(named: CertifiedNode, key: ec.EllipticCurvePrivateKey) -> bytes:
    names = x509.Extension(x509.SubjectAlternativeName.oid, False, named.extension())
    csr = x509.CertificateSigningRequestBuilder(named.subject, [names]).sign(key, hashes.SHA256())
    return csr.public_bytes(Encoding.PEM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """All that a peer needs to prove who it is.

    Attributes:
        id: the node that the certificate names.
        network: the network that it names.
        certificate: PEM.
        tls_key: private, PEM.
        keys: the agreement key that the certificate names.
        others: agreement keys of former certificates, and of one that has not come yet.
        ca: the certificate of the authority that this peer trusts, PEM.
    """

    id: NodeId
    network: str
    certificate: bytes = field(repr=False)
    tls_key: bytes = field(repr=False)
    keys: KeyPair
    others: tuple[KeyPair, ...] = ()
    ca: bytes = field(repr=False)

    def agreement(self, public: bytes) -> KeyPair | None:
        """The agreement key with this public half; None if this site does not have it."""
        return next((pair for pair in (self.keys, *self.others) if pair.public == public), None)

    @classmethod
    def load(cls, folder: Path) -> Identity:
        """The identity of a peer's folder.

        Raises:
            ConfigError: a file is missing, readable for others, or does not belong to the rest.
        """
        ca = read_public(folder / CA_CERTIFICATE)
        pem = read_public(folder / CERTIFICATE)
        ask = partial(passphrases.known, passphrases.PEER, f"the keys in {folder}")
        pairs = [KeyPair(read_agreement_key(path, ask)) for path in _files(folder, AGREEMENT_KEY)]
        certificate = read_certificate(pem, str(folder / CERTIFICATE))
        candidates = [read_tls_key(path, ask) for path in _files(folder, TLS_KEY)]
        fitting = (key for key in candidates if key.public_key() == certificate.public_key())
        tls = next(fitting, candidates[0])
        try:
            check_issuer(certificate, read_authority(ca))
            named = CertifiedNode.of(certificate)
        except ConfigError as error:
            raise ConfigError(f"{folder / CERTIFICATE}: {error}") from None
        keys = next((pair for pair in pairs if pair.public == named.agreement_key), pairs[0])
        for file, same in (
            (TLS_KEY, tls.public_key() == certificate.public_key()),
            (AGREEMENT_KEY, keys.public == named.agreement_key),
        ):
            if not same:
                raise ConfigError(
                    f"{folder / file} does not belong to {folder / CERTIFICATE}; put the certificate that was "
                    "signed for these keys beside them"
                )
        return cls(
            id=named.id,
            network=named.network,
            certificate=pem,
            tls_key=private_pem(tls),
            keys=keys,
            others=tuple(pair for pair in pairs if pair is not keys),
            ca=ca,
        )

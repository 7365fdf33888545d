"""One peer as a roster lists it: its certificate, what people call it, and where it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType

from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from cesar.base.errors import ConfigError
from cesar.base.types import NodeId
from cesar.peer.trust.address import check_address
from cesar.peer.trust.certificates import (
    CertifiedNode,
    Request,
    check_issuer,
    check_name,
    fingerprint,
    read_authority,
    read_certificate,
)
from cesar.peer.trust.lookalikes import scripts, skeleton


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One peer as the others know it.

    Attributes:
        address: host:port where it listens; None if it can only dial.
        certificate: PEM; `fingerprint` is the SHA-256 of its DER form.
        agreement_key: X25519, from the certificate.
        host_name: what TLS must find in the certificate.
        owner: who runs it, if the certificate says so; else it is its own.
        former, until: a certificate that is accepted until then, too, while its site changes to the new one.
        asked: the request that the certificate answers, if the holder of the one before has signed it.
    """

    id: NodeId
    name: str
    address: str | None
    certificate: bytes = field(repr=False)
    fingerprint: bytes = field(repr=False)
    agreement_key: bytes = field(repr=False)
    network: str
    host_name: str
    owner: str | None
    starts: datetime
    expires: datetime
    former: bytes | None = field(default=None, repr=False)
    former_fingerprint: bytes = field(default=b"", repr=False)
    until: datetime | None = None
    asked: Request | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        certificate: bytes,
        *,
        name: str,
        address: str | None,
        former: bytes | None = None,
        until: datetime | None = None,
        asked: Request | None = None,
    ) -> Member:
        """A member from its certificate (PEM).

        Raises:
            ConfigError: it cannot be one, or the former certificate is not of the same node and owner.
        """
        read = read_certificate(certificate)
        named = CertifiedNode.of(read)
        mark = b""
        if former is not None:
            old = read_certificate(former, "its former certificate")
            if replace(CertifiedNode.of(old), agreement_key=named.agreement_key) != named:
                raise ConfigError("its former certificate is of another node or owner")
            former, mark = old.public_bytes(Encoding.PEM), fingerprint(old)
        return cls(
            id=named.id,
            name=check_name(name),
            address=None if address is None else check_address(address),
            certificate=read.public_bytes(Encoding.PEM),
            fingerprint=fingerprint(read),
            agreement_key=named.agreement_key,
            network=named.network,
            host_name=named.host_name,
            owner=named.owner,
            starts=read.not_valid_before_utc,
            expires=read.not_valid_after_utc,
            former=former,
            former_fingerprint=mark,
            until=until,
            asked=asked,
        )

    def continues(self, old: Member) -> bool:
        """Whether this is the same site as in an older roster, by the word of its keys and not only of the authority.

        Its keys and its owner are the same, or the old key has signed the request for the new ones. A former certificate counts as
        well, because others take it for the site itself.
        """
        mine, known = _keys_of(self.certificate), _keys_of(old.certificate)
        former = None if self.former is None else _keys_of(self.former)
        had = (mine, known, None if old.former is None else _keys_of(old.former))
        if self.owner != old.owner or (former is not None and former not in had):
            return False
        if mine == known:
            return True
        # The request, too, must be about these keys: one that the site made for others can lie beside any certificate.
        return self.asked is not None and self.asked.follows(old.certificate) and _keys_in(self.asked) == mine

    def valid(self, now: datetime) -> bool:
        """Whether the certificate's dates allow it to be used at that moment."""
        return self.starts <= now <= self.expires

    def accepted(self, now: datetime) -> tuple[bytes, ...]:
        """The certificates (PEM) under which others take it for itself at that moment."""
        if self.former is None or self.until is None or now > self.until:
            return (self.certificate,)
        return self.certificate, self.former

    def accepts(self, shown: bytes, now: datetime) -> bool:
        """Whether a certificate with this fingerprint is its own."""
        return shown == self.fingerprint or (len(self.accepted(now)) > 1 and shown == self.former_fingerprint)


def _spelled(key: CertificatePublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _keys_of(pem: bytes) -> tuple[bytes, bytes]:
    certificate = read_certificate(pem)
    return _spelled(certificate.public_key()), CertifiedNode.of(certificate).agreement_key


def _keys_in(request: Request) -> tuple[bytes, bytes]:
    named, key = request.open()
    return _spelled(key), named.agreement_key


def write_entry(member: Member, neighbours: Iterable[int]) -> dict[str, object]:
    """A member and its neighbours, as `read_entry` reads them."""
    entry: dict[str, object] = {
        "id": member.id,
        "name": member.name,
        "address": member.address,
        "certificate": member.certificate.decode(),
        "former": None if member.former is None else member.former.decode(),
        "until": None if member.until is None else member.until.isoformat(),
        "neighbours": sorted(neighbours),
    }
    if member.asked is not None:
        entry["asked"] = {"csr": member.asked.csr.decode(), "continues": member.asked.continues.hex()}
    return entry


def _asked(value: object) -> Request | None:
    match value:
        case None:
            return None
        case {"csr": str() as csr, "continues": str() as proof, **rest} if not rest:
            try:
                return Request(csr=csr.encode(errors="replace"), continues=bytes.fromhex(proof))
            except ValueError:
                pass
    raise ConfigError("its request cannot be read")


def read_entry(value: object) -> tuple[Member, list[int]]:
    """A member and its neighbours, as a roster lists them.

    Raises:
        ConfigError: says of whom what is wrong.
    """
    asked = None
    if isinstance(value, dict):
        value = dict(value)
        asked = value.pop("asked", None)
    match value:
        case {
            "id": int() as node,
            "name": str() as name,
            "address": str() | None as address,
            "certificate": str() as certificate,
            "former": str() | None as former,
            "until": str() | None as until,
            "neighbours": list() as neighbours,
            **rest,
        } if (
            not rest
            and all(isinstance(other, int) for other in neighbours)
            and (former is None) == (until is None)
        ):
            pass
        case _:
            raise ConfigError(
                "the roster describes a peer in a way that this version does not know; update cesar"
            )
    try:
        member = Member.of(
            certificate.encode(errors="replace"),
            name=name,
            address=address,
            former=None if former is None else former.encode(errors="replace"),
            until=None if until is None else read_time(until),
            asked=_asked(asked),
        )
    except ConfigError as error:
        raise ConfigError(f"node {node}: {error}") from None
    if member.id != node:
        raise ConfigError(f"node {node} has the certificate of node {member.id}")
    if sorted(set(neighbours)) != neighbours:
        raise ConfigError(f"node {node}: neighbours must be in ascending order, each once")
    return member, neighbours


def check_members(listed: list[Member], network: str, ca: bytes) -> Mapping[NodeId, Member]:
    """Members by id: each once, with keys of its own, of this network, signed by its authority."""
    authority = read_authority(ca)
    members: dict[NodeId, Member] = {}
    keys: dict[bytes, NodeId] = {}
    for member in sorted(listed, key=lambda member: member.id):
        if member.id in members:
            raise ConfigError(f"two peers have the id {member.id}")
        if member.network != network:
            raise ConfigError(f"node {member.id} has a certificate of the network {member.network!r}")
        # Keys of both kinds, and those of a former certificate that is still accepted: with a key of somebody else's a peer could
        # be taken for it.
        listed_keys = []
        for pem in (member.certificate, *([] if member.former is None else [member.former])):
            certificate = read_certificate(pem)
            try:
                check_issuer(certificate, authority)
            except ConfigError as error:
                raise ConfigError(f"the certificate of node {member.id}: {error}") from None
            listed_keys += [
                CertifiedNode.of(certificate).agreement_key,
                _spelled(certificate.public_key()),
            ]
        for key in listed_keys:
            if keys.setdefault(key, member.id) != member.id:
                raise ConfigError(f"nodes {keys[key]} and {member.id} have the same key; each needs its own")
        members[member.id] = member
    check_owners(members.values())
    return MappingProxyType(members)


def check_owners(members: Iterable[Member]) -> None:
    """Refuse two spellings of one owner: its peers would count as those of two; and letters of two scripts in one name, which
    hide such a spelling from the person who compares.

    Raises:
        ConfigError: names both.
    """
    spelled: dict[str, str] = {}
    for owner in (member.owner for member in members if member.owner is not None):
        if len(mixed := scripts(owner)) > 1:
            raise ConfigError(
                f"the owner {owner!r} ({owner!a}) has letters of {len(mixed)} scripts ({', '.join(sorted(mixed))}), which "
                "can pass for another name; write it in one script"
            )
        plain = skeleton(owner)
        if spelled.setdefault(plain, owner) != owner:
            raise ConfigError(
                f"{spelled[plain]!r} and {owner!r} ({owner!a}) look like one owner; write it in the same way in every request, so "
                "that its peers count as one colluder"
            )


def read_time(text: str) -> datetime:
    """A moment as rosters write it."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ConfigError("the roster's dates must be ISO times with a zone")
    return time

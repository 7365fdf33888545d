"""One peer as a roster lists it: its certificate, what people call it, and where it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from cesar.base.errors import ConfigError
from cesar.base.types import NodeId
from cesar.peer.trust.address import check_address
from cesar.peer.trust.certificates import (
    CertifiedNode,
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

    @classmethod
    def of(
        cls,
        certificate: bytes,
        *,
        name: str,
        address: str | None,
        former: bytes | None = None,
        until: datetime | None = None,
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
        )

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


def read_entry(value: object) -> tuple[Member, list[int]]:
    """A member and its neighbours, as a roster lists them.

    Raises:
        ConfigError: says of whom what is wrong.
    """
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
                certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
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

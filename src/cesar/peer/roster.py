"""The roster: who is in the network, with which certificate, where, and next to whom. Public and signed.

The file is JSON, {"roster": …, "signature": …}, in exactly one spelling (sorted keys, two spaces): any other
spelling is refused, so no two readers can understand one file differently. The authority signs

    "cesar roster 2" ‖ 0 ‖ the bytes of the roster object as they stand in the file

and a peer verifies with the authority's certificate in its own folder, never with the copy in the file. The signature
is the last thing in the file, so it is found and verified before anything else is read: whoever is not the authority
costs a hash of what it sends, and nothing more. A
removed peer is not in the next version, and a peer refuses a version older than one that it has seen. Agreement
keys stand in the certificates only, so that there is nothing that could contradict them.

It also says what is promised: the settings that all peers have in common, and until when it holds. A peer whose own
settings are others does not take it up, and its digest is part of every session, so peers that average with one
another have the same members, groups and settings. Fixed groups are not listed: the settings have the least size, the draws that are
not 0 stand beside them, and with the graph and the network id they say which groups there are (`cesar.grouping`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path

import networkx as nx
from cryptography.hazmat.primitives.serialization import Encoding

from cesar.errors import ConfigError, PrivacyError
from cesar.grouping import Draws, Group, check_group_size, groups
from cesar.peer.authority import Authority, verify
from cesar.peer.claims import check_network, read_authority, same_authority
from cesar.peer.keyfiles import read_public
from cesar.peer.member import Member, check_members, read_entry, read_time
from cesar.topology import Neighbourhood, Owners, check_shape
from cesar.types import NodeId

FILE = "roster.json"
FORMAT = 2
LIMIT = 64 << 20
NETWORK_ID_BYTES = 16
DAYS = 365
"""How long a roster holds, unless its authority says otherwise."""

SettingValue = str | int | float | bool | None
_DOMAIN = b"cesar roster 2\0"
_START = b'{\n  "roster": '
_END = re.compile(rb',\n  "signature": "([A-Za-z0-9+/]{0,200}={0,2})"\n}\n')
_LONGEST_END = 256


@dataclass(frozen=True, kw_only=True)
class Roster:
    """A roster whose signature, certificates and graph have been checked.

    Attributes:
        network_id: 16 random bytes that no other network has.
        version: grows by one with each change.
        expires: nobody averages under it after that: whoever is kept from newer ones must not go on for ever.
        members: by id, ascending; ids may have gaps.
        graph: who averages with whom.
        settings: what all peers have in common.
        draws: which division a receiver uses, where it is not the first.
        groups: receiver → its groups; empty without `group_size`.
        ca: the authority's certificate (PEM), which may be newer than the one that the reader has, for the same key.
        raw: the signed file as it came.
    """

    network: str
    network_id: bytes
    version: int
    issued: datetime
    expires: datetime
    members: Mapping[NodeId, Member]
    graph: nx.Graph = field(repr=False, compare=False)
    settings: Mapping[str, SettingValue] = field(default_factory=dict, repr=False)
    draws: Draws = field(default_factory=dict, repr=False)
    groups: Mapping[NodeId, tuple[Group, ...]] = field(default_factory=dict, repr=False, compare=False)
    ca: bytes = field(repr=False)
    raw: bytes = field(repr=False)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of what was signed: the same for peers that hold the same roster."""
        return hashlib.sha256(_DOMAIN + _parts(self.raw)[0]).digest()

    @property
    def group_size(self) -> int | None:
        """m, if peers average in fixed groups."""
        size = self.settings.get("group_size")
        assert size is None or isinstance(size, int)
        return size

    def valid(self, now: datetime) -> bool:
        """Whether it still holds at that moment."""
        return now <= self.expires

    @classmethod
    def load(cls, path: Path, ca: bytes, *, at_least: int = 0) -> Roster:
        """Read and check a roster file; see `parse`."""
        try:
            return cls.parse(read_public(path, LIMIT), ca, at_least=at_least)
        except ConfigError as error:
            raise ConfigError(str(error) if str(path) in str(error) else f"{path}: {error}") from None

    @classmethod
    def parse(cls, data: bytes, ca: bytes, *, at_least: int = 0) -> Roster:
        """Check a signed roster from anywhere.

        Expired certificates are accepted here, so that somebody can be told; see `Member.valid`.

        Args:
            ca: certificate (PEM) of the authority that the caller trusts.
            at_least: the newest version that the caller has seen.

        Raises:
            ConfigError: says what is wrong and what to do.
        """
        match _open(data, ca):
            case {
                "format": 2,
                "network": str() as network,
                "network_id": str() as network_id,
                "version": int() as version,
                "issued": str() as issued,
                "expires": str() as expires,
                "ca": str() as embedded,
                "settings": dict() as settings,
                "draws": dict() as draws,
                "peers": list() as peers,
                **rest,
            } if not rest:
                pass
            case _:
                raise ConfigError("the roster has a format that this version does not know; update cesar")
        if version < at_least:
            raise ConfigError(
                f"the roster has version {version}, which is older than version {at_least}, which this peer has "
                "already seen; fetch the newest"
            )
        if not same_authority(embedded.encode(errors="replace"), ca):
            raise ConfigError("the roster holds the certificate of another authority")
        entries = [read_entry(value) for value in peers]
        members = check_members([member for member, _ in entries], check_network(network), ca)
        graph = _graph(members, {member.id: neighbours for member, neighbours in entries})
        group_size = _check_settings(settings)
        drawn = _draws(draws, members, group_size)
        name = _network_id(network_id)
        return cls(
            network=network,
            network_id=name,
            version=version,
            issued=read_time(issued),
            expires=read_time(expires),
            members=members,
            graph=graph,
            settings=settings,
            draws=drawn,
            groups=_groups(graph, group_size, name, drawn),
            ca=embedded.encode(),
            raw=data,
        )

    @classmethod
    def sign(
        cls,
        authority: Authority,
        members: Iterable[Member],
        graph: nx.Graph,
        *,
        network_id: bytes,
        version: int,
        now: datetime,
        days: int = DAYS,
        settings: Mapping[str, SettingValue] | None = None,
        draws: Draws | None = None,
    ) -> Roster:
        """A new version, checked as its readers will check it; it holds for so many days."""
        now = now.replace(microsecond=0)
        content = {
            "format": FORMAT,
            "network": authority.network,
            "network_id": network_id.hex(),
            "version": version,
            "issued": now.isoformat(),
            "expires": (now + timedelta(days=days)).isoformat(),
            "ca": _normal(authority.certificate),
            "settings": dict(settings or {}),
            "draws": {str(node): draw for node, draw in (draws or {}).items() if draw},
            "peers": [
                {
                    "id": member.id,
                    "name": member.name,
                    "address": member.address,
                    "certificate": member.certificate.decode(),
                    "former": None if member.former is None else member.former.decode(),
                    "until": None if member.until is None else member.until.isoformat(),
                    "neighbours": sorted(graph[member.id]),
                }
                for member in sorted(members, key=lambda member: member.id)
            ],
        }
        unsigned = _spell({"roster": content, "signature": ""})
        body, _ = _parts(unsigned)
        signature = base64.b64encode(authority.sign(_DOMAIN + body)).decode()
        return cls.parse(_spell({"roster": content, "signature": signature}), authority.certificate)

    @property
    def owners(self) -> Owners:
        """Who runs which node, where a certificate says so."""
        return {i: member.owner for i, member in self.members.items() if member.owner is not None}

    def hood(self, node: NodeId) -> Neighbourhood:
        """What this node may know of the graph.

        Raises:
            ConfigError: it is not in the roster.
        """
        if node not in self.members:
            raise ConfigError(
                f"node {node} is not in version {self.version} of the roster: it was removed or never signed"
            )
        return Neighbourhood(
            node, {NodeId(r): tuple(sorted(NodeId(j) for j in self.graph[r])) for r in self.graph[node]}
        )

    def dials(self, a: NodeId, b: NodeId) -> bool:
        """Whether a opens the connection to its neighbour b: to the one that has an address, else upwards."""
        there, back = self.members[b].address is not None, self.members[a].address is not None
        return there and (a < b or not back)


def _spell(document: Mapping[str, object]) -> bytes:
    return (json.dumps(document, sort_keys=True, indent=2) + "\n").encode()


def _normal(certificate: bytes) -> str:
    return read_authority(certificate).public_bytes(Encoding.PEM).decode()


def _open(data: bytes, ca: bytes) -> dict[str, object]:
    """The roster object, once its signature has been verified."""
    if len(data) > LIMIT:
        raise ConfigError(f"a roster has at most {LIMIT:,} bytes, and this has {len(data):,}")
    body, encoded = _parts(data)
    try:
        signature = base64.b64decode(encoded, validate=True)
    except ValueError:
        signature = b""
    if not verify(read_authority(ca), signature, _DOMAIN + body):
        raise ConfigError(
            "the roster is not signed by the authority that this peer trusts: it was changed, or it belongs to "
            "another network; fetch it again from whoever runs this one"
        )
    try:
        content = json.loads(body)
        spelled = _spell({"roster": content, "signature": encoded.decode()})
    except (ValueError, RecursionError):
        content, spelled = None, b""
    if spelled != data or not isinstance(content, dict):
        raise ConfigError("the roster is spelled as no roster is; sign it again with this version of cesar")
    return content


def _parts(data: bytes) -> tuple[bytes, bytes]:
    """The roster object and the signature as they stand in a file, found without reading the object."""
    end = _END.search(data, max(len(_START), len(data) - _LONGEST_END))
    if end is None or end.end() != len(data) or not data.startswith(_START):
        raise ConfigError(
            f"this is not a roster, or it was changed on the way, if only in its spacing; take {FILE} of the network, "
            "byte for byte"
        )
    return data[len(_START) : end.start()], end[1]


def _graph(members: Mapping[NodeId, Member], neighbours: Mapping[NodeId, list[int]]) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(members)
    for i, others in neighbours.items():
        for j in map(NodeId, others):
            if i not in neighbours.get(j, ()):
                raise ConfigError(f"node {i} lists node {j} as a neighbour, but not the other way round")
            if members[i].address is None and members[j].address is None:
                raise ConfigError(
                    f"nodes {i} and {j} are neighbours, but neither has an address, so neither can dial the "
                    "other; give one of them an address"
                )
            graph.add_edge(i, j)
    check_shape(graph)
    return nx.freeze(graph)


def _check_settings(settings: Mapping[str, object]) -> int | None:
    """The size of the groups, once all are plain values."""
    size = settings.get("group_size")
    plain = all(value is None or isinstance(value, str | int | float) for value in settings.values())
    if not plain or not (size is None or type(size) is int):
        raise ConfigError("the roster has settings that this version does not know; update cesar")
    return size


def _draws(
    listed: dict[str, object], members: Mapping[NodeId, Member], group_size: int | None
) -> dict[int, int]:
    """Which division a receiver uses, where it is not the first."""
    known = {str(node): int(node) for node in members}
    draws: dict[int, int] = {}
    for name, draw in listed.items():
        if name not in known or not isinstance(draw, int) or not 0 < draw < 2**32 or group_size is None:
            raise ConfigError(f"the roster's draw {draw!r} of node {name} is not one of a member with groups")
        draws[known[name]] = draw
    return draws


def _groups(
    graph: nx.Graph, group_size: int | None, network_id: bytes, draws: Draws
) -> Mapping[NodeId, tuple[Group, ...]]:
    if group_size is None:
        return {}
    try:
        check_group_size(group_size)
        return groups(graph, group_size, network=network_id, draws=draws)
    except PrivacyError as error:
        raise ConfigError(f"the roster's groups cannot be: {error}") from None


def _network_id(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != NETWORK_ID_BYTES or raw.hex() != text:
        raise ConfigError(f"the roster's network_id must be {2 * NETWORK_ID_BYTES} hexadecimal digits")
    return raw

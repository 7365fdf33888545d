"""The roster: who is in the network, with which certificate, where, and next to whom. Public and signed.

The file is JSON, {"roster": …, "signature": …}, in exactly one spelling (sorted keys, two spaces): any other
spelling is refused, so no two readers can understand one file differently. The authority signs

    "cesar roster 3" ‖ 0 ‖ the bytes of the roster object as they stand in the file

and a peer verifies with the authority's certificate in its own folder, never with the copy in the file. The signature
is the last thing in the file, so it is found and verified before anything else is read: a stranger's roster
costs a hash of its bytes, and nothing more. A
removed peer is not in the next version, and a peer refuses a version older than one that it has seen. Agreement
keys stand in the certificates only, so that there is nothing that could contradict them.

It also says what is promised: the settings that all peers have in common, and until when it holds. A peer whose own
settings are others does not take it up, and its digest is part of every session, so peers that average with one
another have the same members, cells and settings.

Cells are listed. Where there are any, nobody lists neighbours: who holds a link to whom follows from the cells.
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
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from cesar.base.errors import ConfigError, PrivacyError
from cesar.base.types import NodeId
from cesar.graph.cells import CELLS, CellPlan, graph_of
from cesar.graph.neighbourhood import Neighbourhood, Owners, check_shape
from cesar.peer.trust.authority import Authority, verify
from cesar.peer.trust.certificates import check_network, read_authority, same_authority
from cesar.peer.trust.keyfiles import read_public
from cesar.peer.trust.member import Member, check_members, read_entry, read_time, write_entry
from cesar.peer.trust.signers import Signers, cosign, joined, parted

FILE = "roster.json"
FORMAT = 3
LIMIT = 64 << 20
NETWORK_ID_BYTES = 16
DAYS = 365
"""How long a roster holds, unless its authority says otherwise."""

SettingValue = str | int | float | bool | None
_DOMAIN = b"cesar roster 3\0"
_START = b'{\n  "roster": '
_END = re.compile(rb',\n  "signature": "([A-Za-z0-9+/=:;]{0,4000})"\n}\n')
_LONGEST_END = 4096


@dataclass(frozen=True, kw_only=True)
class Roster:
    """A roster whose signature, certificates and graph have been checked.

    Attributes:
        network_id: 16 random bytes that no other network has.
        version: grows by one with each change.
        expires: nobody averages under it after that. A peer that is kept from newer ones must not go on for ever.
        members: by id, ascending; ids may have gaps.
        graph: who averages with whom; in a network of cells, who holds a link to whom.
        plan: its cells; None for other methods.
        settings: what all peers have in common.
        ca: the authority's certificate (PEM), which may be newer than the one that the reader has, for the same key.
        signers: who must sign the next version, beside the authority; None for nobody.
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
    plan: CellPlan | None = field(default=None, repr=False, compare=False)
    ca: bytes = field(repr=False)
    signers: Signers | None = field(default=None, repr=False)
    raw: bytes = field(repr=False)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of what was signed: the same for peers that hold the same roster."""
        return hashlib.sha256(_DOMAIN + _parts(self.raw)[0]).digest()

    def follows(self, old: Roster) -> str | None:
        """Why this version does not count after another one, in words: too few of its signers have signed; None if it does."""
        if old.signers is None:
            return None
        body, signatures = _parts(self.raw)
        return old.signers.objection(body, parted(signatures.decode())[1])

    def cosigned(self, key: ec.EllipticCurvePrivateKey) -> bytes:
        """The file with one signature more."""
        body, signatures = _parts(self.raw)
        first, marked = parted(signatures.decode())
        mark, signature = cosign(key, body)
        return _spell({"roster": json.loads(body), "signature": joined(first, {**marked, mark: signature})})

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
        content = _open(data, ca)
        signers = Signers.of(content.pop("signers", None))
        match content:
            case {
                "format": 3,
                "network": str() as network,
                "network_id": str() as network_id,
                "version": int() as version,
                "issued": str() as issued,
                "expires": str() as expires,
                "ca": str() as embedded,
                "settings": dict() as settings,
                "cells": list() | None as cells,
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
        # Everything below comes from the authority, and is checked all the same: it may have been written by a later version, or by
        # hand.
        entries = [read_entry(value) for value in peers]
        members = check_members([member for member, _ in entries], check_network(network), ca)
        _check_settings(settings)
        plan = _plan(cells, settings, members)
        listed = {member.id: neighbours for member, neighbours in entries}
        graph = _graph(members, listed) if plan is None else _links(members, listed, plan)
        return cls(
            network=network,
            network_id=_network_id(network_id),
            version=version,
            issued=read_time(issued),
            expires=read_time(expires),
            members=members,
            graph=graph,
            settings=settings,
            plan=plan,
            ca=embedded.encode(),
            signers=signers,
            raw=data,
        )

    @classmethod
    def sign(
        cls,
        authority: Authority,
        members: Iterable[Member],
        graph: nx.Graph | None,
        *,
        network_id: bytes,
        version: int,
        now: datetime,
        days: int = DAYS,
        settings: Mapping[str, SettingValue] | None = None,
        cells: Iterable[Iterable[int]] | None = None,
        signers: Signers | None = None,
    ) -> Roster:
        """A new version, checked as its readers will check it; it holds for `days` days.

        Args:
            graph: who averages with whom; None where there are cells.
        """
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
            "cells": None if cells is None else [sorted(cell) for cell in cells],
            "peers": [
                write_entry(member, [] if graph is None else graph[member.id])
                for member in sorted(members, key=lambda member: member.id)
            ],
        }
        if signers is not None:
            content["signers"] = signers.to_json()
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
        # Exactly one of the two dials, and both know which. With two addresses the lower id dials; with one, the peer without.
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
    # First the signature over the bytes as they came, then JSON. A parser never sees what the authority did not sign.
    body, encoded = _parts(data)
    first, _ = parted(encoded.decode())
    try:
        signature = base64.b64decode(first, validate=True)
    except ValueError:
        signature = b""
    if not verify(read_authority(ca), signature, _DOMAIN + body):
        raise ConfigError(
            "the roster is not signed by the authority that this peer trusts: it was changed, or it belongs to "
            "another network; fetch it again from those who run this one"
        )
    # One roster, one spelling: peers compare digests of bytes, and two files that mean the same must not count as two rosters.
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
    # The file is always `_START`, the object, and an end of a known form. Only the last bytes are searched, so that a large file
    # from a stranger costs no search.
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
            graph.add_edge(i, j)
    return _checked(graph, members)


def _links(
    members: Mapping[NodeId, Member], neighbours: Mapping[NodeId, list[int]], plan: CellPlan
) -> nx.Graph:
    if told := [node for node, others in neighbours.items() if others]:
        raise ConfigError(f"node {told[0]} lists neighbours, but they follow from the cells; leave them out")
    return _checked(plan.links(), members)


def _checked(graph: nx.Graph, members: Mapping[NodeId, Member]) -> nx.Graph:
    for i, j in graph.edges:
        if members[i].address is None and members[j].address is None:
            raise ConfigError(
                f"nodes {min(i, j)} and {max(i, j)} are neighbours, but neither has an address, so neither can dial the "
                "other; give one of them an address"
            )
    check_shape(graph)
    return nx.freeze(graph)


def _plan(
    listed: list[object] | None, settings: Mapping[str, object], members: Mapping[NodeId, Member]
) -> CellPlan | None:
    """The cells, each of them fit to add up, with every member in one.

    Raises:
        ConfigError: says what is wrong with them and what to do.
    """
    if settings.get("name") != CELLS:
        if listed is not None:
            raise ConfigError("the roster lists cells, but its method has none; sign it again without them")
        return None
    least, collusion, named = (settings.get(key) for key in ("size", "collusion", "graph"))
    if type(least) is not int or type(collusion) is not int or not isinstance(named, str):
        raise ConfigError("the roster has settings of cells that this version does not know; update cesar")
    if listed is None:
        raise ConfigError("the roster lists no cells, and its method needs them; sign it again with cells")
    if not all(isinstance(cell, list) and all(type(node) is int for node in cell) for cell in listed):
        raise ConfigError("the roster lists cells in a way that this version does not know; update cesar")
    cells = [tuple(map(NodeId, cell)) for cell in listed if isinstance(cell, list)]
    placed = {node for cell in cells for node in cell}
    if strangers := sorted(placed - members.keys()):
        raise ConfigError(f"node {strangers[0]} is in a cell, but it is no peer of this roster; leave it out")
    if homeless := sorted(members.keys() - placed):
        raise ConfigError(f"node {homeless[0]} is in no cell; put it into one and sign the roster again")
    owners: Owners = {int(i): member.owner for i, member in members.items() if member.owner is not None}
    try:
        return CellPlan(tuple(cells), graph_of(named, len(cells)), least, collusion, owners)
    except (ConfigError, PrivacyError) as error:
        raise ConfigError(
            f"the roster's cells cannot be: {error}. Move peers between cells or merge two, and sign the roster again"
        ) from None


def _check_settings(settings: Mapping[str, object]) -> None:
    # Names of settings stand in what people agree to, as they are.
    named = all(key.isidentifier() and key.isascii() for key in settings)
    if not named or not all(
        value is None or isinstance(value, str | int | float) for value in settings.values()
    ):
        raise ConfigError("the roster has settings that this version does not know; update cesar")


def _network_id(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != NETWORK_ID_BYTES or raw.hex() != text:
        raise ConfigError(f"the roster's network_id must be {2 * NETWORK_ID_BYTES} hexadecimal digits")
    return raw

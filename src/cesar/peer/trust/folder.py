"""The folder of a network's authority: make a network, add, renew and remove peers.

    net/ca/ca.key, ca.pem       the authority; the key is private and signs everything
    net/network.toml            the settings that every peer.toml repeats
    net/roster.json             the newest signed roster
    net/peer-3/                 a peer whose keys were made here: all that it needs to run
    net/signed/peer-8/          for a peer that made its own keys: what its site fetches
    net/roster.log              every version that was signed, and what it changed, in words

Every change is a new version of the roster, written to all these folders. Nothing is sent from here; who runs a
site copies the files, or serves them, as they please: all but the keys are public.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import networkx as nx

from cesar.base import files
from cesar.base.errors import ConfigError
from cesar.base.types import NodeId
from cesar.graph.cells import CELLS, Cell, CellPlan
from cesar.graph.moves import admitted, founded, refitted, released
from cesar.graph.neighbourhood import Owners
from cesar.methods.paper import USUAL_RING_BITS
from cesar.peer.trust import changes
from cesar.peer.trust.address import is_this_machine, split
from cesar.peer.trust.authority import DAYS as AUTHORITY_DAYS
from cesar.peer.trust.authority import Authority
from cesar.peer.trust.certificates import Request
from cesar.peer.trust.identity import make_keys
from cesar.peer.trust.keyfiles import CA_CERTIFICATE, CERTIFICATE, read_public
from cesar.peer.trust.member import Member
from cesar.peer.trust.roster import DAYS as ROSTER_DAYS
from cesar.peer.trust.roster import FILE, LIMIT, NETWORK_ID_BYTES, Roster, SettingValue
from cesar.peer.trust.signers import Signers

if TYPE_CHECKING:
    from cesar.methods.settings import MethodSection

Edge = tuple[int, int]

SETTINGS = "network.toml"
PEER = "peer.toml"
LOCK = "lock"
OVERLAP_DAYS = 14
"""How long the certificate before the last is accepted."""


def settings(sparsifier: str, share: float, masks: int | None = None, collusion: int | None = None) -> str:
    """The part of a peer.toml that is the same at every peer."""
    needs = [f"masks = {masks}"] if masks is not None else []
    if collusion is not None:
        needs.append(
            f"collusion = {collusion}                  # this number of owners together compute nobody's values in one round"
        )
    return f"""\
[method]                       # the same at every peer
name = "cesar"
sparsifier = "{sparsifier}"
share = {share!r}
{chr(10).join(needs or ["masks = 1"])}
ring_bits = {USUAL_RING_BITS}

[rounds]
every = 6                      # local steps between two averages
floor = 2.0                    # seconds: no deadline is shorter
ceiling = 120.0                # … or longer
buffers = "local"              # or "average"
# scale_bits = 16              # neighbours whose values are over 2^16 times this model's (or 1) are left out; with 16 bits
                               # it is 6
"""


def cell_settings(
    size: int, sparsifier: str | None = None, share: float | None = None, collusion: int = 1
) -> str:
    """The part of a peer.toml that is the same at every peer, in a network of cells."""
    chosen = "" if sparsifier is None else f'sparsifier = "{sparsifier}"\nshare = {share!r}\n'
    return f"""\
[method]                       # the same at every peer
name = "cells"
size = {size}                       # a site is hidden among this number of sites or more, itself among them
collusion = {collusion}                  # this number of owners may pool what they know
{chosen}ring_bits = 16

[rounds]
every = 6                      # local steps between two averages
floor = 2.0                    # seconds: no deadline is shorter
ceiling = 120.0                # … or longer
buffers = "local"              # or "average"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A network to be made.

    Attributes:
        graph: of the nodes 0 to n - 1; in a network of cells its edges do not count.
        settings: the text of network.toml.
        requests: of the peers that made their own keys; the others get keys here.
        owners: of the others, where they are not their own.
        passphrase: of the authority's key.
        host, port: where the others listen; each adds its id to the port.
        days: how long certificates are valid.
    """

    name: str
    graph: nx.Graph
    settings: str
    requests: Mapping[NodeId, Request]
    host: str
    port: int
    days: int
    owners: Owners = field(default_factory=dict)
    passphrase: bytes | None = field(default=None, repr=False)

    @property
    def all_owners(self) -> Owners:
        """Of all peers, where they are not their own."""
        said = {node: request.node.owner for node, request in self.requests.items()}
        return {**self.owners, **{node: owner for node, owner in said.items() if owner is not None}}

    def address(self, node: int) -> str | None:
        request = self.requests.get(NodeId(node))
        return request.address if request else f"{self.host}:{self.port + node}"


@dataclass(frozen=True, slots=True)
class Network:
    """A network's folder, open for changes."""

    folder: Path
    authority: Authority
    roster: Roster

    @classmethod
    def create(cls, folder: Path, plan: Plan, now: datetime) -> None:
        """Make a network in a new folder, as a whole or not at all.

        Raises:
            ConfigError: the folder has something in it, or the plan cannot work.
            PrivacyError: some node would have too few neighbours.
        """
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} is there already; choose a new folder with --out")
        network_id = secrets.token_bytes(NETWORK_ID_BYTES)
        method, _ = _common(plan.settings)
        cells = None
        if method.name == CELLS:
            cells = method.cells().plan(plan.graph, plan.all_owners).cells
        else:
            method.for_graph(plan.graph, owners=plan.all_owners)
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = folder.with_name(f".{folder.name}.{os.getpid()}")
        draft.mkdir()
        try:
            cls._fill(draft, plan, now, network_id, cells)
            draft.replace(folder)
        except BaseException:
            shutil.rmtree(draft)
            raise

    @classmethod
    def _fill(
        cls,
        folder: Path,
        plan: Plan,
        now: datetime,
        network_id: bytes,
        cells: tuple[Cell, ...] | None,
    ) -> None:
        authority = Authority.create(plan.name, now=now, days=max(AUTHORITY_DAYS, plan.days + 1))
        authority.save(folder / "ca", plan.passphrase)
        files.write(folder / SETTINGS, plan.settings.encode())
        members = []
        for node in sorted(plan.graph):
            request = plan.requests.get(node)
            if request is None:
                csr = make_keys(folder / f"peer-{node}", plan.name, node, plan.owners.get(node))
                request = Request(csr=csr)
            certificate = authority.issue(request, now=now, days=plan.days)
            name = request.name or f"node-{node}"
            members.append(Member.of(certificate, name=name, address=plan.address(node)))
        roster = Roster.sign(
            authority,
            members,
            plan.graph if cells is None else None,
            network_id=network_id,
            version=1,
            now=now,
            days=plan.days,
            settings=_common(plan.settings)[1],
            cells=cells,
        )
        network = cls(folder, authority, roster)
        apart = max(100, len(members))
        for member in members:
            place = network.signed(member.id) if member.id in plan.requests else folder / f"peer-{member.id}"
            network.hand_over(place, member, apart)
        files.write(folder / FILE, roster.raw)
        changes.append_to_log(folder, "signed", roster, [f"a new network of {len(members)} peers"], now)
        network.publish()

    @classmethod
    def open(cls, folder: Path) -> Network:
        """An existing network, to change it."""
        if not (folder / "ca").is_dir():
            raise ConfigError(f"{folder} holds no network's authority; `cesar network init` makes one")
        authority = Authority.load(folder / "ca")
        return cls(folder, authority, Roster.load(folder / FILE, authority.certificate))

    @property
    def common(self) -> tuple[MethodSection, dict[str, SettingValue]]:
        """What every peer.toml repeats, and what of it is signed."""
        return _common(read_public(self.folder / SETTINGS).decode())

    def signed(self, node: int) -> Path:
        """What the site of a peer that made its own keys has to fetch."""
        return self.folder / "signed" / f"peer-{node}"

    def add(self, request: Request, neighbours: Iterable[int] = (), *, now: datetime, days: int) -> Network:
        """Sign the certificate of a new peer, and put it into a cell, or where there are none next to some others."""
        certificate = self.authority.issue(request, now=now, days=days)
        node = request.node.id
        if node in self.roster.members:
            used = ", ".join(map(str, self.roster.members))
            raise ConfigError(
                f"node {node} is in the network already; new keys for it go through `cesar network renew`, and a "
                f"new peer takes an id that is not among {used}"
            )
        graph, neighbours = nx.Graph(self.roster.graph), tuple(neighbours)
        graph.add_node(node)
        if self.roster.plan is not None and neighbours:
            raise ConfigError("cells decide who talks to whom; leave the neighbours of a new peer out")
        if self.roster.plan is None and not neighbours:
            raise ConfigError("say next to whom the new peer is, such as --neighbours 0,3,5")
        self._connect(graph, ((node, other) for other in neighbours))
        member = Member.of(certificate, name=request.name or f"node-{node}", address=request.address)
        return self._admit(member, graph, now)

    def renew(self, request: Request, *, now: datetime, days: int, overlap: int = OVERLAP_DAYS) -> Network:
        """Replace a peer's certificate, or all its keys. Name and address stay unless the request gives others.

        Args:
            overlap: days for which the old certificate is accepted, too, if its holder asks for the new one.
        """
        certificate = self.authority.issue(request, now=now, days=days)
        old = self.roster.members.get(request.node.id)
        if old is None:
            raise ConfigError(
                f"node {request.node.id} is not in the network; add it with `cesar network sign`"
            )
        if request.node.owner != old.owner:
            raise ConfigError(
                f"node {old.id} belongs to {old.owner or 'nobody else'}, and the request says "
                f"{request.node.owner or 'no owner'}; ask for the same (`cesar peer request --owner`), or revoke the node "
                "and sign it under another id"
            )
        name, address = request.name or old.name, request.address or old.address
        former = until = asked = None
        if request.follows(old.certificate):
            asked = request  # other sites can see that the authority has not put keys of its own in this one's place
            if overlap > 0:
                former = old.certificate
                until = min(old.expires, now.replace(microsecond=0) + timedelta(days=overlap))
        member = Member.of(certificate, name=name, address=address, former=former, until=until, asked=asked)
        return self._admit(member, self.roster.graph, now)

    def reauthorise(self, *, now: datetime, days: int) -> Network:
        """A new certificate of the authority for its old key, in a new roster; peers take it from there."""
        authority = self.authority.renewed(now=now, days=days)
        changed = Network(self.folder, authority, self.roster)
        network = self._commit(changed._sign(self.roster.members.values(), self.roster.graph, now), now)
        for place in (self.folder / "ca", *self._places()):
            files.write(place / CA_CERTIFICATE, authority.certificate)
        return network

    def remove(
        self, node: int, edges: Iterable[Edge] = (), *, connect: bool = False, now: datetime
    ) -> Network:
        """Take a peer out and close the gap.

        Args:
            edges: new edges between those that stay.
            connect: add what is missing beyond these.

        Raises:
            ConfigError: the rest would fall apart or have too few neighbours; says which edges to add.
        """
        if node not in self.roster.members:
            raise ConfigError(f"node {node} is not in the network; `cesar network show` lists its peers")
        members = {i: member for i, member in self.roster.members.items() if i != node}
        graph, edges = nx.Graph(self.roster.graph), tuple(edges)
        graph.remove_node(node)
        if self.roster.plan is not None:
            if edges or connect:
                raise ConfigError("cells decide who talks to whom; leave --edges and --connect out")
            return self._commit(self._sign(members.values(), graph, now), now)
        added = self._connect(graph, edges)
        method, _ = self.common
        missing = missing_edges(graph, members, (method.masks or 1) + 1)
        if missing and not connect:
            written = ",".join(f"{i}-{j}" for i, j in (*added, *missing))
            raise ConfigError(
                f"without node {node} the rest would fall apart or leave a receiver too few neighbours; add "
                f"edges with --edges {written}, or let --connect choose them"
            )
        graph.add_edges_from(missing)
        return self._commit(self._sign(members.values(), graph, now), now)

    def extend(self, *, now: datetime, days: int) -> Network:
        """Sign the same members and edges anew, for `days` days and with the settings of now."""
        return self._commit(self._sign(self.roster.members.values(), self.roster.graph, now, days), now)

    def name_signers(self, signers: Signers, *, now: datetime) -> Network:
        """From the next version on, this number of these must sign beside the authority."""
        network = self._sign(self.roster.members.values(), self.roster.graph, now, signers=signers)
        return self._commit(network, now)

    def _connect(self, graph: nx.Graph, edges: Iterable[Edge]) -> list[Edge]:
        """Add edges between nodes of the graph, and say which were new."""
        added = []
        for i, j in edges:
            for end in (i, j):
                if end not in graph:
                    raise ConfigError(
                        f"node {end} is not in the network; `cesar network show` lists its peers"
                    )
            if i == j:
                raise ConfigError(f"node {i} cannot be its own neighbour; an edge needs two peers")
            if not graph.has_edge(i, j):
                added.append((min(i, j), max(i, j)))
            graph.add_edge(i, j)
        return added

    def _admit(self, member: Member, graph: nx.Graph, now: datetime) -> Network:
        network = self._sign({**self.roster.members, member.id: member}.values(), graph, now)
        return self._commit(network, now, member)

    def _commit(self, network: Network, now: datetime, member: Member | None = None) -> Network:
        """Publish a new version, unless another command has signed it meanwhile.

        Raises:
            ConfigError: it has; then there is nothing of this one.
        """
        with (self.folder / "ca" / LOCK).open("ab") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            if read_public(self.folder / FILE, LIMIT) != self.roster.raw:
                raise ConfigError(
                    f"another command has signed version {network.roster.version} of the roster meanwhile; look at `cesar "
                    "network show`, and run this one again"
                )
            # The authority's own comes first: it counts versions, and none may be signed twice.
            files.write(self.folder / FILE, network.roster.raw)
            changes.append_to_log(
                self.folder, "signed", network.roster, changes.differences(self.roster, network.roster), now
            )
            if member is not None:
                network.hand_over(self.signed(member.id), member)
            network.publish()
        return network

    def _sign(
        self,
        members: Iterable[Member],
        graph: nx.Graph,
        now: datetime,
        days: int = ROSTER_DAYS,
        signers: Signers | None = None,
    ) -> Network:
        """The next version.

        Raises:
            ConfigError, PrivacyError: on this graph the method could share nothing, or not safely.
        """
        (method, settings), old = self.common, self.roster
        members = tuple(members)
        owners: Owners = {int(member.id): member.owner for member in members if member.owner is not None}
        cells: tuple[Cell, ...] | None = None
        if method.name == CELLS:
            cells = _cells(old.plan, method, {member.id for member in members}, owners)
        else:
            method.for_graph(graph, owners=owners)
        roster = Roster.sign(
            self.authority,
            members,
            graph if cells is None else None,
            network_id=old.network_id,
            version=old.version + 1,
            now=now,
            days=days,
            settings=settings,
            cells=cells,
            signers=old.signers if signers is None else signers,
        )
        return Network(self.folder, self.authority, roster)

    def hand_over(self, place: Path, member: Member, apart: int = 100) -> None:
        """All that a peer needs beside its keys and the roster; `apart` is between its port and that of its status page."""
        place.mkdir(parents=True, exist_ok=True)
        common = read_public(self.folder / SETTINGS).decode()
        files.write(place / CERTIFICATE, member.certificate)
        files.write(place / CA_CERTIFICATE, self.authority.certificate)
        files.write(place / PEER, (_peer_table(member, apart) + common).encode())

    def publish(self) -> None:
        """The roster into the folder of every peer."""
        for place in self._places():
            files.write(place / FILE, self.roster.raw)

    def _places(self) -> tuple[Path, ...]:
        return (*self.folder.glob("peer-*/"), *self.folder.glob("signed/peer-*/"))


def _cells(
    before: CellPlan | None, method: MethodSection, members: set[NodeId], owners: Owners
) -> tuple[Cell, ...]:
    """The cells of these members, changed as little as can be.

    Raises:
        ConfigError: a cell would have no model to go on with.
    """
    made = method.cells()
    if before is None:
        return made.plan(members, owners).cells
    rules = made.size, made.collusion, owners
    cells = before.cells
    known = {node for cell in cells for node in cell}
    for node in sorted(known - members):
        cells = released(cells, node, *rules)
    cells = refitted(cells, *rules)
    for node in sorted(members - known):
        cells = admitted(cells, node, *rules)
    for cell in cells:
        if not founded(cell, before.cells, made.collusion, owners):
            raise ConfigError(
                f"nodes {', '.join(map(str, cell))} would be a cell without members of {made.collusion + 1} owners that were in one cell "
                "before, so it would have no model to go on with; change fewer peers at once"
            )
    return cells


def missing_edges(graph: nx.Graph, members: Mapping[NodeId, Member], least: int) -> list[Edge]:
    """Edges that make the graph connected and give every node `least` neighbours, between nodes with few.

    Raises:
        ConfigError: there are too few nodes, or too few with an address.
    """
    graph = nx.Graph(graph)
    added: list[Edge] = []
    while True:
        parts = sorted(nx.connected_components(graph), key=min)
        poor = min(graph, key=lambda i: (graph.degree[i], i), default=None)
        if len(parts) > 1:
            pairs = product(parts[0], set().union(*parts[1:]))
        elif poor is not None and graph.degree[poor] < least:
            pairs = product([poor], set(graph) - {poor, *graph[poor]})
        else:
            return added
        usable = [(i, j) for i, j in pairs if members[i].address or members[j].address]
        if not usable:
            raise ConfigError(
                f"no edges can give each of the {len(graph)} peers that remain {least} neighbours, one of each two "
                "with an address; add a peer first, or give one an address"
            )
        i, j = min(usable, key=lambda pair: (sum(graph.degree[k] for k in pair), sorted(pair)))
        graph.add_edge(i, j)
        added.append((min(i, j), max(i, j)))


def _common(text: str) -> tuple[MethodSection, dict[str, SettingValue]]:
    """What the peers have in common, checked; and what of it is signed."""
    try:
        tables = tomllib.loads(text)
        method, rounds = tables["method"], tables.get("rounds", {})
    except (tomllib.TOMLDecodeError, KeyError):
        raise ConfigError(f"{SETTINGS} has no readable table [method]; compare it with a {PEER}") from None
    # The command line loads without pydantic.
    from cesar.methods.settings import MethodSection, check  # noqa: PLC0415
    from cesar.peer.trust.config import RoundsSection, promise  # noqa: PLC0415

    section = check(MethodSection, method)
    return section, promise(section, check(RoundsSection, rounds))


def _peer_table(member: Member, apart: int) -> str:
    """The head of a peer.toml."""
    host, port = split(member.address or "0.0.0.0:7400")
    at = member.address if is_this_machine(host) else f"0.0.0.0:{port}"  # a peer is there to be reached
    listen = f'listen = "{at}"'
    if member.address is None:
        listen = '# listen = "0.0.0.0:7400"    # this peer dials all its neighbours and opens no port'
    return f"""\
# Peer {member.id} of the network "{member.network}". Paths are relative to this file.
[peer]
id = {member.id}
{listen}
status = "127.0.0.1:{port + apart}"      # status page and metrics, for this machine only

"""

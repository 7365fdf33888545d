"""`cesar network`: make a network of real peers, change it, and try it out."""

from __future__ import annotations

import json
import secrets
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import networkx as nx
import typer
from rich.markup import escape
from rich.table import Table

from cesar.base.errors import ConfigError
from cesar.base.seeds import SeedTree
from cesar.base.types import NodeId
from cesar.cli import signers
from cesar.cli.ceremony import Digests, read_request, read_requests
from cesar.cli.options import AsJson, Net
from cesar.cli.output import console
from cesar.graph import named as graphs
from cesar.peer.trust import certificates, changes, folder, keyfiles, naming, passphrases
from cesar.peer.trust.authority import DAYS
from cesar.peer.trust.member import Member
from cesar.peer.trust.roster import FILE, Roster

app = typer.Typer(no_args_is_help=True, help="Make a network of real peers, and change it.")
signers.add_to(app)

RequestFile = Annotated[
    Path, typer.Argument(metavar="REQUEST", help="The site's request.json, from `cesar peer request`.")
]
Days = Annotated[int, typer.Option(min=1, help="How long a certificate is valid.")]


Topology = Annotated[
    str | None,
    typer.Option(
        help=f"Who averages with whom: {graphs.SHORT}. The number is that of the neighbours; the file has two "
        "ids per line. Default: regular:6, or complete for 7 peers or fewer."
    ),
]
DEFAULT_CELLS = 4
InCells = Annotated[
    int | None,
    typer.Option(
        "--cells",
        help="Divide the peers into cells of at least this many (m; default 4): what a site trains is only ever seen added to what "
        "the other members of its cell train, in all rounds. With --topology the paper's exchange takes their place.",
    ),
]
Requests = Annotated[
    list[Path] | None,
    typer.Option(help="The request.json of a site that made its own keys; once for each such site."),
]
Masks = Annotated[
    int | None,
    typer.Option(help="Masks that a parameter must carry to be sent (s); default 1."),
]
Colluders = Annotated[
    int | None,
    typer.Option(
        help="How many owners may pool what they know (k). Every cell has members of k + 2 owners, and k is 1 by default. "
        "With --topology s follows from the graph, and the promise holds for one round."
    ),
]
OwnersGiven = Annotated[
    list[str] | None,
    typer.Option(
        help="OWNER=IDS, such as hospital=0,1: who runs peers whose keys are made here. An owner's peers count as one "
        "colluder; a peer that is not named is its own owner. Requests say their owner themselves."
    ),
]


@app.command("init")
def init(
    out: Annotated[Path, typer.Option(help="A new folder for the network.")],
    peers: Annotated[int | None, typer.Option(min=2, help="How many peers; else one per --request.")] = None,
    cells: InCells = None,
    topology: Topology = None,
    name: Annotated[str | None, typer.Option(help="The network's name; else the folder's.")] = None,
    request: Requests = None,
    host: Annotated[str, typer.Option(help="Where the peers without a request listen.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Peer 0 listens on this port, peer 1 on the next, and so on.")
    ] = 7400,
    days: Days = 365,
    seed: Annotated[int | None, typer.Option(help="Of a random topology; keys are always fresh.")] = None,
    share: Annotated[
        float | None,
        typer.Option(
            help="Fraction of the parameters to be shared (β); default 0.3, and in cells everything."
        ),
    ] = None,
    sparsifier: Annotated[
        str | None, typer.Option(help="What is shared: random or topk; default random.")
    ] = None,
    masks: Masks = None,
    collusion: Colluders = None,
    owner: OwnersGiven = None,
    sha256: Digests = None,
    passphrase: Annotated[
        bool,
        typer.Option(
            "--passphrase",
            help="Protect the authority's key by a passphrase: CESAR_CA_PASSPHRASE_FILE, CESAR_CA_PASSPHRASE, or it is asked for.",
        ),
    ] = False,
) -> None:
    """Make a certificate authority, a signed roster, and a folder with keys and peer.toml for each peer.

    Copy each folder peer-N to its machine, or try all of them on this one. The folder ca/ signs every later
    change: keep it where nobody else can read it. Sites that make their own keys (`cesar peer request`) take part
    with --request, and find what they need in signed/.
    """
    requests = read_requests(request or [], sha256 or [])
    count = _count(peers, requests, port)
    if cells is None and topology is None and masks is None:
        if count < 3:
            raise ConfigError(
                "two peers cannot hide from one another: each takes its own part off the sum. Use three or more"
            )
        cells = min(DEFAULT_CELLS, count)
    if cells is not None:
        if topology is not None or masks is not None:
            raise ConfigError(
                "cells decide who talks to whom, and how many masks there are; leave --topology and --masks out"
            )
        chosen = None if share is None else sparsifier or "random"
        graph, settings = nx.empty_graph(count), folder.cell_settings(cells, chosen, share, collusion or 1)
    else:
        draw = SeedTree(secrets.randbits(64) if seed is None else seed).generator("graph")
        graph = graphs.parse(topology or ("regular:6" if count > 7 else "complete"), count, draw)
        settings = folder.settings(sparsifier or "random", share or 0.3, masks, collusion)
    plan = folder.Plan(
        name=name or out.resolve().name,
        graph=graph,
        settings=settings,
        requests=requests,
        host=host,
        port=port,
        days=days,
        owners=_owners(owner or [], count, requests),
        passphrase=passphrases.chosen(passphrases.AUTHORITY, "the authority's key") if passphrase else None,
    )
    folder.Network.create(out, plan, _now())
    _show_made(out, plan)


def _show_made(out: Path, plan: folder.Plan) -> None:
    """What was made, what is recommended, what to compare, and what to do next."""
    console.print(
        f"Made the network [bold]{plan.name}[/] of {len(plan.graph)} peers in {escape(str(out))}. Each peer needs its own "
        "folder and nothing else.",
        soft_wrap=True,
    )
    roster = Roster.load(out / FILE, keyfiles.read_public(out / "ca" / keyfiles.CA_CERTIFICATE))
    _show_cells(roster)
    _show_trust(out / "ca" / keyfiles.CA_CERTIFICATE)
    if not plan.requests:
        place = shlex.quote(str(out))
        typer.echo(
            f"Next: `cesar network up {place}` trains all of them on this machine; `cesar audit {place}` says who could read what."
        )


def _count(peers: int | None, requests: dict[NodeId, certificates.Request], port: int) -> int:
    """How many peers there will be."""
    count = peers or len(requests)
    if not count or any(node >= count for node in requests):
        raise ConfigError(
            "say how many peers there are, such as --peers 8; ids go from 0 to one less than that"
        )
    if not (port > 0 and port + count + max(100, count) <= 65536):
        raise ConfigError(f"{count} peers and their status pages need more ports than follow {port}")
    return count


@app.command("sign")
def sign(
    net: Net,
    request: RequestFile,
    neighbours: Annotated[
        str,
        typer.Option(
            help="Ids of the peers that it averages with, such as 0,3,5; where there are cells, none."
        ),
    ] = "",
    days: Days = 365,
    sha256: Digests = None,
) -> None:
    """Add a peer that made its own keys: sign its certificate and a new version of the roster.

    Where there are cells it goes into the smallest one, which is divided if it has become large enough for two.
    """
    made = read_request(request, sha256 or [])
    before = folder.Network.open(net)
    changed = before.add(made, _ids(neighbours) if neighbours else (), now=_now(), days=days)
    _show_changes(before.roster, changed.roster)
    _show_signed(changed, made.node.id)


@app.command("renew")
def renew(
    net: Net,
    request: RequestFile,
    days: Days = 365,
    overlap: Annotated[
        int,
        typer.Option(min=0, help="Days for which the old certificate is accepted, too; 0 if it was stolen."),
    ] = folder.OVERLAP_DAYS,
    sha256: Digests = None,
) -> None:
    """Replace a peer's certificate (`cesar peer renew`), or with a new `cesar peer request` all its keys.

    With the agreement key that it has, old and new certificate are accepted for a while; other keys count at once. Name and
    address stay as they are unless the request gives others.
    """
    made = read_request(request, sha256 or [])
    changed = folder.Network.open(net).renew(made, now=_now(), days=days, overlap=overlap)
    _show_signed(changed, made.node.id)
    until = changed.roster.members[made.node.id].until
    old = net / f"peer-{made.node.id}"
    if until is not None:
        console.print(f"The old certificate is accepted until {until:%Y-%m-%d}.")
    elif old.is_dir():
        console.print(
            f"The old keys in {escape(str(old))} are no longer part of the network.", soft_wrap=True
        )


@app.command("revoke")
def revoke(
    net: Net,
    peer: Annotated[int, typer.Option(help="The id of the peer to remove.")],
    edges: Annotated[str, typer.Option(help="Edges to add between the others, such as 1-5,2-7.")] = "",
    connect: Annotated[
        bool, typer.Option("--connect", help="Add the edges that keep the others connected and masked.")
    ] = False,
) -> None:
    """Remove a peer: sign a roster without it. The others refuse it as soon as they have that version.

    A cell that has too few members then gets one of a larger cell, or is merged with another.
    """
    before = folder.Network.open(net)
    after = before.remove(peer, _edges(edges), connect=connect, now=_now())
    if after.roster.plan is not None:
        console.print(f"Node {peer} is out of version {after.roster.version} of the roster.", soft_wrap=True)
        _show_changes(before.roster, after.roster)
        console.print(f"Give every site the new {escape(str(net / FILE))}.", soft_wrap=True)
        return
    added = [f"{i}-{j}" for i, j in after.roster.graph.edges if not before.roster.graph.has_edge(i, j)]
    console.print(
        f"Node {peer} is out of version {after.roster.version} of the roster; edges added: "
        f"{', '.join(added) or 'none'}.\nGive every site the new {escape(str(net / FILE))}.",
        soft_wrap=True,
    )


@app.command("reauthorise")
def reauthorise(net: Net, days: Days = DAYS) -> None:
    """Make a new certificate for the authority's key before the old one ends; peers take it from the new roster."""
    changed = folder.Network.open(net).reauthorise(now=_now(), days=days)
    _show_trust(net / "ca" / keyfiles.CA_CERTIFICATE)
    console.print(
        f"Give every site version {changed.roster.version}, the new {escape(str(net / FILE))}.",
        soft_wrap=True,
    )


@app.command("extend")
def extend(
    net: Net, days: Annotated[int, typer.Option(min=1, help="How long the new roster holds.")] = 365
) -> None:
    """Sign the roster anew, with a later end, and with the settings of network.toml if they were changed."""
    changed = folder.Network.open(net).extend(now=_now(), days=days)
    console.print(
        f"Version {changed.roster.version} of the roster holds until {changed.roster.expires:%Y-%m-%d}. Give every site the "
        f"new {escape(str(net / FILE))}.",
        soft_wrap=True,
    )


@app.command("show")
def show(
    net: Annotated[Path, typer.Argument(metavar="NET", help="The network's folder, or a peer's.")],
    as_json: AsJson = False,
) -> None:
    """Who is in the network, who dials whom (so who needs an open port), and when certificates end."""
    authority = next(
        (net / sub for sub in ("ca", ".") if (net / sub / keyfiles.CA_CERTIFICATE).is_file()), net
    )
    roster = Roster.load(net / FILE, keyfiles.read_public(authority / keyfiles.CA_CERTIFICATE))
    rows = [_row(roster, member) for member in roster.members.values()]
    lines, last = changes.check_log(net)
    if as_json:
        fields = {
            "network": roster.network,
            "version": roster.version,
            "issued": roster.issued.isoformat(),
            "expires": roster.expires.isoformat(),
            "digest": roster.digest.hex(),
            "settings": dict(roster.settings),
            "cells": None if roster.plan is None else roster.plan.cells,
            "log": {"lines": lines, "sha256": last},
        }
        typer.echo(json.dumps({**fields, "peers": rows}))
        return
    table = Table(title=f"{roster.network}, version {roster.version} of {roster.issued:%Y-%m-%d %H:%M} UTC")
    table.add_column("id", justify="right")
    owned = ("owner",) if roster.owners else ()
    for heading in ("name", *owned, "address", "dials", "is dialled by", "certificate ends"):
        table.add_column(heading, overflow="fold")
    for member, row in zip(roster.members.values(), rows, strict=True):
        table.add_row(
            str(member.id),
            escape(member.name),
            *(escape(member.owner or "its own") for _ in owned),
            escape(member.address or "none: it only dials"),
            " ".join(map(str, row["dials"])),
            " ".join(map(str, row["dialled_by"])),
            _end(member.expires, member.valid(_now())),
        )
    console.print(table)
    _show_cells(roster)
    console.print(f"This roster ends on {_end(roster.expires, roster.valid(_now()))}.", highlight=False)
    if lines:
        console.print(
            f"{changes.LOG} has {lines} lines, unbroken; the last one's SHA-256: {last}",
            style="dim",
            soft_wrap=True,
            highlight=False,
        )
    _show_trust(authority / keyfiles.CA_CERTIFICATE)


def _now() -> datetime:
    return datetime.now(UTC)


def _owners(given: list[str], count: int, requests: dict[NodeId, certificates.Request]) -> dict[int, str]:
    owners: dict[int, str] = {}
    for word in given:
        owner, equals, nodes = word.rpartition("=")
        if not equals:
            raise ConfigError(f"{word!r} names no owner; write hospital=0,1")
        for node in _ids(nodes):
            if node in owners or node in requests or node >= count:
                raise ConfigError(
                    f"--owner {word}: node {node} is not there, has an owner already, or made its own request"
                )
            owners[node] = certificates.check_owner(owner)
    return owners


def _ids(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() for word in words):
        raise ConfigError(f"{text!r} is not a list of ids; write them as 0,3,5")
    return [int(word) for word in words]


def _edges(text: str) -> list[folder.Edge]:
    edges = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        ends = word.split("-")
        if len(ends) != 2 or not all(end.isdecimal() for end in ends):
            raise ConfigError(f"{word!r} is not an edge; write edges as 1-5,2-7")
        edges.append((int(ends[0]), int(ends[1])))
    return edges


def _row(roster: Roster, member: Member) -> dict[str, Any]:
    near = roster.hood(member.id).view
    return {
        "id": member.id,
        "name": member.name,
        "owner": member.owner,
        "address": member.address,
        "neighbours": list(near),
        "dials": [other for other in near if roster.dials(member.id, other)],
        "dialled_by": [other for other in near if roster.dials(other, member.id)],
        "expires": member.expires.isoformat(),
        "fingerprint": member.fingerprint.hex(),
    }


def _end(end: datetime, valid: bool) -> str:
    if not valid:
        return f"[red]{end:%Y-%m-%d}, not valid now[/]"
    return f"[yellow]{end:%Y-%m-%d}, soon[/]" if end - _now() < timedelta(days=30) else f"{end:%Y-%m-%d}"


def _show_trust(path: Path) -> None:
    certificate = certificates.read_authority(keyfiles.read_public(path))
    console.print(
        f"The authority's certificate ends on {certificate.not_valid_after_utc:%Y-%m-%d}. SHA-256 of ca.pem, which "
        f"every site must have: {keyfiles.file_fingerprint(keyfiles.read_public(path))}",
        soft_wrap=True,
        style="dim",
        highlight=False,
    )


def _show_cells(roster: Roster) -> None:
    """Who is only ever seen added to whom, cell by cell."""
    if roster.plan is None:
        return
    for number, cell in enumerate(roster.plan.cells):
        console.print(
            escape(
                f"Cell {number}: {naming.listed(roster, cell)}. What one of them trains is only ever seen added to what the others train."
            ),
            soft_wrap=True,
            highlight=False,
        )


def _show_changes(before: Roster, after: Roster) -> None:
    """What a new version changes, in words."""
    if after.plan is not None:
        for line in changes.differences(before, after):
            console.print(escape(f"· {line}"), soft_wrap=True, highlight=False)


def _show_signed(changed: folder.Network, node: int) -> None:
    console.print(
        f"Signed version {changed.roster.version} of the roster. The site takes "
        f"{escape(str(changed.signed(node)))} with `cesar peer install`; every other site takes the new "
        f"{escape(str(changed.folder / FILE))}.",
        soft_wrap=True,
    )

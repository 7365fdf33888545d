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

from cesar import graphs
from cesar.cli import up, watch
from cesar.cli.ceremony import Digests, read_request, read_requests
from cesar.cli.options import AsJson, Net
from cesar.cli.output import console
from cesar.errors import ConfigError
from cesar.peer import claims, folder, keyfiles, passphrases, words
from cesar.peer.authority import DAYS
from cesar.peer.member import Member
from cesar.peer.regrouping import Edge, told
from cesar.peer.roster import FILE, Roster
from cesar.seeds import SeedTree
from cesar.sparsify import SparsifierName
from cesar.types import NodeId

app = typer.Typer(no_args_is_help=True, help="Make a network of real peers, and change it.")

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
Requests = Annotated[
    list[Path] | None,
    typer.Option(help="The request.json of a site that made its own keys; once for each such site."),
]
Groups = Annotated[
    int | None,
    typer.Option(
        help="A peer only ever sees sums over whole groups of so many neighbours or more, always the same ones (m); "
        "twice as many neighbours are recommended. Default: 3, or 2 where somebody has only two neighbours; 0 is "
        "for none, as with --masks."
    ),
]
Masks = Annotated[
    int | None,
    typer.Option(help="Without groups: masks that a parameter must carry to be sent (s); default 1."),
]
Colluders = Annotated[
    int | None,
    typer.Option(
        help="So many owners together compute nobody's values: groups are drawn so, or s follows from the topology."
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
    topology: Topology = None,
    name: Annotated[str | None, typer.Option(help="The network's name; else the folder's.")] = None,
    request: Requests = None,
    host: Annotated[str, typer.Option(help="Where the peers without a request listen.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Peer 0 listens on this port, peer 1 on the next, and so on.")
    ] = 7400,
    days: Days = 365,
    seed: Annotated[int | None, typer.Option(help="Of a random topology; keys are always fresh.")] = None,
    share: Annotated[float, typer.Option(help="Fraction of the parameters to be shared (β).")] = 0.3,
    sparsifier: Annotated[SparsifierName, typer.Option(help="How a peer selects.")] = SparsifierName.RANDOM,
    group_size: Groups = None,
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
    draw = SeedTree(secrets.randbits(64) if seed is None else seed).generator("graph")
    graph = graphs.parse(topology or ("regular:6" if count > 7 else "complete"), count, draw)
    if group_size is None and masks is None and sparsifier is not SparsifierName.COORDINATED:
        group_size = max(3 if min(dict(graph.degree).values()) >= 3 else 2, 1 + (collusion or 1))
    settings = folder.settings(sparsifier.value, share, masks, collusion, group_size or None)
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
    _show_made(out, plan, group_size or None)


def _show_made(out: Path, plan: folder.Plan, group_size: int | None) -> None:
    """What was made, what is recommended, what to compare, and what to do next."""
    console.print(
        f"Made the network [bold]{plan.name}[/] of {len(plan.graph)} peers in {escape(str(out))}. Each peer needs its own "
        "folder and nothing else.",
        soft_wrap=True,
    )
    _recommend(plan.graph, group_size)
    _show_trust(out / "ca" / keyfiles.CA_CERTIFICATE)
    if not plan.requests:
        place = shlex.quote(str(out))
        typer.echo(
            f"Next: `cesar network up {place}` trains all of them on this machine; `cesar audit {place}` says who could read what."
        )


def _count(peers: int | None, requests: dict[NodeId, claims.Request], port: int) -> int:
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
    neighbours: Annotated[str, typer.Option(help="Ids of the peers that it averages with, such as 0,3,5.")],
    days: Days = 365,
    sha256: Digests = None,
) -> None:
    """Add a peer that made its own keys: sign its certificate and a new version of the roster."""
    made = read_request(request, sha256 or [])
    changed = folder.Network.open(net).add(made, _ids(neighbours), now=_now(), days=days)
    _show_signed(changed, made.claim.id)
    _show_leaks(changed)


@app.command("renew")
def renew(
    net: Net,
    request: RequestFile,
    days: Days = 365,
    overlap: Annotated[
        int,
        typer.Option(
            min=0, help="For so many days the old certificate is accepted, too; 0 if it was stolen."
        ),
    ] = folder.OVERLAP_DAYS,
    sha256: Digests = None,
) -> None:
    """Replace a peer's certificate (`cesar peer renew`), or with a new `cesar peer request` all its keys.

    With the agreement key that it has, old and new certificate are accepted for a while; other keys count at once. Name and
    address stay as they are unless the request gives others.
    """
    made = read_request(request, sha256 or [])
    changed = folder.Network.open(net).renew(made, now=_now(), days=days, overlap=overlap)
    _show_signed(changed, made.claim.id)
    until = changed.roster.members[made.claim.id].until
    old = net / f"peer-{made.claim.id}"
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
    """Remove a peer: sign a roster without it. The others refuse it as soon as they have that version."""
    before = folder.Network.open(net)
    after = before.remove(peer, _edges(edges), connect=connect, now=_now())
    added = [f"{i}-{j}" for i, j in after.roster.graph.edges if not before.roster.graph.has_edge(i, j)]
    console.print(
        f"Node {peer} is out of version {after.roster.version} of the roster; edges added: "
        f"{', '.join(added) or 'none'}.\nGive every site the new {escape(str(net / FILE))}.",
        soft_wrap=True,
    )
    _show_leaks(after)


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
    _show_leaks(changed)


@app.command("show")
def show(
    net: Annotated[Path, typer.Argument(metavar="NET", help="The network's folder, or a peer's.")],
    as_json: AsJson = False,
) -> None:
    """Who is in the network, who dials whom (so who needs an open port), whose sums each peer hears, and when
    certificates end.
    """
    authority = next(
        (net / sub for sub in ("ca", ".") if (net / sub / keyfiles.CA_CERTIFICATE).is_file()), net
    )
    roster = Roster.load(net / FILE, keyfiles.read_public(authority / keyfiles.CA_CERTIFICATE))
    rows = [_row(roster, member) for member in roster.members.values()]
    if as_json:
        fields = {
            "network": roster.network,
            "version": roster.version,
            "issued": roster.issued.isoformat(),
            "expires": roster.expires.isoformat(),
            "digest": roster.digest.hex(),
            "group_size": roster.group_size,
            "settings": dict(roster.settings),
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
    for node in roster.groups:
        console.print(escape(words.hears(roster, node)), soft_wrap=True, highlight=False)
    console.print(f"This roster ends on {_end(roster.expires, roster.valid(_now()))}.", highlight=False)
    _show_trust(authority / keyfiles.CA_CERTIFICATE)


def _now() -> datetime:
    return datetime.now(UTC)


def _owners(given: list[str], count: int, requests: dict[NodeId, claims.Request]) -> dict[int, str]:
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
            owners[node] = claims.check_owner(owner)
    return owners


def _ids(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() for word in words):
        raise ConfigError(f"{text!r} is not a list of ids; write them as 0,3,5")
    return [int(word) for word in words]


def _edges(text: str) -> list[Edge]:
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
        "groups": [list(group) for group in roster.groups.get(member.id, ())],
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
    certificate = claims.read_authority(keyfiles.read_public(path))
    console.print(
        f"The authority's certificate ends on {certificate.not_valid_after_utc:%Y-%m-%d}. SHA-256 of ca.pem, which "
        f"every site must have: {keyfiles.file_fingerprint(keyfiles.read_public(path))}",
        soft_wrap=True,
        style="dim",
        highlight=False,
    )


def _recommend(graph: nx.Graph, group_size: int | None) -> None:
    """Say so where a peer that is away would leave a neighbour without any sum."""
    few = [node for node in graph if group_size is not None and graph.degree[node] < 2 * group_size]
    if group_size is not None and few:
        console.print(
            f"Groups of {group_size} work best with {2 * group_size} neighbours or more: {len(few)} peer(s) hear one group "
            "only, and hear nothing while one of its members is away.",
            soft_wrap=True,
        )


def _show_leaks(changed: folder.Network) -> None:
    """What the change gives away, whoever it is given to."""

    def name(node: NodeId) -> str:
        return f"node {words.called(changed.roster, node)}"

    for line in told(changed.leaks, name):
        console.print(escape(line), soft_wrap=True, highlight=False)
    if changed.leaks:
        console.print(
            "They differ by what was learned between the two sums, so these values are blurred by a round of training at "
            "the least. Nobody else's value follows from the sums before and after.",
            soft_wrap=True,
            style="dim",
        )


def _show_signed(changed: folder.Network, node: int) -> None:
    console.print(
        f"Signed version {changed.roster.version} of the roster. The site copies all files of "
        f"{escape(str(changed.signed(node)))} beside its keys; every other site takes the new "
        f"{escape(str(changed.folder / FILE))}.",
        soft_wrap=True,
    )


app.command("up")(up.command)
app.command("watch")(watch.command)

"""`cesar audit`: what coalitions can compute, of a planned network, a recorded run or a network of peers."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import networkx as nx
import numpy as np
import typer
from rich.table import Table

from cesar import graphs
from cesar.audit import exposure, report
from cesar.audit.exposure import Exchange, Flags, percent
from cesar.audit.report import Subject
from cesar.cli.options import Alpha, AsJson, Nodes
from cesar.cli.output import console, counting
from cesar.crypto.keys import SESSION_BYTES, Attempt
from cesar.errors import ConfigError, DataError
from cesar.methods import Cesar, SecureAggregation
from cesar.seeds import SeedTree
from cesar.sparsify import CoordinatedSubsampling, RandomSubsampling
from cesar.topology import check_degrees, strict_requirement
from cesar.types import NodeId, RoundNo

Seed = Annotated[int, typer.Option(help="Of graph, selections and samples.")]


class Selection(StrEnum):
    """How nodes select."""

    RANDOM = "random"
    COORDINATED = "coordinated"
    FULL = "full"


def _nodes_in(path: Path) -> int:
    """One more than the largest number in an edge list; `from_file` finds what is wrong with it."""
    if not path.is_file():
        raise ConfigError(f"there is no edge list {path}; write one 'i j' per line, nodes numbered from 0")
    words = [
        w for line in path.read_text(encoding="utf-8").splitlines() for w in line.partition("#")[0].split()
    ]
    return max((int(word) for word in words if word.isdecimal()), default=0) + 1


def _select(kind: Selection, graph: nx.Graph, alpha: float, patterns: int, seed: int) -> Flags:
    """(n, positions), drawn as the engine draws them."""
    if kind is Selection.FULL:
        return np.ones((len(graph), 1), dtype=bool)
    RandomSubsampling(alpha)  # checks α
    return exposure.draw_patterns(len(graph), patterns, alpha, seed)


def command(
    source: Annotated[
        Path | None, typer.Argument(help="A recorded run (cesar run) or the folder of a peers' network.")
    ] = None,
    topology: Annotated[str, typer.Option(help=f"Who averages with whom: {graphs.SHORT}.")] = "regular:6",
    nodes: Nodes = 48,
    graph: Annotated[
        Path | None, typer.Option(help="Edge list instead of a topology: 'i j' per line.")
    ] = None,
    masks: Annotated[
        int | None, typer.Option(min=1, help="Masks that a value must carry (s); default 1.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Take s from the graph, as Cesar(collusion=k) does.")
    ] = False,
    alpha: Alpha = 0.3422,
    selection: Annotated[Selection, typer.Option(help="How nodes select.")] = Selection.RANDOM,
    collusion: Annotated[
        int, typer.Option(min=1, help="Largest number of nodes that pool what they know (k).")
    ] = 2,
    patterns: Annotated[int, typer.Option(min=1, help="Parameter positions to look at.")] = 1000,
    coalitions: Annotated[
        int, typer.Option(min=1, help="Try all coalitions of a size up to so many, else a sample.")
    ] = exposure.LIMIT,
    method: Annotated[str | None, typer.Option(help="Which method of a recorded run.")] = None,
    round_: Annotated[int, typer.Option("--round", min=0, help="Which round of a recorded run.")] = 0,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--report", help="Write a page for a data-protection officer.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What every coalition of nodes can compute exactly, at which fraction of positions, and how."""
    if source is not None:
        subject, exchange, s = _from_folder(source, method, round_, masks, strict, collusion, patterns)
    else:
        chosen = (
            graphs.parse(topology, nodes, SeedTree(seed).generator("graph"))
            if graph is None
            else graphs.from_file(graph, _nodes_in(graph))
        )
        s = _masks(chosen, masks, strict, collusion)
        flags = _select(selection, chosen, alpha, patterns, seed)
        exchange = Exchange.complete(chosen, flags, s, coordinated=selection is Selection.COORDINATED)
        where = f"topology {topology}, seed {seed}" if graph is None else f"graph of {graph.name}"
        subject = Subject(
            graph=chosen,
            source=where,
            sparsifier=selection.value,
            alpha=1.0 if selection is Selection.FULL else alpha,
            seed=seed,
        )
    check_degrees(subject.graph, s)
    with counting() as progress:
        found = exposure.audit(exchange, collusion, limit=coalitions, seed=seed, progress=progress)
    if out is not None:
        from cesar import __version__  # noqa: PLC0415

        report.write_statement(found, subject, out, __version__)
    if as_json:
        typer.echo(json.dumps(report.as_dict(found, subject) | ({"report": str(out)} if out else {})))
        return
    _show_audit(found, subject)
    if out is not None:
        console.print(f"report: [bold]{out}[/]")


def _masks(graph: nx.Graph, masks: int | None, strict: bool, collusion: int) -> int:
    if strict and masks is not None:
        raise ConfigError("--strict takes s from the graph; leave --masks out")
    return strict_requirement(graph, collusion) if strict else masks or 1


def _show_audit(found: exposure.Audit, subject: Subject) -> None:
    good, headline, detail = report.verdict(found, subject)
    console.print(f"\n[bold {'green' if good else 'red'}]{headline}[/] {detail}\n", soft_wrap=True)
    table = Table(title=f"{subject.source}: {found.nodes} nodes, s = {found.masks}, α = {subject.alpha:g}")
    for heading in ("coalition of", "tried", "of", "read somebody", "worst, of the positions"):
        table.add_column(heading, justify="right")
    for tested in found.sizes:
        cells = (
            tested.size,
            f"{tested.tested:,}",
            f"{tested.possible:,}",
            f"{tested.exposing:,}",
            percent(tested.worst),
        )
        table.add_row(*map(str, cells))
    console.print(table)
    for finding in found.findings:
        console.print(
            f"· {finding.sentence} (somebody: {percent(finding.fraction)})", soft_wrap=True, highlight=False
        )
    for note in subject.notes:
        console.print(note, style="dim", soft_wrap=True)


def _from_folder(
    folder: Path,
    method: str | None,
    round_: int,
    masks: int | None,
    strict: bool,
    collusion: int,
    patterns: int,
) -> tuple[Subject, Exchange, int]:
    if (folder / "roster.json").is_file():
        return _from_roster(folder, masks, strict, collusion, patterns)
    if (folder / "experiment.json").is_file():
        return _from_run(folder, method, round_, masks, strict, collusion, patterns)
    raise DataError(
        f"{folder} holds neither experiment.json (a recorded run) nor roster.json (a peers' network); "
        "name such a folder, or describe the network with --topology or --graph"
    )


def _from_roster(
    folder: Path, masks: int | None, strict: bool, collusion: int, patterns: int
) -> tuple[Subject, Exchange, int]:
    """A peers' network, or one peer of it: the signed graph and the settings. Selections are drawn, because peers
    keep none.
    """
    from cesar.peer.identity import CA_CERTIFICATE, read_public  # noqa: PLC0415
    from cesar.peer.roster import FILE, Roster  # noqa: PLC0415
    from cesar.settings import MethodSection, check, read_toml  # noqa: PLC0415

    authority = folder / "ca" if (folder / "ca").is_dir() else folder
    roster = Roster.load(folder / FILE, read_public(authority / CA_CERTIFICATE))
    settings = folder / ("network.toml" if (folder / "network.toml").is_file() else "peer.toml")
    section = check(MethodSection, read_toml(settings, "settings file").get("method", {}))
    ids = sorted(roster.graph)
    graph = nx.relabel_nodes(roster.graph, {node: k for k, node in enumerate(ids)})
    method = section.build(min(degree for _, degree in graph.degree), graph=graph)
    if isinstance(method, SecureAggregation):
        method = method.as_cesar()
    if not isinstance(method, Cesar):
        raise ConfigError(f"{section.title} hides nothing; there is nothing to audit")
    s = (
        method.for_graph(graph).masks
        if masks is None and not strict
        else _masks(graph, masks, strict, collusion)
    )
    kind = section.sparsifier or "full"
    drawn = Selection(kind) if kind in tuple(Selection) else Selection.RANDOM
    flags = _select(drawn, graph, method.sparsifier.alpha, patterns, 0)
    notes = ["Peers keep no record of selections: patterns were drawn at random with the network's α."]
    if ids != list(range(len(ids))):
        notes.append(f"Nodes are counted in the order of their ids: {', '.join(map(str, ids))}.")
    subject = Subject(
        graph=graph,
        source=f"network {roster.network}, roster version {roster.version}",
        sparsifier=kind,
        alpha=method.sparsifier.alpha,
        seed=0,
        notes=tuple(notes),
    )
    return subject, Exchange.complete(graph, flags, s, coordinated=drawn is Selection.COORDINATED), s


def _from_run(
    folder: Path,
    wanted: str | None,
    round_: int,
    masks: int | None,
    strict: bool,
    collusion: int,
    patterns: int,
) -> tuple[Subject, Exchange, int]:
    """A recorded run: graph and settings as recorded, selections drawn anew from the recorded seed."""
    from cesar.experiment import run  # noqa: PLC0415  (torch takes seconds to import)

    experiment = run.read(folder)
    masked = [m for m in experiment.method if m.name != "dpsgd"]
    chosen = [m for m in masked if wanted in (None, m.title, m.folder)]
    if not chosen:
        names = ", ".join(m.title for m in masked)
        raise ConfigError(
            f"{folder} holds no masked method{f' {wanted!r}' if wanted else ''}; it has: {names or 'D-PSGD only, which hides nothing'}"
        )
    section, seed = chosen[0], experiment.seeds[0]
    if round_ >= experiment.rounds:
        raise ConfigError(f"the run has rounds 0 to {experiment.rounds - 1}, not {round_}")
    graph = run.graph_of(experiment, seed)(round_)
    first = run.graph_of(experiment, seed)(0)
    place = folder / section.folder / f"seed-{seed}"
    size = run.parameters_of(place)
    degree = round(2 * first.number_of_edges() / len(first))
    method = section.build(degree, size=size, graph=first)
    if isinstance(method, SecureAggregation):
        method = method.as_cesar()
    assert isinstance(method, Cesar)
    method = method.for_graph(graph)
    s = method.masks if masks is None and not strict else _masks(graph, masks, strict, collusion)
    flags, notes = _selections(place, method.sparsifier, len(graph), seed, round_, size, patterns)
    if experiment.faults.crash_rate:
        notes.append("The run had crashes; the audit takes the round as if nobody had crashed.")
    name = {"random": "random", "topk": "topk", "coordinated": "coordinated"}.get(
        section.sparsifier or "", "full"
    )
    subject = Subject(
        graph=graph,
        source=f"{experiment.name}, {section.title}, seed {seed}, round {round_}",
        sparsifier=name,
        alpha=method.sparsifier.alpha,
        seed=seed,
        notes=tuple(notes),
    )
    coordinated = isinstance(method.sparsifier, CoordinatedSubsampling)
    return subject, Exchange.complete(graph, flags, s, coordinated=coordinated), s


def _selections(
    place: Path, sparsifier: object, nodes: int, seed: int, round_: int, size: int, patterns: int
) -> tuple[Flags, list[str]]:
    """What the nodes of a run selected, at up to `patterns` positions: as recorded, else drawn again."""
    from cesar.experiment import recording  # noqa: PLC0415  (only runs need it)

    seeds = SeedTree(seed)
    looked_at = np.sort(seeds.generator("audit", "positions").permutation(size)[:patterns])
    part = f"{len(looked_at):,} of {size:,} positions, drawn at random."
    if (kept := recording.path_of(place, round_ + 1)).exists():
        return recording.read(place, round_ + 1).selected[:, looked_at], [
            f"Selections as in {kept.name}. {part}"
        ]
    if isinstance(sparsifier, RandomSubsampling):
        nothing = np.zeros(size, dtype=np.float32)
        sets = [sparsifier.select(nothing, None, seeds.entropy("round", round_, i)) for i in range(nodes)]
    elif isinstance(sparsifier, CoordinatedSubsampling):
        attempt = Attempt(session=seeds.bytes(SESSION_BYTES, "session"), round_=RoundNo(round_))
        sets = [sparsifier.select_for(NodeId(i), attempt, size) for i in range(nodes)]
    elif getattr(sparsifier, "name", "") == "full":
        return np.ones((nodes, 1), dtype=bool), []
    else:
        alpha = float(getattr(sparsifier, "alpha", 1.0))
        note = (
            "TopK selections follow from training and were not recorded ([recording] every = N keeps them): "
            "independent ones with the same α stand in for them."
        )
        return exposure.draw_patterns(nodes, patterns, alpha, seed), [note]
    from cesar import bits  # noqa: PLC0415

    flags = np.stack([bits.to_bools(chosen.words, size)[looked_at] for chosen in sets])
    return flags, [
        f"Selections were not recorded; they were drawn again from the recorded seed, by the same code. {part}"
    ]

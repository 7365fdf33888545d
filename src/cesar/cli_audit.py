"""`cesar audit`, `cesar plan topology` and `cesar plan collusion`: privacy from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import networkx as nx
import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cesar import graphs
from cesar.audit import exposure, planning, report
from cesar.audit.collusion import Estimate, Risk, plan_collusion
from cesar.audit.exposure import Exchange, Flags, percent
from cesar.audit.report import Subject
from cesar.crypto.keys import SESSION_BYTES, Attempt
from cesar.errors import ConfigError, DataError
from cesar.methods import Cesar, SecureAggregation
from cesar.seeds import SeedTree
from cesar.sparsify import CoordinatedSubsampling, RandomSubsampling
from cesar.topology import check_degrees, strict_requirement
from cesar.types import NodeId, RoundNo

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Seed = Annotated[int, typer.Option(help="Of graph, selections and samples.")]
console = Console()


class Selection(StrEnum):
    """How nodes select."""

    RANDOM = "random"
    COORDINATED = "coordinated"
    FULL = "full"


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar; call it with (what, done, of how many)."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, object] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)  # type: ignore[arg-type]

        yield show


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


def audit_command(
    source: Annotated[
        Path | None, typer.Argument(help="A recorded run (cesar run) or the folder of a peers' network.")
    ] = None,
    topology: Annotated[
        str, typer.Option(help="regular:DEGREE, small-world:DEGREE, ring, complete.")
    ] = "regular:6",
    nodes: Annotated[int, typer.Option(min=2, help="Number of nodes.")] = 48,
    graph: Annotated[
        Path | None, typer.Option(help="Edge list instead of a topology: 'i j' per line.")
    ] = None,
    masks: Annotated[
        int | None, typer.Option(min=1, help="Masks that a value must carry (s); default 1.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Take s from the graph, as Cesar(collusion=k) does.")
    ] = False,
    alpha: Annotated[float, typer.Option(help="Fraction that each node selects (α).")] = 0.3422,
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
    with _bar() as progress:
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
    from cesar.peer.keyfiles import CA_CERTIFICATE, read_public  # noqa: PLC0415
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


def plan_topology_command(
    nodes: Annotated[int, typer.Option(min=2, help="Number of nodes.")],
    degree: Annotated[int, typer.Option(min=1, help="Neighbours of every node.")],
    collusion: Annotated[int, typer.Option(min=1, help="Colluders that s masks are to stop (k).")] = 2,
    masks: Annotated[int | None, typer.Option(min=1, help="s; default k, the least possible.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the edge list here.")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Make a regular connected graph on which s = k masks stop k colluders, and say what that costs in mixing."""
    with _bar() as progress:
        plan = planning.plan_topology(
            lambda draw: graphs.regular(nodes, degree, draw),
            collusion,
            masks=masks,
            seed=seed,
            progress=lambda done, total: progress("attempts", done, total),
        )
    if out is not None:
        head = (
            f"# {nodes} nodes, degree {degree}; masking_requirement = {plan.masks} stops {collusion} colluders\n"
            f"# cesar plan topology --nodes {nodes} --degree {degree} --collusion {collusion} --masks {plan.masks} --seed {seed}\n"
        )
        out.write_text(head + "".join(f"{i} {j}\n" for i, j in sorted(plan.graph.edges)), encoding="utf-8")
    fields = {
        "nodes": nodes,
        "degree": degree,
        "collusion": collusion,
        "masks": plan.masks,
        "swaps": plan.swaps,
        "masks_of_the_random_graph": plan.masks_before,
        "spectral_gap_of_the_random_graph": plan.gap_before,
        "spectral_gap": plan.gap,
        "file": None if out is None else str(out),
    }
    if as_json:
        typer.echo(json.dumps(fields | {"edges": sorted(map(sorted, plan.graph.edges))}))
        return
    table = Table(title="A graph for few masks", show_header=False)
    for name, value in fields.items():
        table.add_row(name.replace("_", " "), f"{value:.4f}" if isinstance(value, float) else str(value))
    console.print(table)


def plan_collusion_command(
    nodes: Annotated[int, typer.Option(min=4, help="Number of nodes.")] = 100,
    degree: Annotated[int, typer.Option(min=3, help="Neighbours of every node.")] = 25,
    adversaries: Annotated[
        list[int] | None, typer.Option(help="Colluders; may be given several times. Default 5, 10, 15, 20.")
    ] = None,
    graph_count: Annotated[int, typer.Option("--graphs", min=1, help="Random graphs.")] = 250_000,
    share: Annotated[float, typer.Option(help="Fraction to be shared (β), which fixes α at each s.")] = 0.30,
    out: Annotated[Path | None, typer.Option(help="Write a page with the plot here.")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """The risk that colluders read somebody on a random regular graph, for every s (the paper's Fig. 5b)."""
    wanted = adversaries or [5, 10, 15, 20]
    with _bar() as progress:
        risks = plan_collusion(
            nodes,
            degree,
            wanted,
            graphs=graph_count,
            share=share,
            seed=seed,
            progress=lambda done, total: progress("graphs", done, total),
        )
    title = f"{graph_count:,} random {degree}-regular graphs of {nodes} nodes, seed {seed}, share {share:g}"
    if out is not None:
        from cesar import __version__  # noqa: PLC0415

        report.write_risks(risks, out, title, __version__)
    if as_json:
        rows = [_risk_fields(risk) for risk in risks]
        settings = {"nodes": nodes, "degree": degree, "graphs": graph_count, "share": share, "seed": seed}
        typer.echo(json.dumps(settings | {"risks": rows, "report": None if out is None else str(out)}))
        return
    for count in sorted(set(wanted)):
        console.print(_risk_table(risks, count, title))
    console.print(
        "paper: an adversary has s adversarial neighbours; at least: one sum or the difference of two is a single value\n"
        "for some selection; at most: not ruled out by the proof; random position: all sums, exact; ( ): 95 % interval",
        style="dim",
    )
    if out is not None:
        console.print(f"report: [bold]{out}[/]")


def _risk_fields(risk: Risk) -> dict[str, object]:
    fields: dict[str, object] = {"adversaries": risk.adversaries, "masks": risk.masks, "alpha": risk.alpha}
    for name in ("paper", "at_least", "at_most", "at_random"):
        estimate: Estimate = getattr(risk, name)
        fields[name] = asdict(estimate) | {"value": estimate.value, "interval": estimate.interval}
    return fields


def _risk_table(risks: list[Risk], count: int, title: str) -> Table:
    table = Table(title=f"{count} adversaries; {title}")
    for heading in ("s", "paper", "at least", "at most", "α", "random position"):
        table.add_column(heading, justify="right")
    for risk in risks:
        if risk.adversaries == count:
            figures = [risk.paper, risk.at_least, risk.at_most, risk.at_random]
            cells = [
                f"{percent(e.value)} ({percent(e.interval[0])}–{percent(e.interval[1])})" for e in figures
            ]
            table.add_row(str(risk.masks), *cells[:3], f"{risk.alpha:.3f}", cells[3])
    return table

"""`cesar audit`: what coalitions can compute, of a planned network, a recorded run or a network of peers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cesar import graphs
from cesar.audit import exposure, report, sources
from cesar.audit.lasting import GroupSubject, audit_groups
from cesar.audit.report import percent
from cesar.audit.sources import Question, Selection, Subject, of_folder, planned
from cesar.cli.options import Alpha, AsJson, GroupSize, Nodes, SampleSeed
from cesar.cli.output import console, counting
from cesar.errors import ConfigError
from cesar.topology import check_degrees

Source = Annotated[
    Path | None, typer.Argument(help="A recorded run (cesar run) or the folder of a peers' network.")
]
EdgeList = Annotated[Path | None, typer.Option(help="Edge list instead of a topology: 'i j' per line.")]
Strict = Annotated[bool, typer.Option("--strict", help="Take s from the graph, as Cesar(collusion=k) does.")]
Planned = Annotated[
    bool,
    typer.Option(
        "--plan/--no-plan",
        help="Groups that stop k colluders, as Cesar(collusion=k) draws them, or the first draw.",
    ),
]
Since = Annotated[
    Path | None,
    typer.Option(help="An older roster of the network: old and new groups are taken together."),
]
Coalitions = Annotated[
    int, typer.Option(min=1, help="Try all coalitions of a size up to so many, else a sample.")
]
Statement = Annotated[
    Path | None, typer.Option("--report", help="Write a page for a data-protection officer.")
]
MasksOrNone = Annotated[int | None, typer.Option(min=1, help="Masks that a value must carry (s); default 1.")]


def command(
    source: Source = None,
    topology: Annotated[str, typer.Option(help=f"Who averages with whom: {graphs.SHORT}.")] = "regular:6",
    nodes: Nodes = 48,
    graph: EdgeList = None,
    masks: MasksOrNone = None,
    strict: Strict = False,
    group_size: GroupSize = None,
    planned_groups: Planned = True,
    since: Since = None,
    alpha: Alpha = 0.3422,
    selection: Annotated[Selection, typer.Option(help=Selection.__doc__)] = Selection.RANDOM,
    collusion: Annotated[
        int,
        typer.Option(
            min=1, help="Largest number of nodes, or owners of a network, that pool what they know (k)."
        ),
    ] = 2,
    patterns: Annotated[int, typer.Option(min=1, help="Parameter positions to look at.")] = 1000,
    coalitions: Coalitions = exposure.LIMIT,
    method: Annotated[str | None, typer.Option(help="Which method of a recorded run.")] = None,
    round_: Annotated[int, typer.Option("--round", min=0, help="Which round of a recorded run.")] = 0,
    seed: SampleSeed = 0,
    out: Statement = None,
    as_json: AsJson = False,
) -> None:
    """What every coalition of nodes can compute exactly, at which fraction of positions, and how.

    With fixed groups it is decided for all rounds together; else for one round.
    """
    question = Question(masks=masks, strict=strict, collusion=collusion, patterns=patterns)
    if source is not None:
        _refuse_described(group_size)
        found = of_folder(source, question, method, round_, since)
    elif since is not None:
        raise ConfigError("--since takes an older roster of a peers' network; name its folder")
    elif group_size is not None:
        found = sources.planned_groups(
            question, graph or topology, nodes, group_size, seed=seed, plan_them=planned_groups
        )
    else:
        found = planned(question, graph or topology, nodes, selection, alpha, seed)
    if isinstance(found, GroupSubject):
        _audit_groups(found, collusion, out, as_json=as_json)
        return
    subject, exchange = found
    check_degrees(subject.graph, exchange.masks)
    with counting() as progress:
        outcome = exposure.audit(
            exchange, collusion, owners=subject.owners, limit=coalitions, seed=seed, progress=progress
        )
    if out is not None:
        report.write_statement(outcome, subject, out)
    if as_json:
        typer.echo(json.dumps(report.as_dict(outcome, subject) | ({"report": str(out)} if out else {})))
        return
    _show(outcome, subject)
    if out is not None:
        console.print(f"report: [bold]{out}[/]")


def _refuse_described(group_size: int | None) -> None:
    if group_size is not None:
        raise ConfigError("a folder says itself which groups it has; leave --group-size out")


def _audit_groups(subject: GroupSubject, collusion: int, out: Path | None, *, as_json: bool) -> None:
    """Fixed groups, for all rounds."""
    with counting() as progress:
        found = audit_groups(subject, collusion, progress)
    if out is not None:
        report.write_group_statement(found, subject, out)
    if as_json:
        fields = report.groups_as_dict(found, subject) | ({"report": str(out)} if out else {})
        typer.echo(json.dumps(fields))
        return
    good, headline, detail = report.group_verdict(found, subject)
    console.print(f"\n[bold {'green' if good else 'red'}]{headline}[/] {detail}\n", soft_wrap=True)
    table = Table(title=f"{subject.source}: {found.nodes} nodes, groups of {subject.group_size} or more")
    for heading in ("coalition of", "considered", "read somebody"):
        table.add_column(heading, justify="right")
    for tested in found.sizes:
        table.add_row(str(tested.size), f"{tested.possible:,}", f"{tested.exposing:,}")
    console.print(table)
    lines = [*(f"· {finding.sentence}" for finding in found.findings[:10]), *subject.words()]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    for note in subject.notes:
        console.print(note, style="dim", soft_wrap=True)
    if out is not None:
        console.print(f"report: [bold]{out}[/]")


def _show(found: exposure.Audit, subject: Subject) -> None:
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
            f"· {report.sentence(finding)} (somebody: {percent(finding.fraction)})",
            soft_wrap=True,
            highlight=False,
        )
    for note in subject.notes:
        console.print(note, style="dim", soft_wrap=True)

"""`cesar audit`: what coalitions can compute, of a planned network, a recorded run or a network of peers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cesar import graphs
from cesar.audit import exposure, report
from cesar.audit.report import percent
from cesar.audit.sources import Question, Selection, Subject, of_folder, planned
from cesar.cli.options import Alpha, AsJson, Nodes, SampleSeed
from cesar.cli.output import console, counting
from cesar.topology import check_degrees


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
    selection: Annotated[Selection, typer.Option(help=Selection.__doc__)] = Selection.RANDOM,
    collusion: Annotated[
        int, typer.Option(min=1, help="Largest number of nodes that pool what they know (k).")
    ] = 2,
    patterns: Annotated[int, typer.Option(min=1, help="Parameter positions to look at.")] = 1000,
    coalitions: Annotated[
        int, typer.Option(min=1, help="Try all coalitions of a size up to so many, else a sample.")
    ] = exposure.LIMIT,
    method: Annotated[str | None, typer.Option(help="Which method of a recorded run.")] = None,
    round_: Annotated[int, typer.Option("--round", min=0, help="Which round of a recorded run.")] = 0,
    seed: SampleSeed = 0,
    out: Annotated[
        Path | None, typer.Option("--report", help="Write a page for a data-protection officer.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What every coalition of nodes can compute exactly, at which fraction of positions, and how."""
    question = Question(masks=masks, strict=strict, collusion=collusion, patterns=patterns)
    subject, exchange = (
        planned(question, graph or topology, nodes, selection, alpha, seed)
        if source is None
        else of_folder(source, question, method, round_)
    )
    check_degrees(subject.graph, exchange.masks)
    with counting() as progress:
        found = exposure.audit(exchange, collusion, limit=coalitions, seed=seed, progress=progress)
    if out is not None:
        report.write_statement(found, subject, out)
    if as_json:
        typer.echo(json.dumps(report.as_dict(found, subject) | ({"report": str(out)} if out else {})))
        return
    _show(found, subject)
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

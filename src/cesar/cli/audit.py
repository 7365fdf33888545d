"""`cesar audit`: what coalitions can compute, of a planned network, a recorded run or a network of peers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cesar.audit import exposure, sources, statement
from cesar.audit.cells import FOR_ALL_ROUNDS, CellSubject, audit_cells
from cesar.audit.sources import Question, Selection, Subject, of_folder, planned
from cesar.audit.statement import percent
from cesar.base.errors import ConfigError
from cesar.cli.options import Alpha, AsJson, CellSize, Nodes, SampleSeed
from cesar.cli.output import console, counting
from cesar.graph import named as graphs
from cesar.graph.neighbourhood import check_degrees

Source = Annotated[
    Path | None, typer.Argument(help="A recorded run (cesar run) or the folder of a peers' network.")
]
EdgeList = Annotated[Path | None, typer.Option(help="Edge list instead of a topology: 'i j' per line.")]
Strict = Annotated[bool, typer.Option("--strict", help="Take s from the graph, as Cesar(collusion=k) does.")]
Coalitions = Annotated[
    int,
    typer.Option(min=1, help="Try all coalitions of a size if there are at most this number, else a sample."),
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
    cells: CellSize = None,
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
    """Say who is only ever seen added to whom, and what coalitions of nodes can compute.

    With cells the answer holds for all rounds together. With other methods every figure holds for one round: over several rounds
    averaging couples the sums, and single values can follow from them; the audit does not look at that.
    """
    question = Question(masks=masks, strict=strict, collusion=collusion, patterns=patterns)
    if source is not None:
        if cells is not None:
            raise ConfigError("a folder says itself which cells it has; leave --cells out")
        found = of_folder(source, question, method, round_)
    elif cells is not None:
        found = sources.planned_cells(question, nodes, cells, seed)
    else:
        found = planned(question, graph or topology, nodes, selection, alpha, seed)
    if isinstance(found, CellSubject):
        _audit_cells(found, collusion, out, as_json=as_json)
        return
    subject, exchange = found
    check_degrees(subject.graph, exchange.masks)
    with counting() as progress:
        outcome = exposure.audit(
            exchange, collusion, owners=subject.owners, limit=coalitions, seed=seed, progress=progress
        )
    if out is not None:
        statement.write_statement(outcome, subject, out)
    if as_json:
        typer.echo(json.dumps(statement.as_dict(outcome, subject) | ({"report": str(out)} if out else {})))
        return
    _show(outcome, subject)
    if out is not None:
        console.print(f"report: [bold]{out}[/]")


def _audit_cells(subject: CellSubject, collusion: int, out: Path | None, *, as_json: bool) -> None:
    """Cells, for all rounds."""
    found = audit_cells(subject, collusion)
    if out is not None:
        statement.write_cell_statement(found, subject, out)
    if as_json:
        fields = statement.cells_as_dict(found, subject) | ({"report": str(out)} if out else {})
        typer.echo(json.dumps(fields))
        return
    _show_verdict(*statement.cell_verdict(found, subject), FOR_ALL_ROUNDS)
    for line in (*(f"· {finding.sentence}" for finding in found.findings), *subject.promises()):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    for note in subject.notes:
        console.print(note, style="dim", soft_wrap=True)
    if out is not None:
        console.print(f"report: [bold]{out}[/]")


def _show_verdict(good: bool, headline: str, detail: str, rounds: str) -> None:
    """What is given away, and in how many rounds."""
    console.print(f"\n[bold {'green' if good else 'red'}]{headline}[/] {detail}", soft_wrap=True)
    console.print(f"{rounds}\n", soft_wrap=True)


def _show(found: exposure.Audit, subject: Subject) -> None:
    _show_verdict(*statement.verdict(found, subject), f"[bold yellow]{statement.OVER_ROUNDS}[/]")
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
            f"· {statement.sentence(finding)} (somebody: {percent(finding.fraction)})",
            soft_wrap=True,
            highlight=False,
        )
    for note in subject.notes:
        console.print(note, style="dim", soft_wrap=True)

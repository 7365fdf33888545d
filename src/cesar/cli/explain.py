"""`cesar explain`: one secure round that a person can follow."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from rich.table import Table

from cesar.cli.options import AsJson
from cesar.cli.output import console
from cesar.experiment import explain as shown
from cesar.sim import RoundResult


def command(as_json: AsJson = False) -> None:
    """One secure round of eight nodes: what each learned, what it saw, and what it cost."""
    result, learned, glimpse = shown.secure_round()
    compared = [(name, outcome.total_bytes, outcome.shared) for name, outcome in shown.compare()]
    crashed, _, _ = shown.secure_round(crashes={3: "after_coordination"})
    if as_json:
        rows = [{"method": name, "bytes": sent, "shared": shared} for name, sent, shared in compared]
        fields = {"learned": [asdict(row) for row in learned], "glimpse": asdict(glimpse), "methods": rows}
        typer.echo(json.dumps(fields))
        return
    console.print(
        f"\n[bold]{shown.NODES} nodes average their models of {shown.SIZE:,} parameters with CESAR; each has "
        f"{shown.DEGREE} neighbours.[/]\n"
        "Each divides its neighbours into groups, always the same ones. In this round it gets part of the models\n"
        f"of each group ({result.shared:.1%} of all values), hidden by masks that cancel in the sum of the group.\n",
        soft_wrap=True,
    )
    _show_learned(learned)
    _show_glimpse(glimpse)
    _show_crash(crashed, result)
    _show_costs(compared)


def _show_learned(learned: list[shown.Learned]) -> None:
    table = Table(title="What each node learned, and what it sent")
    table.add_column("node", justify="right", no_wrap=True)
    table.add_column("hears sums of", no_wrap=True)
    for heading in ("averaged", "models", "error", "coord. B", "values B", "other"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in learned:
        sent = dict(row.sent)
        table.add_row(
            str(row.node),
            " ".join(f"{{{', '.join(map(str, group))}}}" for group in row.groups),
            f"{row.averaged:,}",
            f"{row.mean_group:.2f}",
            f"{row.largest_error:.0e}",
            f"{sent.pop('coordination'):,}",
            f"{sent.pop('values'):,}",
            f"{sum(sent.values()):,}",
        )
    console.print(table)
    console.print(
        "averaged: parameters that are now a mean, of so many models on average\n"
        "error: the largest difference to the same mean computed in the clear; B: bytes sent\n",
        style="dim",
    )


def _show_glimpse(glimpse: shown.Glimpse) -> None:
    table = Table(title=f"What node {glimpse.receiver} saw of the first parameters of its first group")
    for member in glimpse.group:
        table.add_column(f"node {member} has", justify="right", no_wrap=True)
        table.add_column("and sent", justify="right", no_wrap=True)
    table.add_column("the sum", justify="right", no_wrap=True)
    for k, total in enumerate(glimpse.sums):
        pairs = zip(glimpse.values, glimpse.words, strict=True)
        cells = [cell for values, words in pairs for cell in (f"{values[k]:+.4f}", f"0x{words[k]:08x}")]
        table.add_row(*cells, f"{total:+.4f}")
    console.print(table)
    console.print("What a node has is never sent; the words that it sends look random.", style="dim")


def _show_crash(crashed: RoundResult, whole: RoundResult) -> None:
    graph, models = shown.network()
    hit = sorted(graph[3])
    before = (whole.vectors[hit] != models[hit]).mean()
    after = (crashed.vectors[hit] != models[hit]).mean()
    console.print(
        f"\nIf node 3 crashes after the coordination, its neighbours {', '.join(map(str, hit))} lose only\n"
        f"the sums that it is part of: they average {after:.1%} of their parameters instead of {before:.1%}.\n"
    )


def _show_costs(compared: list[tuple[str, int, float]]) -> None:
    table = Table(title="What a round of all nodes costs")
    table.add_column("method")
    for heading in ("shared", "bytes", "of full"):
        table.add_column(heading, justify="right")
    for name, sent, shared in compared:
        table.add_row(name, f"{shared:.1%}", f"{sent:,}", f"{sent / compared[0][1]:.2f}")
    console.print(table)

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
        "Each selects parameters at random and shares those that another neighbour of the receiver\n"
        f"selected too ({result.shared:.1%} of all). Pairwise masks hide every value and cancel in the sum.\n",
        soft_wrap=True,
    )
    _show_learned(learned)
    _show_glimpse(glimpse)
    _show_crash(crashed, result)
    _show_costs(compared)


def _show_learned(learned: list[shown.Learned]) -> None:
    table = Table(title="What each node learned, and what it sent")
    table.add_column("node", justify="right", no_wrap=True)
    table.add_column("neighbours", no_wrap=True)
    for heading in ("averaged", "models", "error", "coord. B", "values B", "other"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in learned:
        sent = dict(row.sent)
        table.add_row(
            str(row.node),
            " ".join(map(str, row.neighbours)),
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
    table = Table(title=f"What node {glimpse.receiver} saw of node {glimpse.sender}'s model")
    table.add_column("true value (never sent)", justify="right")
    table.add_column("masked word on the wire", justify="right")
    for value, word in zip(glimpse.values, glimpse.words, strict=True):
        table.add_row(f"{value:+.6f}", f"0x{word:08x}")
    console.print(table)


def _show_crash(crashed: RoundResult, whole: RoundResult) -> None:
    graph, models = shown.network()
    hit = sorted(graph[3])
    before = (whole.vectors[hit] != models[hit]).mean()
    after = (crashed.vectors[hit] != models[hit]).mean()
    console.print(
        f"\nIf node 3 crashes after the coordination, its neighbours {', '.join(map(str, hit))} lose only\n"
        f"what it had selected: they average {after:.1%} of their parameters instead of {before:.1%}.\n"
    )


def _show_costs(compared: list[tuple[str, int, float]]) -> None:
    table = Table(title="What a round of all nodes costs")
    table.add_column("method")
    for heading in ("shared", "bytes", "of full"):
        table.add_column(heading, justify="right")
    for name, sent, shared in compared:
        table.add_row(name, f"{shared:.1%}", f"{sent:,}", f"{sent / compared[0][1]:.2f}")
    console.print(table)

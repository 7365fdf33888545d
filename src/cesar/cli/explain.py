"""`cesar explain`: one secure round that a person can follow."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from rich.table import Table

from cesar.cli.options import AsJson
from cesar.cli.output import console
from cesar.sim import RoundResult
from cesar.sim import explain as shown


def command(as_json: AsJson = False) -> None:
    """One secure round of eight nodes: what each learned, what it saw, and what it cost."""
    _, learned, glimpse = shown.secure_round()
    assert glimpse is not None, "nobody has crashed"
    compared = [(name, outcome.total_bytes, outcome.shared) for name, outcome in shown.compare()]
    crashed, _, _ = shown.secure_round(crashes={3: "before_announce"})
    if as_json:
        rows = [{"method": name, "bytes": sent, "shared": shared} for name, sent, shared in compared]
        fields = {"learned": [asdict(row) for row in learned], "glimpse": asdict(glimpse), "methods": rows}
        typer.echo(json.dumps(fields))
        return
    console.print(
        f"\n[bold]{shown.NODES} nodes train a model of {shown.SIZE:,} parameters in two cells of {shown.MEMBERS}.[/]\n"
        "The members of a cell hold one common model. Each hands in what it has trained since the last round, here "
        f"{shown.SHARE:.0%} of it, under masks that cancel in the sum over all members. Then cells average their models.\n",
    )
    _show_learned(learned)
    _show_glimpse(glimpse)
    _show_crash(crashed)
    _show_costs(compared)


def _show_learned(learned: list[shown.Learned]) -> None:
    table = Table(title="What each node learned, and what it sent")
    table.add_column("node", justify="right", no_wrap=True)
    table.add_column("its cell", no_wrap=True)
    for heading in ("handed in", "error", "coord. B", "values B", "other"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in learned:
        sent = dict(row.sent)
        table.add_row(
            str(row.node),
            ", ".join(map(str, row.cell)),
            f"{row.handed_in:,}",
            f"{row.largest_error:.0e}",
            f"{sent.pop('coordination'):,}",
            f"{sent.pop('values'):,}",
            f"{sum(sent.values()):,}",
        )
    console.print(table)
    console.print(
        "handed in: numbers that are now in the sum of the cell, once and for all\n"
        "error: the largest difference to the same round computed in the clear; B: bytes sent\n",
        style="dim",
    )


def _show_glimpse(glimpse: shown.Glimpse) -> None:
    table = Table(
        title=f"What node {glimpse.keeper} saw of the first parameters, which it adds up for its cell"
    )
    for member in glimpse.members:
        table.add_column(f"{member} has", justify="right", no_wrap=True)
        table.add_column("and sent", justify="right", no_wrap=True)
    table.add_column(f"{glimpse.keeper} has", justify="right", no_wrap=True)
    table.add_column("the sum", justify="right", no_wrap=True)
    for k, (own, total) in enumerate(zip(glimpse.own, glimpse.sums, strict=True)):
        pairs = zip(glimpse.values, glimpse.words, strict=True)
        cells = [cell for values, words in pairs for cell in (f"{values[k]:+.3f}", f"{words[k]:08x}")]
        table.add_row(*cells, f"{own:+.3f}", f"{total:+.3f}")
    console.print(table)
    console.print(
        "What a node has is never sent; the words that it sends look random. The sum goes to the other cell.",
        style="dim",
    )


def _show_crash(crashed: RoundResult) -> None:
    _, models = shown.network()
    kept = [node for node in range(shown.NODES) if (crashed.vectors[node] == models[node]).all()]
    console.print(
        f"\nIf node 3 is away, its cell ({', '.join(map(str, kept))}) adds nothing up in this round. Its nodes keep what they have trained "
        "for the next sum, and go on listening to the other cell. The other cell adds up as before.\n"
    )


def _show_costs(compared: list[tuple[str, int, float]]) -> None:
    table = Table(title="What a round of all nodes costs")
    table.add_column("method")
    for heading in ("shared", "bytes", "of full"):
        table.add_column(heading, justify="right")
    for name, sent, shared in compared:
        table.add_row(name, f"{shared:.1%}", f"{sent:,}", f"{sent / compared[0][1]:.2f}")
    console.print(table)

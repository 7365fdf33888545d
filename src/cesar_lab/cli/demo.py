"""`cesar demo`: the experiment that needs no download."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cesar.cli.options import AsJson, Workers
from cesar.cli.output import console
from cesar_lab.cli import run

if TYPE_CHECKING:
    from cesar_lab.show.results import MethodRow

PLAIN, CELLS = "plain averaging, everything", "cells of 4, largest 17 %"
NEXT = """\
What to try next:
  cesar explain                                        one secure round, step by step: what each node learned, saw and sent
  cesar network init --peers 8 --cells 4 --out net     real peers on this machine: keys, certificates, a signed list
  cesar network up net --dataset digits                … and they train over encrypted connections
  docs/tutorial.md                                     your own PyTorch script, in 15 minutes"""


def insight(rows: list[MethodRow]) -> str:
    """What the comparison shows, in two sentences, from its own figures."""
    found = {row.title: row for row in rows}
    cells, plain = found[CELLS], found[PLAIN]
    return (
        f"Plain averaging shows every neighbour the whole model: {100 * plain.value:.1f} % are right, and a node sends {plain.bytes / 1e6:.2f} MB. "
        f"In cells nobody sees what a single node has trained: {100 * cells.value:.1f} % are right, with "
        f"{100 * cells.bytes / plain.bytes:.0f} % of the bytes."
    )


def command(
    out: Annotated[Path, typer.Option(help="Directory for the results.")] = Path("runs/demo"),
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Train 16 nodes on handwritten digits, averaging in five ways; needs no download."""
    with resources.as_file(resources.files("cesar_lab.run") / "demo.toml") as file:
        run.command(file, out=out, workers=workers, as_json=as_json)
    if not as_json:
        from cesar_lab.show.results import summarise  # noqa: PLC0415

        console.print(insight(summarise(out)), soft_wrap=True)
        console.print(NEXT, highlight=False, soft_wrap=True)

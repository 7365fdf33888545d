"""`cesar report`: experiments that have run, as a page, as tables in Markdown, and as a table on the screen."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from cesar.cli.output import console, size

if TYPE_CHECKING:
    from cesar.experiment.results import MethodRow


def command(
    directories: Annotated[list[Path], typer.Argument(help="Experiment directories.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    markdown: Annotated[Path | None, typer.Option(help="Write tables in Markdown instead.")] = None,
    note: Annotated[
        list[str] | None, typer.Option(help="NAME=text beside the tables of that experiment; repeatable.")
    ] = None,
    bench: Annotated[
        list[Path] | None,
        typer.Option(help="What `cesar bench … --json` printed, for the tables; repeatable."),
    ] = None,
) -> None:
    """One self-contained HTML page with curves, costs, topology and configuration."""
    from cesar.experiment.report import write_report  # noqa: PLC0415
    from cesar.experiment.tables import write_tables  # noqa: PLC0415

    if markdown is not None:
        notes = dict(text.partition("=")[::2] for text in note or ())
        page = write_tables(directories, markdown, notes=notes, benches=bench or ())
        console.print(f"tables: [bold]{page}[/]")
        return
    console.print(f"report: [bold]{write_report(directories, out)}[/]")


def show_results(folders: list[Path], *, as_json: bool) -> None:
    """The comparison of all methods, and the path of the report."""
    from cesar.experiment.report import write_report  # noqa: PLC0415
    from cesar.experiment.results import summarise  # noqa: PLC0415

    rows = [row for folder in folders for row in summarise(folder)]
    page = write_report(folders, folders[0] / "report.html")
    if as_json:
        typer.echo(json.dumps({"report": str(page), "methods": [row.as_dict() for row in rows]}))
        return
    console.print(_table(rows))
    console.print(f"report: [bold]{page}[/]")


def _table(rows: list[MethodRow]) -> Table:
    """Narrow enough for 80 columns, if titles may take several lines."""
    from cesar.experiment.cells import metric_cells  # noqa: PLC0415

    table = Table(
        title="Mean over nodes and seeds, ± standard error over seeds",
        caption="shared: of the parameters; spread: standard deviation between nodes; sent: by a node in all rounds; "
        "seconds of training and protocol",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    heads, metrics = metric_cells(rows)
    table.add_column("method", min_width=10)
    for heading in ("shared", *map(_folded, heads), "sent", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row, values in zip(rows, metrics, strict=True):
        seconds = row.seconds_training + row.seconds_protocol
        table.add_row(row.title, f"{row.shared:.1%}", *values, size(row.bytes), f"{seconds:.1f}")
    return table


def _folded(heading: str) -> str:
    """A heading over several lines, for a narrow column of figures."""
    return re.sub(r" (?=between|nodes|of all|models|settling|\()", "\n", heading)

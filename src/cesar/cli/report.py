"""`cesar report`: experiments that have run, as a page, as tables in Markdown, and as a table on the screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
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
    percent = rows[0].metric == "accuracy"
    scale, digits, unit = (100, 2, " %") if percent else (1, 4, "")
    table = Table(
        title="Mean over nodes and seeds, ± standard error over seeds",
        caption="shared: of the parameters; sent: by a node in all rounds; seconds of training and protocol",
    )
    table.add_column("method", no_wrap=True)
    for heading in ("shared", f"{rows[0].metric}{unit}", "sent", "training", "protocol"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        error = "" if row.error is None else f" ± {scale * row.error:.{digits}f}"
        table.add_row(
            row.title,
            f"{row.shared:.1%}",
            f"{scale * row.value:.{digits}f}{error}",
            size(row.bytes),
            f"{row.seconds_training:.1f}",
            f"{row.seconds_protocol:.1f}",
        )
    return table

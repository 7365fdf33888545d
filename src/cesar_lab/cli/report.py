"""`cesar report`: experiments that have run, as a page, as tables in Markdown, and as a table on the screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cesar.cli.output import console


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
    from cesar_lab.show.report import write_report, write_tables  # noqa: PLC0415

    if markdown is not None:
        notes = dict(text.partition("=")[::2] for text in note or ())
        page = write_tables(directories, markdown, notes=notes, benches=bench or ())
        console.print(f"tables: [bold]{page}[/]")
        return
    console.print(f"report: [bold]{write_report(directories, out)}[/]")


def show_results(folders: list[Path], *, as_json: bool) -> None:
    """The comparison of all methods, and the path of the report."""
    from cesar_lab.show.report import screen, write_report  # noqa: PLC0415
    from cesar_lab.show.results import summarise  # noqa: PLC0415

    rows = [row for folder in folders for row in summarise(folder)]
    page = write_report(folders, folders[0] / "report.html")
    if as_json:
        typer.echo(json.dumps({"report": str(page), "methods": [row.as_dict() for row in rows]}))
        return
    console.print(screen(rows).terminal())
    console.print(f"report: [bold]{page}[/]")

"""`cesar reproduce`: every table and figure of the paper by one command each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cesar.cli.options import DataDir, Workers
from cesar.cli.output import RunBars, console, run_bars
from cesar.reproduce.catalogue import CATALOGUE
from cesar.reproduce.reproduction import Reproduction
from cesar.reproduce.tables import Scale

app = typer.Typer(no_args_is_help=True, help="Every table and figure of the paper, beside ours.")


ScaleOption = Annotated[Scale, typer.Option(help=Scale.__doc__)]
SeedsOption = Annotated[int | None, typer.Option(min=1, help="How many seeds; the scale has a default.")]
OutOption = Annotated[
    Path | None, typer.Option(help="Directory for the results; default runs/reproduce-SCALE.")
]


@app.command("list")
def list_command() -> None:
    """What there is, what it needs and how long it takes."""
    table = Table(caption="rough times on two idle cores")
    for heading in ("name", "paper", "what", "needs", "paper needs", *Scale):
        table.add_column(heading)
    for of in CATALOGUE.values():
        needs = (of.needs[scale] for scale in (Scale.SMALL, Scale.PAPER))
        table.add_row(of.name, of.place, of.what, *needs, *(of.takes[scale] for scale in Scale))
    console.print(table)


def _command(several: list[Reproduction]) -> Callable[..., None]:
    def command(
        scale: ScaleOption = Scale.SMOKE,
        seeds: SeedsOption = None,
        out: OutOption = None,
        data_dir: DataDir = None,
        workers: Workers = None,
    ) -> None:
        _reproduce(several, scale, seeds, out, data_dir, workers)

    return command


for _of in CATALOGUE.values():
    app.command(_of.name, help=_of.help)(_command([_of]))
app.command("all", help="All of them, one after the other.")(_command(list(CATALOGUE.values())))


def _reproduce(
    several: list[Reproduction],
    scale: Scale,
    seeds: int | None,
    out: Path | None,
    data_dir: Path | None,
    workers: int | None,
) -> None:
    from cesar.reproduce.running import reproduce  # noqa: PLC0415  (torch takes seconds to import)

    root = out or Path("runs") / f"reproduce-{scale}"
    with run_bars() as progress:
        for of in several:
            task = progress.add_task(of.name, total=1, figures="", sent="")

            def say(text: str, task: object = task) -> None:
                progress.update(task, figures=text)  # type: ignore[arg-type]

            reproduce(
                of,
                scale,
                root,
                seeds=seeds,
                data_dir=data_dir,
                workers=workers,
                observers=[RunBars(progress)],
                progress=say,
            )
            progress.update(task, advance=1, figures="")
    report_command([root])


@app.command("report")
def report_command(
    directories: Annotated[list[Path], typer.Argument(help="Directories that cesar reproduce has made.")],
    out: Annotated[Path | None, typer.Option(help="The page; default report.html in the first.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write docs/results.md or the like as well.")] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Copy what it is written from to here, without models and recordings.")
    ] = None,
) -> None:
    """One page with every plot beside the paper's numbers; with --markdown a document with the claims."""
    from cesar.reproduce import document  # noqa: PLC0415
    from cesar.reproduce.outcomes import read_all, read_shorter  # noqa: PLC0415

    found = read_all(directories)
    page = document.write_report(found, out or directories[0] / "report.html")
    console.print(f"report: [bold]{page}[/]")
    if markdown is not None:
        console.print(
            f"document: [bold]{document.write_document(found, read_shorter(directories), markdown)}[/]"
        )
    if keep is not None:
        console.print(f"kept: {document.keep(directories, keep)} files in [bold]{keep}[/]")

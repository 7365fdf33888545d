"""`cesar reproduce`: every table and figure of the paper by one command each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from cesar.cli.options import DataDir, Workers
from cesar.cli.output import console
from cesar_lab.cli.bars import RunBars, run_bars
from cesar_lab.paper.catalogue import CATALOGUE, Exhibit, Scale
from cesar_lab.show.table import Table

app = typer.Typer(no_args_is_help=True, help="Every table and figure of the paper, beside ours.")


ScaleOption = Annotated[Scale, typer.Option(help=Scale.__doc__)]
SeedsOption = Annotated[int | None, typer.Option(min=1, help="How many seeds; the scale has a default.")]
OutOption = Annotated[
    Path | None, typer.Option(help="Directory for the results; default runs/reproduce-SCALE.")
]


@app.command("list")
def list_command() -> None:
    """List what there is, what it needs and how long it takes."""
    table = Table(
        heads=("name", "paper", "what", "needs", "paper needs", *Scale),
        rows=tuple(
            (
                of.name,
                of.place,
                of.what,
                *(of.needs[scale] for scale in (Scale.SMALL, Scale.PAPER)),
                *of.takes.values(),
            )
            for of in CATALOGUE.values()
        ),
        caption="rough times on two idle cores",
        names=5,
    )
    console.print(table.terminal())


def _command(several: list[Exhibit]) -> Callable[..., None]:
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
    several: list[Exhibit],
    scale: Scale,
    seeds: int | None,
    out: Path | None,
    data_dir: Path | None,
    workers: int | None,
) -> None:
    from cesar_lab.paper.running import reproduce  # noqa: PLC0415  (torch takes seconds to import)

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
    from cesar_lab.paper import document  # noqa: PLC0415
    from cesar_lab.paper.outcome import read_all, read_shorter, read_timed  # noqa: PLC0415

    found, shorter, timed = read_all(directories), read_shorter(directories), read_timed(directories)
    page = document.write_report(found, shorter, out or directories[0] / "report.html", timed)
    console.print(f"report: [bold]{page}[/]")
    if markdown is not None:
        console.print(f"document: [bold]{document.write_document(found, shorter, markdown, timed)}[/]")
    if keep is not None:
        console.print(f"kept: {document.keep(directories, keep)} files in [bold]{keep}[/]")

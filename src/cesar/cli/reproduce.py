"""`cesar reproduce`: every table and figure of the paper by one command each."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cesar.cli.options import DataDir, Workers
from cesar.cli.output import RunBars, console, run_bars

HELP = {
    "approaches": "Table I: five approaches, measured.",
    "datasets-random": "Fig. 2: random subsampling over datasets.",
    "datasets-topk": "Fig. 3: TopK over datasets.",
    "settings": "Table III, Fig. 4: degrees and shares; accuracy, bytes, time.",
    "budget": "Fig. 5a: accuracy against bytes.",
    "collusion": "Fig. 5b: the risk of collusion.",
    "masking": "Fig. 6: s = 1, 2, 3.",
    "membership": "Fig. 7: membership inference on partial sums.",
    "dropouts": "Fig. 8: nodes that crash.",
    "nodes": "Appendix A: coordination in larger networks.",
    "degree": "Appendix B: coordination at higher degrees.",
    "ring": "Not in the paper: how wide a ring.",
    "subsampling": "Not in the paper: independent against coordinated subsampling.",
}
NAMES = tuple(HELP)
"""In the paper's order, then ours. Here, so that the command line need not load torch to know them."""

app = typer.Typer(no_args_is_help=True, help="Every table and figure of the paper, beside ours.")


class ScaleName(StrEnum):
    """How large."""

    SMOKE = "smoke"
    SMALL = "small"
    PAPER = "paper"


ScaleOption = Annotated[
    ScaleName, typer.Option(help="smoke: seconds, on digits; small: minutes, on real data; paper: days.")
]
SeedsOption = Annotated[int | None, typer.Option(min=1, help="How many seeds; the scale has a default.")]
OutOption = Annotated[
    Path | None, typer.Option(help="Directory for the results; default runs/reproduce-SCALE.")
]


@app.command("list")
def list_command() -> None:
    """What there is, what it needs and how long it takes."""
    from cesar.reproduce.catalogue import entry  # noqa: PLC0415  (torch takes seconds to import)

    table = Table(caption="rough times on two idle cores")
    for heading in ("name", "paper", "what", "small needs", "paper needs", "smoke", "small", "paper"):
        table.add_column(heading)
    for found in map(entry, NAMES):
        table.add_row(
            found.name,
            found.place,
            found.what,
            found.needs["small"],
            found.needs["paper"],
            *(found.takes[scale] for scale in ("smoke", "small", "paper")),
        )
    console.print(table)


def _command(names: list[str]) -> Callable[..., None]:
    def command(
        scale: ScaleOption = ScaleName.SMOKE,
        seeds: SeedsOption = None,
        out: OutOption = None,
        data_dir: DataDir = None,
        workers: Workers = None,
    ) -> None:
        _reproduce(names, scale, seeds, out, data_dir, workers)

    return command


for _name, _help in HELP.items():
    app.command(_name, help=_help)(_command([_name]))
app.command("all", help="All of them, one after the other.")(_command(list(NAMES)))


def _reproduce(
    names: list[str],
    scale: ScaleName,
    seeds: int | None,
    out: Path | None,
    data_dir: Path | None,
    workers: int | None,
) -> None:
    from cesar.reproduce.catalogue import check_scale, entry  # noqa: PLC0415
    from cesar.reproduce.running import reproduce  # noqa: PLC0415

    root = out or Path("runs") / f"reproduce-{scale}"
    with run_bars() as progress:
        for name in names:
            task = progress.add_task(name, total=1, figures="", sent="")

            def say(text: str, task: object = task) -> None:
                progress.update(task, figures=text)  # type: ignore[arg-type]

            reproduce(
                entry(name),
                check_scale(scale),
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
) -> None:
    """One page with every plot beside the paper's numbers; with --markdown a document with the claims."""
    from cesar.reproduce.document import write_document  # noqa: PLC0415
    from cesar.reproduce.page import write_page  # noqa: PLC0415
    from cesar.reproduce.sections import sections  # noqa: PLC0415

    found = sections(directories, NAMES)
    page = write_page(found, out or directories[0] / "report.html")
    console.print(f"report: [bold]{page}[/]")
    if markdown is not None:
        console.print(f"document: [bold]{write_document(found, markdown)}[/]")

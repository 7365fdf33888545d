"""`cesar demo`: the experiment that needs no download."""

from __future__ import annotations

import shutil
import sys
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from cesar.cli.options import AsJson, Workers
from cesar.cli.output import console
from cesar_lab.cli import run
from cesar_lab.cli.report import show_results


def command(
    out: Annotated[Path, typer.Option(help="Directory for the results.")] = Path("runs/demo"),
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Train 16 sites on handwritten digits, averaging in five ways; needs no download."""
    with resources.as_file(resources.files("cesar_lab.run") / "demo.toml") as file:
        run.perform(file, out, workers=workers)
    if as_json:
        show_results([out], as_json=True)
        return
    from cesar_lab.show import demo  # noqa: PLC0415
    from cesar_lab.show.report import write_report  # noqa: PLC0415
    from cesar_lab.show.results import read_study, rows_of  # noqa: PLC0415

    one = read_study(out)
    rows = rows_of(one)
    write_report([out], out / "report.html")
    console.print(demo.table(one, rows).terminal())
    console.print(demo.insight(rows), highlight=False)
    console.print(f"\nOpen in a browser: [bold]{demo.write_demo(out)}[/]", soft_wrap=True)
    console.print("\nWhat to try next:", highlight=False)
    activate = Path(sys.executable).with_name("activate")
    if shutil.which("cesar") is None and activate.exists():
        console.print(f"  {f'. {activate}':<40}finds the commands below", highlight=False, soft_wrap=True)
    for line, about in demo.NEXT:
        console.print(f"  {line:<40}{about}", highlight=False, soft_wrap=True)

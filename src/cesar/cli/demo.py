"""`cesar demo`: the experiment that needs no download."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from cesar.cli import run
from cesar.cli.options import AsJson, Workers


def command(
    out: Annotated[Path, typer.Option(help="Directory for the results.")] = Path("runs/demo"),
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Train 16 nodes on handwritten digits, averaging in ten ways; needs no download."""
    with resources.as_file(resources.files("cesar.experiment") / "demo.toml") as file:
        run.command(file, out=out, workers=workers, as_json=as_json)

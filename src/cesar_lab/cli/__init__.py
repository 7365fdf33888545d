"""The laboratory's commands: arguments in, a table for people or JSON for machines out. A module per command."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import typer

from cesar.audit import sources
from cesar_lab.cli import attack, bench, data, demo, report, reproduce, run, up

NEEDED = ("torch", "sklearn", "pydantic", "safetensors", "plotly", "jinja2", "matplotlib")


def add_to(root: typer.Typer, network: typer.Typer) -> None:
    """Add the laboratory's commands to those of the library.

    Raises:
        ModuleNotFoundError: a library that they need is not installed.
    """
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"the laboratory needs {name}", name=name)
    root.command("run")(run.command)
    root.command("report")(report.command)
    root.command("demo")(demo.command)
    root.add_typer(bench.app, name="bench")
    root.add_typer(data.app, name="data")
    root.add_typer(attack.app, name="attack")
    root.add_typer(reproduce.app, name="reproduce")
    network.command("up")(up.command)
    sources.readers["experiment.json"] = _of_run


def _of_run(folder: Path, question: sources.Question, method: str | None, round_: int) -> sources.Found:
    from cesar_lab.run.audited import of_run  # noqa: PLC0415  (torch takes seconds to import)

    return of_run(folder, question, method, round_)

"""What the commands print: tables for people, JSON for machines, and progress beside them on standard error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

console = Console()
notices = Console(stderr=True)


def plain(value: object) -> str:
    """A value in a table: four decimals are enough for a fraction."""
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def show(title: str, fields: dict[str, Any], *, as_json: bool, shown: Callable[[Any], str] = plain) -> None:
    """A result as two columns, or as JSON."""
    if as_json:
        typer.echo(json.dumps(fields))
        return
    table = Table(title=title, show_header=False)
    for name, value in fields.items():
        table.add_row(name.replace("_", " "), shown(value))
    console.print(table)


def size(count: float) -> str:
    """Bytes in units that people read."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


@contextmanager
def counting() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for each thing that is counted; call it with (what, done, of how many)."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notices) as progress:
        tasks: dict[str, TaskID] = {}

        def count(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield count

"""What the commands print: tables for people, JSON for machines, and progress beside them on standard error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from cesar.experiment.journal import Row
    from cesar.sim.simulation import RoundRecord

console = Console()
notices = Console(stderr=True)


def plain(value: object) -> str:
    """A value in a table: four decimals are enough for a fraction."""
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def show(title: str, fields: dict[str, Any], *, as_json: bool, words: Callable[[Any], str] = plain) -> None:
    """A result as two columns, or as JSON."""
    if as_json:
        typer.echo(json.dumps(fields))
        return
    table = Table(title=title, show_header=False)
    for name, value in fields.items():
        table.add_row(name.replace("_", " "), words(value))
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


def run_bars() -> Progress:
    """The display that `RunBars` writes to."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TextColumn("{task.fields[sent]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=notices,
    )


class RunBars:
    """An observer that shows each run as a bar with its latest figures."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def started(self, title: str, seed: int, rounds: int, done: int) -> None:
        self._task = self._progress.add_task(
            f"{title}, seed {seed}", total=rounds, completed=done, figures="", sent=""
        )

    def round_done(self, record: RoundRecord, sent: float) -> None:
        assert self._task is not None
        self._progress.update(self._task, advance=1, sent=size(sent))

    def tested(self, row: Row) -> None:
        from cesar.experiment.results import METRICS  # noqa: PLC0415

        assert self._task is not None
        name = next(name for name in METRICS if name in row)
        self._progress.update(self._task, figures=f"{name} {row[name]:.4f}")

    def finished(self, summary: dict[str, object]) -> None:
        """The bar stays as it is."""
